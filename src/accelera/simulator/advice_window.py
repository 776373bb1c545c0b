"""A recorded trace as it would be with another number of steps under way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from accelera.trace import Kind, Trace


def records_releases(trace: Trace) -> bool:
    """Return whether a trace says itself when pins end."""
    return bool((trace.kind == Kind.RELEASE).any())


def with_lookahead(trace: Trace, lookahead: int) -> Trace:
    """Return ``trace`` with each step's releases, savings and frees ``lookahead`` steps later.

    That is the order in which the engine goes when so many further steps are admitted while one computes:
    the oldest retires before the next is admitted. A trace without releases is returned as it is.
    """
    if not records_releases(trace):
        return trace
    access = trace.is_access
    due = trace.step.astype(np.int64) + np.where(access, 0, lookahead + 1)
    order = np.lexsort((np.arange(len(trace)), trace.step, access, due))
    return replace(
        trace,
        buffer=trace.buffer[order],
        kind=trace.kind[order],
        step=trace.step[order],
        stride=trace.stride[order],
        meta={**trace.meta, "window": lookahead + 1},
    )
