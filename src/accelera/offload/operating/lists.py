"""Operations on lists of tensors (``_foreach_*``, ``_fused_*``), carried out one tensor after the other."""

from __future__ import annotations

from typing import Any

from accelera.offload.operating.computing import compute
from accelera.offload.operating.operands import each_tensor
from accelera.offload.tensors.tensor import OffloadedTensor


def one_by_one(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry out ``func`` for each element of its lists; results are joined to lists again."""
    lists = [value for value in (*args, *kwargs.values()) if _is_list(value)]
    count = max((len(value) for value in lists), default=0)
    results = [
        _one(func, _at(args, place), {name: _at([value], place)[0] for name, value in kwargs.items()})
        for place in range(count)
    ]
    return [one for result in results for one in result] if func._schema.returns else None


def _one(func: Any, args: Any, kwargs: Any) -> Any:
    if any(isinstance(one, OffloadedTensor) for one in each_tensor(args, kwargs)):
        return compute(func, args, kwargs)
    return func(*args, **kwargs)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0


def _at(values: Any, place: int) -> list[Any]:
    return [[value[place]] if _is_list(value) else value for value in values]
