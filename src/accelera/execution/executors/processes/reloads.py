"""Reloads of the program's modules, after which its worker processes must import them again."""

from __future__ import annotations

import functools
import sys
import sysconfig
from importlib.machinery import ModuleSpec
from typing import Final, final

from accelera._fork_locks import ForkSafeLock


@final
class ReloadCounter:
    """Counts how often modules of the program were imported again: each import makes a new ``__spec__``."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._specs: dict[str, ModuleSpec] = {}
        self._last_seen: tuple[int, str] | None = None
        self._count = 0

    def count(self) -> int:
        """Return the number of reloads that were found; one is found when this is called after it."""
        with self._lock:
            modules = sys.modules
            has_reloads = False
            for name, spec in self._specs.items():
                now = _spec_of(modules.get(name))
                if now is not None and now is not spec:
                    self._specs[name] = now
                    has_reloads = True
            self._count += has_reloads
            self._add_new()
            return self._count

    def _add_new(self) -> None:
        """Note modules that were imported since the last call."""
        newest = len(sys.modules), next(reversed(sys.modules))
        if newest == self._last_seen:
            return
        self._last_seen = newest
        for name, module in list(sys.modules.items()):
            spec = _spec_of(module)
            if name not in self._specs and spec is not None and _belongs_to_program(spec):
                self._specs[name] = spec


def _spec_of(module: object) -> ModuleSpec | None:
    spec = getattr(module, "__dict__", {}).get("__spec__")
    return spec if isinstance(spec, ModuleSpec) else None


def _belongs_to_program(spec: ModuleSpec) -> bool:
    """Return whether a module has a file that lies in no folder of installed packages."""
    is_own = spec.name.partition(".")[0] == "accelera"
    return spec.has_location and not is_own and not str(spec.origin).startswith(_library_folders())


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


RELOADS: Final = ReloadCounter()
"""Of this process."""
