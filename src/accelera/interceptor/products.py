"""Calls of matrix products, and how they go in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch

from accelera.errors import BudgetExceededError
from accelera.interceptor import product_plans, product_tiles
from accelera.interceptor.calls import Target
from accelera.interceptor.factors import Factors
from accelera.interceptor.limits import Limits

_HALVES = (torch.float16, torch.bfloat16)


@final
class Product(Factors):
    """A product that computes itself in pieces."""

    __slots__ = ()

    def fill(self, target: Target, limits: Limits, budget_bytes: int) -> list[str]:
        """Compute in pieces: by the engine's plan, or by torch's own kernel where that is faster."""
        by_plan = self.a.dtype not in _HALVES and self.device.type == "cpu"
        ways = (product_plans.fill, product_tiles.fill)
        return _first_that_fits(ways if by_plan else ways[::-1], self, target, limits, budget_bytes)


def _first_that_fits(
    ways: Sequence[Callable[..., list[str]]],
    product: Product,
    target: Target,
    limits: Limits,
    budget_bytes: int,
) -> list[str]:
    """Compute in the first way that the budget allows; raises the refusal that asks for least.

    No refusal is kept with its traceback, which would hold the factors until garbage is collected.
    """
    refusals = []
    for fill in ways:
        try:
            return fill(product, target, limits, budget_bytes)
        except BudgetExceededError as refusal:
            refusals.append(refusal.with_traceback(None))
    least = min(refusals, key=lambda refusal: refusal.needed_bytes)
    refusals.clear()
    try:
        raise least
    finally:
        del least
