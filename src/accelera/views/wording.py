"""Amounts and ratios as people read them: decimal units, one digit after the point."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_WHOLE_BELOW = 3
"""Units below this index of ``_UNITS`` (up to MB) are shown without a digit after the point."""
POLICY_LABELS = {
    "arc": "ARC",
    "belady": "Belady",
    "belady_size": "Belady by size",
    "clock": "CLOCK",
    "fifo": "FIFO",
    "gdsf": "GDSF",
    "iteration_replay": "Iteration replay",
    "largest": "Largest first",
    "lfu": "LFU",
    "lirs": "LIRS",
    "loop": "Loop",
    "lru": "LRU",
    "mru": "MRU",
    "planner": "Planner",
    "random": "Random",
    "s3fifo": "S3-FIFO",
    "sieve": "SIEVE",
    "slru": "SLRU",
    "two_q": "2Q",
    "wtinylfu": "W-TinyLFU",
}
"""Policies as papers write them."""


def share_more(ratio: float) -> str:
    """Return how a ratio of at least one is said.

    >>> share_more(7.18), share_more(1.04), share_more(12.3)
    ('7.2× as much', '4% more', '12× as much')
    """
    return f"{times(ratio)} as much" if _is_large(ratio) else f"{_percent(ratio)} more"


def longer(ratio: float) -> str:
    """Return how much longer something takes.

    >>> longer(1.0), longer(1.04), longer(1.8)
    ('as long', '4% longer', '1.8× as long')
    """
    if ratio < 1.005:
        return "as long"
    return f"{times(ratio)} as long" if _is_large(ratio) else f"{_percent(ratio)} longer"


def times(ratio: float) -> str:
    """Return a ratio with its sign: ``7.2×``."""
    return f"{ratio:.1f}×" if ratio < 9.95 else f"{ratio:,.0f}×"


def share_of(part: float) -> str:
    """Return a share of one in per cent.

    >>> share_of(0.456), share_of(0.002), share_of(0)
    ('46%', 'under 1%', '0%')
    """
    return "under 1%" if 0 < part < 0.01 else f"{100 * part:.0f}%"


def policy_label(name: str) -> str:
    """Return a policy's name as papers write it."""
    return POLICY_LABELS.get(name, name)


def _is_large(ratio: float) -> bool:
    return round(ratio, 2) >= 1.1


def _percent(ratio: float) -> str:
    return f"{round(100 * (ratio - 1)) or 1}%"


def _digits(index: int) -> int:
    return 0 if index < _WHOLE_BELOW else 1


def _rounded(value: float, index: int) -> float:
    return round(value, _digits(index))
