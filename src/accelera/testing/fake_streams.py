"""Streams and events of the fake GPU: copies happen as late as the program allows.

A kernel is carried out when it is launched, after what its stream was given before and waits for. A copy that
the host does not wait for happens only when something that comes after it is carried out, or when the host
waits: a program that reads or overwrites memory too early gets the wrong numbers, as it might on a device.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, final

import torch

from accelera.testing.happens_before import HOST, Clock

Fake = Any
"""A ``FakeCuda``; that module imports this one, so its type cannot be named here."""
USUAL: Final = 0
"""Number of every device's default stream."""


@final
class FakeStream:
    """A queue of work on one device; stands for ``torch.Stream``.

    Parameters
    ----------
    cuda
        The fake that it belongs to.
    device
        The device, with its index.
    priority
        As torch has it: less is more urgent.
    number
        None makes a new one.
    """

    def __init__(
        self, cuda: Fake, device: torch.device, priority: int = 0, number: int | None = None
    ) -> None:
        self._cuda = cuda
        self.device = device
        self.priority = priority
        self.stream_id = next(_NUMBERS) if number is None else number
        self._queue: deque[Callable[[], None]] = deque()
        self._done = 0
        self._given = 0
        self._before: Any = None

    @property
    def key(self) -> tuple[int, int]:
        """Key of the stream in the happens-before checker: device and number."""
        return self.device.index, self.stream_id

    @property
    def device_index(self) -> int:
        """Number of the device."""
        return int(self.device.index)

    def give(self, work: Callable[[], None]) -> int:
        """Queue work to be done as late as possible; return how many pieces were queued so far."""
        self._queue.append(work)
        self._given += 1
        return self._given

    def carry_out(self, until: int | None = None) -> None:
        """Do what is queued, up to and with the piece of number ``until``; None: all."""
        until = self._given if until is None else until
        while self._done < until:
            self._done += 1
            self._queue.popleft()()

    @property
    def given(self) -> int:
        """Number of pieces of work that were queued so far."""
        return self._given

    def wait_event(self, event: FakeEvent) -> None:
        """Let what is given from now on begin after ``event``."""
        with self._cuda.at_work():
            self._cuda.order.wait(self.key, event.clock)
            self.give(event.carry_out)

    def wait_stream(self, other: FakeStream) -> None:
        """Let what is given from now on begin after what ``other`` was given until now."""
        self.wait_event(other.record_event())

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        """Return an event that is reached when all is done that was given until now."""
        event = FakeEvent(self._cuda) if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Wait, on the host, for all that was given."""
        self.record_event().synchronize()

    def query(self) -> bool:
        """Return whether all is known to be done."""
        return not self._queue

    def __enter__(self) -> FakeStream:
        self._before = self._cuda.current_stream(self.device)
        self._cuda.set_stream(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cuda.set_stream(self._before)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeStream) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"FakeStream({self.device}, {self.stream_id})"


_NUMBERS = itertools.count(1)


@final
class FakeEvent:
    """A point in the work of a stream; stands for ``torch.Event``."""

    def __init__(self, cuda: Fake) -> None:
        self._cuda = cuda
        self._at: tuple[FakeStream, int] | None = None
        self.clock: Clock = {}

    def record(self, stream: FakeStream | None = None) -> None:
        """Mark what ``stream``, the current one by default, was given until now."""
        with self._cuda.at_work():
            stream = self._cuda.current_stream() if stream is None else stream
            self._at = stream, stream.given
            self.clock = self._cuda.order.record(stream.key)

    def wait(self, stream: FakeStream | None = None) -> None:
        """Let ``stream`` wait for this."""
        (self._cuda.current_stream() if stream is None else stream).wait_event(self)

    def carry_out(self) -> None:
        """Do the work of the stream up to this point."""
        if self._at is not None:
            stream, until = self._at
            stream.carry_out(until)

    def synchronize(self) -> None:
        """Wait for it on the host; what a kernel failed with before is raised here."""
        with self._cuda.at_work():
            self.carry_out()
            self._cuda.order.wait(HOST, self.clock)

    def query(self) -> bool:
        """Return whether it is known to be reached."""
        return bool(self._cuda.order.is_known_done(self.clock))
