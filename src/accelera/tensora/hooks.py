"""Hooks of modules and optimizers: functions that are called with them, by the number that removes them."""

from __future__ import annotations

import itertools
from typing import Any

_numbers = itertools.count()


class HookHandle:
    """Handle of a registered hook."""

    def __init__(self, hooks: dict[int, Any], number: int) -> None:
        self._hooks = hooks
        self._number = number

    def remove(self) -> None:
        """Do not call the hook any more."""
        self._hooks.pop(self._number, None)


def add_hook(hooks: dict[int, Any], hook: Any, prepend: bool = False) -> HookHandle:
    """Register a hook behind the others, or before them."""
    number = next(_numbers)
    if prepend:
        others = dict(hooks)
        hooks.clear()
        hooks[number] = hook
        hooks.update(others)
    else:
        hooks[number] = hook
    return HookHandle(hooks, number)
