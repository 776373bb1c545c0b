"""Whether this process is a worker, and how many cores are its own."""

from __future__ import annotations

_SHARES: list[int] = []


def enter(cores: int) -> None:
    """Tell that this process is a worker, which may use so many cores."""
    _SHARES.append(cores)


def share() -> int | None:
    """Return how many cores this worker may use; None when this process is no worker."""
    return _SHARES[0] if _SHARES else None
