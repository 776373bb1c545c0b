"""Attention and its weights, when they are asked for: one tile of scores at a time beside both results."""

from __future__ import annotations

import torch

from accelera.interceptor.attention import passes
from accelera.interceptor.attention.enduring import on_cpu
from accelera.interceptor.attention.operands import Operands
from accelera.interceptor.attention.options import Options
from accelera.interceptor.attention.tiling import Tile, part


def attended_with_weights(
    operands: Operands, options: Options, *, wanted: bool, averaged: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return attention and, if wanted, the weights; records no gradient.

    Parameters
    ----------
    operands
        ``(batch, heads, rows, width)`` and so on.
    wanted, averaged
        Whether the weights are returned, and whether as their mean over the heads.

    Returns
    -------
    tuple
        ``(batch, heads, rows, value_width)``, and ``(batch, rows, keys)`` or ``(batch, heads, rows, keys)``.
    """
    device = operands.query.device
    operands = on_cpu(operands) if options.on_cpu else operands
    weights = _Weights(operands, options, averaged) if wanted else None
    out = passes.forward(operands, options, None if weights is None else weights.add)
    return out.to(device), None if weights is None else weights.result.to(device)


class _Weights:
    """The weights of all tiles, put together."""

    def __init__(self, operands: Operands, options: Options, averaged: bool) -> None:
        batch, heads = operands.batch
        self._averaged, self._heads = averaged, heads
        shape = (batch, *(() if averaged else (heads,)), operands.rows, operands.keys)
        query = operands.query
        self.result = options.results()(shape, query.dtype, query.device)
        if averaged:
            self.result.zero_()

    def add(self, tile: Tile, weights: torch.Tensor) -> None:
        """Put the weights of one tile, ``(*box, rows, keys)``, where they belong."""
        if not self._averaged:
            part(self.result, tile.box, tile.rows).copy_(weights)
            return
        place = part(self.result, tile.box[:1], tile.rows)
        for head in weights.unbind(1):
            place.add_(head, alpha=1 / self._heads)
