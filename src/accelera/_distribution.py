"""Name of the distribution on the package index, and other distributions that install the same package."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable

DISTRIBUTION = "accelera-engine"
"""Name that pip installs; the package that it brings is ``accelera``."""
_OTHER = "accelera-"
"""Start of the names of metadata folders of the unrelated distribution ``accelera``."""


def install_command(extra: str | None = None) -> str:
    """Return the command that installs the package, with an extra if one is named.

    >>> install_command("torch")
    "pip install 'accelera-engine[torch]'"
    """
    return f"pip install {DISTRIBUTION}" if extra is None else f"pip install '{DISTRIBUTION}[{extra}]'"


def conflict(folders: Iterable[str] | None = None) -> str | None:
    """Return a message if the unrelated distribution ``accelera`` is installed too; None otherwise.

    Both install a package called ``accelera``, and the files of the later one replace those of the other.
    ``folders`` are searched, those of ``sys.path`` by default; importlib.metadata would take longer to load.
    """
    for folder in sys.path if folders is None else folders:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith(_OTHER) and name.endswith(".dist-info"):
                return (
                    f"the distribution {name.removesuffix('.dist-info')} in {folder} is another project that "
                    f"installs a package called accelera, too; remove both and install this one again: pip "
                    f"uninstall -y accelera {DISTRIBUTION} && {install_command()}"
                )
    return None


def warn_of_conflict() -> None:
    """Warn if the unrelated distribution is installed too."""
    message = conflict()
    if message is not None:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
