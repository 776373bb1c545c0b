"""Files whose names are near one that is not there, for messages."""

from __future__ import annotations

import os
from pathlib import Path


def files_like(path: Path) -> list[str]:
    """Return up to three names in the folder of ``path`` that are near its own, extension aside.

    Raises OSError when there is no such folder.
    """
    import difflib

    close = difflib.get_close_matches(path.name, sorted(os.listdir(path.parent)), n=3)
    return [each for each in close if difflib.get_close_matches(path.stem, [Path(each).stem])]
