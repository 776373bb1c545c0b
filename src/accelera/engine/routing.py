"""Routes of a product: direct, in chunks, or on the CPU; rules without any computing.

    not asked for chunks, good for torch, and room for it?  ── yes ──> direct on the device
          no
    accelerator with less than 0.3 GiB left of more?  ── yes ────────> chunks on the CPU
          no ────────────────────────────────────────────────────────> chunks on the device

``MemoryEfficientEngine`` asks one thing before: whether its threshold is below 0.05 GiB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

GIB = 2**30
TINY_THRESHOLD_GB = 0.05
"""Below this threshold chunks would be too small to be worth it: fall back."""
LEAST_DEVICE_BYTES = int(0.3 * GIB)
"""An accelerator that has more, but less than this free, is left to whoever uses it."""


class Route(NamedTuple):
    """How an operation will be computed."""

    direct: bool
    """True: computed in one piece; False: in chunks, by a plan."""
    on_cpu: bool
    """On the CPU, whatever the device."""
    chunk_rows: int | None
    """Rows per chunk when fixed; None leaves the cut to the strategy or the planner."""
    reason: str
    """Why, for the log."""


class RouteFacts(NamedTuple):
    """Facts about a product by which its route is chosen."""

    total_bytes: int
    """Size of both operands and the result."""
    needed_bytes: int
    """Memory the operation adds on the device when computed directly."""
    has_room: Callable[[int], bool]
    """Whether the budget and the device's free memory admit so many bytes."""
    device_is_full: Callable[[], bool]
    """Whether an accelerator has less than 0.3 GiB left; asked only when it matters."""
    chunks_wanted: bool
    """Whether the user fixed the chunks."""
    suits_torch: bool = True
    """Whether torch knows the device and is not slow there with the element type."""


NOT_IN_MEMORY = Route(False, False, None, "an operand or the result is not in memory")
CHUNKS_WANTED = Route(False, False, None, "the chunks are the user's")
NOT_FOR_TORCH = Route(False, False, None, "torch does not know the device, or is slow with the element type")
FITS = Route(True, False, None, "it fits")
DEVICE_FULL = Route(False, True, None, "less than 0.3 GiB are left on the device")
TOO_LARGE = Route(False, False, None, "it does not fit in one piece")


def route_by_memory(facts: RouteFacts | None) -> Route:
    """Return the route by the rules above; None stands for operands that are not in memory."""
    if facts is None:
        return NOT_IN_MEMORY
    divided = _why_divided(facts)
    if divided is None:
        return FITS
    return DEVICE_FULL if facts.device_is_full() else divided


def _why_divided(facts: RouteFacts) -> Route | None:
    if facts.chunks_wanted:
        return CHUNKS_WANTED
    if not facts.suits_torch:
        return NOT_FOR_TORCH
    return None if facts.has_room(facts.needed_bytes) else TOO_LARGE


def route_by_fallback(strategy: str, chunk_rows: int, fits_in_ram: bool) -> Route:
    """Return the route of the ``"cpu"`` or the ``"default_chunk"`` fallback."""
    reason = f"the threshold is below {TINY_THRESHOLD_GB} GiB"
    if strategy == "cpu":
        return Route(fits_in_ram, True, None, reason)
    return Route(False, False, chunk_rows, reason)
