"""``python -m accelera``, the same as the command ``accelera``."""

from __future__ import annotations

from accelera.cli import main

if __name__ == "__main__":
    main()
