"""The passes of attention where memory may run out: smaller tiles, and at last the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from accelera.interceptor.attention import passes
from accelera.interceptor.attention.operands import Operands
from accelera.interceptor.attention.options import Options
from accelera.interceptor.attention.tiling import row_bytes
from accelera.interceptor.falling_back import is_accelerator, with_less_room

OP = "scaled_dot_product_attention"

Found = TypeVar("Found")


def forward(operands: Operands, options: Options) -> tuple[torch.Tensor, Options]:
    """Return attention, and the options by which it was computed: dropout depends on them."""

    def compute(chosen: Options) -> tuple[torch.Tensor, Options]:
        if not chosen.on_cpu:
            return passes.forward(operands, chosen), chosen
        return passes.forward(on_cpu(operands), chosen).to(operands.query.device), chosen

    return enduring(compute, operands, options)


def backward(
    operands: Operands, options: Options, grad: torch.Tensor, wanted: tuple[bool, bool, bool, bool]
) -> passes.Gradients:
    """Return the gradients that are ``wanted``.

    With dropout there is one way only, that of the forward pass: other tiles would drop others.
    """

    def compute(chosen: Options) -> passes.Gradients:
        if not chosen.on_cpu:
            return passes.backward(operands, chosen, grad, wanted)
        found = passes.backward(on_cpu(operands), chosen, grad.cpu(), wanted)
        query, key, value, mask = (None if each is None else each.to(grad.device) for each in found)
        return query, key, value, mask

    return compute(options) if options.dropout else enduring(compute, operands, options)


def on_cpu(operands: Operands) -> Operands:
    """Return the operands in RAM."""
    query, key, value, mask = operands
    return Operands(query.cpu(), key.cpu(), value.cpu(), None if mask is None else mask.cpu())


def enduring(compute: Callable[[Options], Found], operands: Operands, options: Options) -> Found:
    """Return what ``compute`` makes by ``options``, or by others with less room when memory runs out."""
    there = replace(options, on_cpu=True)
    may_move = is_accelerator(operands.query.device) and not options.on_cpu
    return with_less_room(
        OP,
        lambda scratch_bytes: compute(replace(options, scratch_bytes=scratch_bytes)),
        options.scratch_bytes,
        row_bytes(operands, options),
        (lambda: compute(there)) if may_move else None,
    )
