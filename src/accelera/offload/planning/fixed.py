"""What every offloaded model takes besides blocks and tensors, and the least budget with room for both."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from accelera.devices import Device
from accelera.errors import BudgetExceededError
from accelera.offload.keeping.cutting import BLOCKS
from accelera.offload.keeping.keeper import LEAST_BYTES
from accelera.offload.tensors.adopting import can_be_adopted
from accelera.stores import STAGING_BYTES_PER_THREAD
from accelera.units import format_bytes

RUNTIME_BYTES = 6 << 20
"""What PyTorch and its threads take when they begin to work, and books."""
ARITHMETIC_BYTES = 4 << 20
"""What the library of products packs for itself, and again for each of its threads.

Measured over products of up to 4096 x 4096 x 4096 in all floating-point types: 1 MiB on one thread, 8 on two,
31 on eight.
"""
SPARE_BYTES = 1 << 20
"""Left for results where no inputs say how large they are; a guard makes blocks leave for larger ones."""
PARTS = 64
"""Into so many parts the largest weight is cut in the least budget."""
_LEAST_BLOCKS = 16
"""So many of the smallest blocks fit at least."""
_THREADS = 3
"""Two threads read and one writes."""


def reserved_on(device: Device) -> dict[str, int]:
    """Return the bytes that every offloaded model takes besides blocks and tensors, by what they are for."""
    if not device.host_memory:
        return {"arithmetic": device.workspace_bytes(), "runtime": RUNTIME_BYTES}
    return {
        "staging": _THREADS * STAGING_BYTES_PER_THREAD,
        "arithmetic": ARITHMETIC_BYTES * (1 + torch.get_num_threads()),
        "runtime": RUNTIME_BYTES,
    }


def least_room(largest_bytes: int, least_bytes: int = LEAST_BYTES) -> int:
    """Return the least room for blocks of a model whose largest weight has ``largest_bytes``."""
    return max(_LEAST_BLOCKS * least_bytes, 4 * largest_bytes // PARTS)


def require_floor(
    op: str, limit_bytes: int, tensors: Iterable[torch.Tensor], device: Device, *, train: bool
) -> None:
    """Raise BudgetExceededError, naming the least that does, when no operation of a model could fit.

    What is taken in any case and the blocks of one operation, cut as fine as can be, are to fit.
    """
    fixed = sum(reserved_on(device).values()) + SPARE_BYTES
    room = _room_for(tensors, train=train)
    if limit_bytes < fixed + room:
        least = fixed + room
        raise BudgetExceededError(
            f"[{op}] a budget of {format_bytes(limit_bytes)} ({limit_bytes} bytes): PyTorch's arithmetic, "
            f"transfers and threads take {format_bytes(fixed)} besides the weights, and the blocks of one "
            f"operation {format_bytes(room)}; raise it to at least {least} bytes ({format_bytes(least)})",
            needed_bytes=least,
            budget_bytes=limit_bytes,
        )


def _room_for(tensors: Iterable[torch.Tensor], *, train: bool) -> int:
    """Return the least room for blocks: a row is never cut, and several blocks are used at once."""
    large = [each for each in tensors if can_be_adopted(each) and each.nbytes >= LEAST_BYTES]
    largest = max((each.nbytes for each in large), default=0)
    row = max((math.prod(each.shape[1:]) * each.element_size() for each in large), default=0)
    return max(least_room(largest), BLOCKS[train] * row)
