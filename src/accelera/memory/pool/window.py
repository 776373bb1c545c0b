"""How far to look ahead."""

from __future__ import annotations

MOST_BYTES = 64 << 20
"""More on its way at once makes no disk faster."""


def window_of(capacity_bytes: int, window_bytes: int | None = None) -> int:
    """Return the bytes that may be on their way: as asked, else an eighth of the capacity up to 64 MiB."""
    return min(capacity_bytes // 8, MOST_BYTES) if window_bytes is None else window_bytes
