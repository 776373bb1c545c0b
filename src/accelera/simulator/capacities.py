"""How much memory is meant: bytes, a text, or a share of what a trace has alive at its peak."""

from __future__ import annotations

from accelera.settings import parse_share
from accelera.trace import Occupancy, Trace
from accelera.units import parse_bytes


def capacity_of(given: int | float | str, trace: Trace) -> int:
    """Return a capacity in bytes; ``"50%"`` and floats up to 1 are shares of the peak of ``trace``.

    Raises ValueError for what is neither a size nor a share.

    >>> whole = Trace.from_arrays([0, 1], 500)
    >>> capacity_of("50%", whole), capacity_of(0.5, whole), capacity_of("1kB", whole), capacity_of(1, whole)
    (500, 500, 1000, 1)
    """
    amount = parse_share(given) if isinstance(given, str) else given
    if isinstance(amount, float) and 0 < amount <= 1:
        return int(amount * Occupancy(trace).peak_bytes)
    return parse_bytes(amount)
