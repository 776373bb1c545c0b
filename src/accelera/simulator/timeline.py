"""When everything of a replay happens: steps, transfers, bytes in the first tier."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from accelera._native import ReplayHistory


@dataclass(frozen=True, eq=False)
class Timeline:
    """Times of a replay in seconds from its start, as columns in three groups.

    The columns of a group have one length: ``step*`` one row per step that computed, ``move_*`` one per
    transfer over a link, ``resident_*`` one per change of the bytes in the first tier. The arrays cannot be
    written to.
    """

    step: NDArray[np.int32]
    """Steps of ``Report.trace`` as they computed. A step that had to be retired in two parts has two rows."""
    step_begin_s: NDArray[np.float64]
    step_end_s: NDArray[np.float64]
    move_link: NDArray[np.int32]
    """Index of the link in ``Report.links``; rows are in the order in which transfers were asked for."""
    move_away: NDArray[np.bool_]
    """Whether the transfer went to the slower tier (a store); else it went to the faster one (a load)."""
    move_buffer: NDArray[np.int32]
    """Index in ``Report.trace.names``."""
    move_step: NDArray[np.int32]
    """The step whose admission asked for the transfer, or the last one admitted before it."""
    move_bytes: NDArray[np.int64]
    move_begin_s: NDArray[np.float64]
    move_end_s: NDArray[np.float64]
    resident_since_s: NDArray[np.float64]
    """Times that never decrease; the first is 0, with nothing in the tier."""
    resident_bytes: NDArray[np.int64]
    """Bytes in the first tier from that time on.

    A buffer counts from the begin of its transfer, or of the room for what is created, until a transfer that
    takes its place begins, or until it is freed. Changes keep the order in which the replay decided them: one
    decided later than another is never shown before it.
    """

    def __post_init__(self) -> None:
        for column in fields(self):
            getattr(self, column.name).flags.writeable = False

    def moves(self, link: int, *, away: bool) -> NDArray[np.intp]:
        """Return the rows of the transfers over ``link`` in one direction."""
        return np.flatnonzero((self.move_link == link) & (self.move_away == away))


def timeline_of(history: ReplayHistory) -> Timeline:
    """Return what a compiled replay wrote into ``history``."""
    columns = {column.name: getattr(history, column.name)() for column in fields(Timeline)}
    columns["move_away"] = columns["move_away"].view(np.bool_)
    return Timeline(**columns)
