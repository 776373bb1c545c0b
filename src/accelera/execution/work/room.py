"""How many tasks may be under way at once, so that they fit the memory."""

from __future__ import annotations

from typing import Final, NamedTuple


class Room(NamedTuple):
    """The most tasks that either side may be at; None: as many as it likes.

    A side that runs its tasks one after the other may take more of them, as long as it is at no more.
    """

    cpu: int | None = None
    gpu: int | None = None


ROOMY: Final = Room()
"""No limit on either side."""
