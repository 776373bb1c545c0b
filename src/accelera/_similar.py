"""Files whose names are near one that is not there, for messages."""

from __future__ import annotations

import os
from pathlib import Path


def files_like(path: Path) -> list[str]:
    """Return up to three names in the folder of ``path`` that are near its own, extension aside.

    Names that differ in case only come first. Raises OSError when there is no such folder.
    """
    import difflib

    names = sorted(os.listdir(path.parent))
    other_case = [name for name in names if name.casefold() == path.name.casefold()]
    close = difflib.get_close_matches(path.name, names, n=3)
    near = [name for name in close if difflib.get_close_matches(path.stem, [Path(name).stem])]
    return list(dict.fromkeys([*other_case, *near]))[:3]
