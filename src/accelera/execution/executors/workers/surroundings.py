"""Where a process is: its folder, its environment, and where it finds modules. Workers follow suit."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple, cast, final


def module_folders() -> list[str]:
    """Return ``sys.path`` without what is no text, which counts for nothing there."""
    return [each for each in cast(list[object], sys.path) if isinstance(each, str)]


@final
class Surroundings(NamedTuple):
    """What relative paths, imports and ``os.environ`` depend on."""

    folder: str | None
    """The working directory; None when it has been removed."""
    modules: list[str]
    """As ``module_folders`` returns them."""
    environment: dict[str, str]

    @classmethod
    def here(cls) -> Surroundings:
        """Return those of this process, now."""
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            folder = None
        return cls(folder, module_folders(), dict(os.environ))

    def enter(self) -> None:
        """Make them those of this process; raises ``OSError`` when the folder is not there."""
        sys.path[:] = self.modules
        for name in os.environ.keys() - self.environment.keys():
            del os.environ[name]
        for name, value in self.environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        if self.folder is not None:
            os.chdir(self.folder)
