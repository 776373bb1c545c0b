"""Hearing of every operator that torch runs, taken apart until it is one that a kernel computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from accelera.capturing.operands import Effect, effect_of

Heard = Callable[[Any, Effect, Any, Any, Any], None]
"""Called with the operator, its effect, its arguments, its named arguments and its result."""


class Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells of operators that touch contents, in this thread and in the threads of autograd.

    Operators on tensors that wrap others are heard as those on the tensors inside; operators composed of
    others, as inference mode leaves them, as their parts.

    Parameters
    ----------
    wrappers
        Further types that wrap others, besides those that can be flattened.
    """

    supports_higher_order_operators = True

    def __init__(self, heard: Heard, wrappers: tuple[type, ...] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._heard = heard
        self._wrappers = wrappers
        self._effects: dict[Any, Effect] = {}
        self._plain: dict[Any, bool] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` and tell what it did; called by torch."""
        if types and not self._are_plain(types):
            return NotImplemented
        effect = self._effects.get(func)
        if effect is None:
            effect = self._effects[func] = effect_of(func)
        kwargs = kwargs or {}
        if effect.composed:
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        if not effect.silent:
            self._heard(func, effect, args, kwargs, result)
        return result

    def _are_plain(self, types: Any) -> bool:
        """Whether no type wraps other tensors."""
        key = tuple(types)
        known = self._plain.get(key)
        if known is None:
            known = self._plain[key] = not any(map(self._wraps, key))
        return known

    def _wraps(self, kind: type) -> bool:
        return issubclass(kind, self._wrappers) or hasattr(kind, "__tensor_flatten__")
