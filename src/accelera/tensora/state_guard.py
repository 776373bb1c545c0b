"""Guards of captured functions: state of Python that a replay requires to be as it was at the capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelera.tensora.core import native

ABSENT = object()
"""Value of an item or attribute that does not exist."""

_NUMBERS = frozenset({bool, int, float, complex, str, bytes, type(None)})


class StateGuard:
    """Values and tensors that a captured function can read, and where they are stored.

    Most comparisons are identity checks in C++. An equal number in place of the recorded one is accepted.
    """

    def __init__(self) -> None:
        self._owners: list[Any] = []
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._paths: list[str] = []
        self._containers: list[Any] = []
        self._lengths: list[int] = []
        self._container_checks: list[tuple[str, Callable[[], bool]]] = []
        self._checks: list[tuple[str, Callable[[], bool]]] = []
        self.tensors: list[Any] = []
        self._tensor_paths: list[str] = []
        self._tensor_states: list[Any] = []

    def add_item(self, owner: Any, key: Any, value: Any, path: str) -> None:
        """Guard the identity of an item of a dict or list, or of an attribute of another object."""
        self._owners.append(owner)
        self._keys.append(key)
        self._values.append(value)
        self._paths.append(path)

    def add_length(self, container: Any, path: str, is_same: Callable[[], bool] = lambda: False) -> None:
        """Guard the length of a container; if it changes, `is_same` decides."""
        self._containers.append(container)
        self._lengths.append(len(container))
        self._container_checks.append((path, is_same))

    def add_check(self, path: str, is_same: Callable[[], bool]) -> None:
        """Guard a value by a predicate, which each call evaluates."""
        self._checks.append((path, is_same))

    def add_tensor(self, tensor: Any, path: str) -> None:
        """Guard memory, layout, ``requires_grad`` and hooks of a tensor, but not its elements."""
        self.tensors.append(tensor)
        self._tensor_paths.append(path)
        self._tensor_states.append(native.TensorStates([tensor]))

    def close(self) -> None:
        """Compare all tensors in one step from now on."""
        self._tensor_states = [native.TensorStates(self.tensors)]

    def changed(self) -> str | None:
        """Return the path of a value that has changed since it was added, or None."""
        return (
            self._changed_item() or self._changed_length() or self._changed_tensor() or self._failed_check()
        )

    def _changed_item(self) -> str | None:
        i = -1
        while (i := native.first_changed(self._owners, self._keys, self._values, ABSENT, i + 1)) >= 0:
            value = item_of(self._owners[i], self._keys[i])
            if not is_same_value(self._values[i], value):
                return self._paths[i]
            self._values[i] = value
        return None

    def _changed_length(self) -> str | None:
        i = -1
        while (i := native.first_resized(self._containers, self._lengths, i + 1)) >= 0:
            path, is_same = self._container_checks[i]
            if not is_same():
                return path
            self._lengths[i] = len(self._containers[i])
        return None

    def _changed_tensor(self) -> str | None:
        if len(self._tensor_states) == 1:
            i = self._tensor_states[0].first_changed()
            return self._tensor_paths[i] if i >= 0 else None
        for path, state in zip(self._tensor_paths, self._tensor_states, strict=True):
            if state.first_changed() >= 0:
                return path
        return None

    def _failed_check(self) -> str | None:
        return next((path for path, is_same in self._checks if not is_same()), None)


def item_of(owner: Any, key: Any) -> Any:
    """Return an item of a dict or list, or an attribute of another object; `ABSENT` if it does not exist."""
    try:
        return owner[key] if isinstance(owner, (dict, list)) else getattr(owner, key)
    except (LookupError, AttributeError, ValueError):
        return ABSENT


def is_same_value(a: Any, b: Any) -> bool:
    """Return whether two values are the same object, or equal numbers, strings or tuples of these."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is tuple:
        return len(a) == len(b) and all(map(is_same_value, a, b))
    # The representation distinguishes 0.0 from -0.0, and is the same for two NaNs.
    return type(a) in _NUMBERS and repr(a) == repr(b)
