"""Process of the pages: Streamlit, which ends when the process that started it does.

Its standard input is a pipe whose other end the parent holds. The kernel closes that end however the parent
ends, ``kill -9`` included, and no signal or platform call is needed.
"""

from __future__ import annotations

import os
import sys
import threading

_READ_BYTES = 1 << 12


def main() -> None:
    """Run Streamlit with the arguments of this process until the parent has ended."""
    parent = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # Streamlit and what it starts do not hold or read the pipe
    os.close(null)
    threading.Thread(target=_exit_with_parent, args=(parent,), name="accelera-parent", daemon=True).start()
    from streamlit.web.cli import main as streamlit

    streamlit(sys.argv[1:], prog_name="streamlit")


def _exit_with_parent(parent: int) -> None:
    while os.read(parent, _READ_BYTES):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
