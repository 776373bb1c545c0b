"""Registry of the operators that work block by block, by the name of the operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from accelera.offload.block_cache import BlockCache

BlockwiseRule = Callable[[Any, Any, Any, BlockCache], Any]
"""Carries out an operator on its arguments; returns None when it cannot with these."""

ELEMENTWISE = "elementwise"
"""Stands for all operators that PyTorch tags as element-wise, and for those on lists of tensors."""

_RULES: dict[str, BlockwiseRule] = {}


def implements_blockwise(*names: str) -> Callable[[BlockwiseRule], BlockwiseRule]:
    """Register a function as the rule for operators: ``"max"``, or one overload of it, ``"max.dim"``."""

    def register(rule: BlockwiseRule) -> BlockwiseRule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


@cache
def blockwise_rule(func: Any) -> BlockwiseRule | None:
    """Return the rule for ``func``; None when it works only on whole tensors."""
    name = func.overloadpacket.__name__
    found = _RULES.get(f"{name}.{func._overloadname}") or _RULES.get(name)
    if found is None and (is_on_lists(name) or torch.Tag.pointwise in func.tags):
        return _RULES[ELEMENTWISE]
    return found


def is_on_lists(name: str) -> bool:
    """Whether an operator of this name works on lists of tensors."""
    return name.startswith(("_foreach_", "_fused_", "_amp_foreach_"))
