"""Machines by name, for what-ifs without a measurement."""

from __future__ import annotations

import numbers

import numpy as np

from accelera.errors import ArgumentError, UnknownNameError
from accelera.memory import Compute, Hierarchy, Tier
from accelera.memory._internal import UNBOUNDED_BYTES
from accelera.trace import Occupancy, Trace
from accelera.units import parse_limit

GB, TB = 10**9, 10**12

HIERARCHIES: dict[str, Hierarchy] = {
    "copilot": Hierarchy(
        (
            Tier("cache", 64 * 10**6, float("inf"), access_s=1e-5),
            Tier("dram", UNBOUNDED_BYTES, 32e9, latency_s_per_byte=1e-10),
        ),
        sequential=True,
    ),
    "laptop": Hierarchy(
        (Tier("ram", 16 * GB, float("inf")), Tier("disk", 512 * GB, 3e9, 1e-4, 2e9, duplex=False)),
        Compute(2e11, 30e9),
    ),
    "gpu-24gb": Hierarchy(
        (
            Tier("device", 24 * GB, float("inf")),
            Tier("host", 128 * GB, 25e9, 1e-5),
            Tier("disk", 2 * TB, 6e9, 1e-4, 4e9, duplex=False),
        ),
        Compute(8e13, 9e11, 5e-6),
    ),
    "h200": Hierarchy(
        (
            Tier("device", 141 * GB, float("inf")),
            Tier("host", TB, 50e9, 1e-5),
            Tier("disk", 8 * TB, 6e9, 1e-4, 4e9, duplex=False),
        ),
        Compute(6e14, 4.8e12, 5e-6),
    ),
}
"""``copilot`` is the seed's model. The others are round figures of such machines, not measurements."""


def hierarchy_of(given: Hierarchy | int | float | str, trace: Trace | None = None) -> Hierarchy:
    """Return the hierarchy meant by a preset's name, or by the capacity of the first of two tiers.

    The capacity may be a share of the peak of ``trace``, if there is one: ``"50%"``, ``0.5``.

    Parameters
    ----------
    given
        A hierarchy, the name of a preset, or a capacity.
    trace
        The trace of whose peak the capacity is a share.

    Raises
    ------
    UnknownNameError
        For text that is neither.
    ValueError
        For a number that is no size.
    TypeError
        For anything else.
    """
    if isinstance(given, Hierarchy):
        return given
    if isinstance(given, str) and given.lower() in HIERARCHIES:
        return HIERARCHIES[given.lower()]
    if not isinstance(given, (int, float, str, np.number)):
        kind = type(given).__name__
        raise ArgumentError(
            f"[hierarchy] {kind} is no hierarchy; give one, a preset's name, or a capacity such as '512MiB'"
        )
    try:
        return Hierarchy.of(parse_limit("hierarchy", given) if trace is None else capacity_of(given, trace))
    except ValueError:
        if isinstance(given, str) and not given[:1].isdigit():
            raise UnknownNameError.among("hierarchy", given, HIERARCHIES) from None
        raise


def capacity_of(amount: int | float | str, trace: Trace) -> int:
    """Return a capacity in bytes; ``"50%"`` and floats up to 1 are shares of the peak of ``trace``.

    The integer 0 is a memory that holds nothing. Raises ArgumentError for what is neither a size nor a share.

    >>> whole = Trace.from_arrays([0, 1], 500)
    >>> capacity_of("50%", whole), capacity_of(0.5, whole), capacity_of("1kB", whole), capacity_of(1, whole)
    (500, 500, 1000, 1)
    """
    if isinstance(amount, numbers.Integral) and amount == 0 and not isinstance(amount, bool):
        return 0  # a memory that holds nothing can be simulated
    # Of a trace without bytes, every capacity holds everything.
    return parse_limit("capacity", amount, lambda: Occupancy(trace).peak_bytes or 1 << 20)
