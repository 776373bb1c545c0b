"""Limits that threads set for the whole process, which a forked child keeps for the thread that it has."""

from __future__ import annotations

import threading

ThreadLimit = tuple[int, int]
"""Ident of the thread that set a limit, and the limit."""


def lift_limits_of_others(limits: list[ThreadLimit]) -> bool:
    """Remove the limits of threads other than this one; return whether there were any."""
    own = [limit for limit in limits if limit[0] == threading.get_ident()]
    changed = len(own) < len(limits)
    limits[:] = own
    return changed
