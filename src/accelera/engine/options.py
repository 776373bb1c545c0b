"""How a planned operation is to be run: the keywords that all of them share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from accelera.devices import Device
from accelera.engine.ahead import Ahead
from accelera.engine.events import Observer
from accelera.plan import SavedPlan
from accelera.trace import Recorder


class _Needed(TypedDict):
    device: Device
    """What computes."""


class Options(_Needed, total=False):
    """Keywords of every planned operation."""

    budget_bytes: int | None
    """Most memory it may add; None: what the device has free."""
    observers: Sequence[Observer]
    recorder: Recorder | None
    resume: bool
    """Finish an interrupted run that wrote to the same file."""
    pinned: SavedPlan | None
    """The plan to follow, made before."""
    prefetch: bool
    """Load the next blocks while one is worked on."""
    readers: int
    """Reader threads."""
    ahead: Ahead
    """Who is evicted, and how far ahead is loaded."""
