"""The negative log-likelihood of many classes: rows of scores in several blocks."""

from __future__ import annotations

from typing import Any

import torch

from accelera.offload.keeping.keeper import Keeper
from accelera.offload.tiled.held import held
from accelera.offload.tiled.results import empty
from accelera.offload.tiled.space import Axes, Operand, boxes

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2
"""How PyTorch numbers the reductions of a loss."""


def nll_loss_forward(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> Any:
    """Return the loss and the total weight of the targets; None if a row of scores is cut."""
    scores, target, weight, reduction, ignored = args
    operands = [_rows(scores), Operand(target, (0,)[: target.ndim])]
    if not _whole_rows(scores, operands):
        return None
    inner = NONE if reduction == NONE else SUM
    losses, weights = [], []
    for box in boxes(scores.shape, operands):
        with held(keeper, operands, box, str(func)) as (part, wanted):
            loss, total = func(part, wanted, weight, inner, ignored)
        losses.append(loss)
        weights.append(total)
    total = torch.stack(weights).sum()
    if reduction == NONE:
        return torch.cat(losses), weights[0]
    loss = torch.stack(losses).sum()
    return (loss / total if reduction == MEAN else loss), total


def nll_loss_backward(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> Any:
    """Return the gradient of the scores; None if a row of scores is cut."""
    gradient, scores, target, weight, reduction, ignored, total = args
    result = empty(keeper, scores.shape, scores.dtype)
    given: Axes = (0,)[: gradient.ndim]
    operands = [_rows(scores), Operand(target, (0,)), Operand(gradient, given)]
    operands.append(Operand(result, (0, 1), read=False, write=True))
    if not _whole_rows(scores, operands):
        return None
    for box in boxes(scores.shape, operands):
        with held(keeper, operands, box, str(func)) as (part, wanted, above, out):
            out.copy_(func(above, part, wanted, weight, reduction, ignored, total))
    return result


def _rows(scores: torch.Tensor) -> Operand:
    return Operand(scores, tuple(range(scores.ndim)))


def _whole_rows(scores: torch.Tensor, operands: list[Operand]) -> bool:
    classes = slice(0, scores.shape[-1])
    return scores.ndim == 2 and all(box[1] == classes for box in boxes(scores.shape, operands))
