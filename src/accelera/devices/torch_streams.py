"""Streams of a torch device: which one is current, and what each buffer waits for.

Where a device has no streams (the CPU, MPS) everything happens in order, and there is nothing to do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

_WITHOUT_STREAMS = ("cpu", "mps", "meta")


@contextlib.contextmanager
def on_stream(stream: Any, device: torch.device) -> Iterator[None]:
    """Make ``stream`` this thread's current stream for the block; the current device stays the same.

    Restoring another device creates no context there, which would take half a gigabyte of its memory.
    """
    with torch.get_device_module(device).device(device):
        before = torch.accelerator.current_stream(device)
        torch.accelerator.set_stream(stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)


def wait_for_current_work(name: str) -> None:
    """Wait, on the host, for the work of this thread's current stream on the device of that name.

    Other threads have current streams of their own: their later work then comes after it. Returns at once
    where torch does not know the device, or it has no streams.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        return
    if device.type not in _WITHOUT_STREAMS:
        torch.accelerator.current_stream(device).synchronize()


def new_stream(device: torch.device, priority: int = 0) -> Any:
    """Return a new stream of ``device``, more urgent the lower its priority; None where it has none."""
    if device.type in _WITHOUT_STREAMS:
        return None
    try:
        return torch.Stream(device, priority=priority)
    except (RuntimeError, NotImplementedError):
        return None


_URGENT = -1
"""Priority of copies, so that they do not queue behind the thread blocks of a large product."""


@dataclass
class _BufferEvents:
    """Events after the latest work that wrote a buffer, and after later work that read it, by stream."""

    written: dict[int, Any] = field(default_factory=dict)
    read: dict[int, Any] = field(default_factory=dict)

    def events(self) -> list[Any]:
        """Return all events."""
        return [*self.written.values(), *self.read.values()]

    def without(self, waited_for: Collection[int]) -> _BufferEvents:
        """Return the events without those of these ids."""
        return _BufferEvents(
            *(
                {stream: event for stream, event in events.items() if id(event) not in waited_for}
                for events in (self.written, self.read)
            )
        )


class Lanes:
    """An upload stream, a download stream, and the current stream, which computes; orders their work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.up = new_stream(device, _URGENT)
        """The stream of uploads; None where there are no streams."""
        self.down = new_stream(device, _URGENT)
        """The stream of downloads."""
        self.asynchronous = self.up is not None
        """Whether calls return before their work is done."""
        self._marks: dict[int, _BufferEvents] = {}
        self._lock = threading.Lock()

    def key(self, tensor: torch.Tensor) -> int:
        """Return the key of the buffer under ``tensor``: the address of its storage."""
        return tensor.untyped_storage().data_ptr()

    @contextlib.contextmanager
    def computing(self, reads: Iterable[torch.Tensor], writes: Iterable[torch.Tensor]) -> Iterator[None]:
        """Order the block's work on the current stream after earlier work on these tensors, and record it."""
        if not self.asynchronous:
            yield
            return
        with self.working(torch.accelerator.current_stream(self._device), reads, writes):
            yield

    @contextlib.contextmanager
    def working(
        self, stream: Any, reads: Iterable[torch.Tensor], writes: Iterable[torch.Tensor]
    ) -> Iterator[Any]:
        """Make ``stream`` current, after earlier work on these tensors; yield the event of its end."""
        if not self.asynchronous:
            yield None
            return
        sources, targets = [self.key(each) for each in reads], [self.key(each) for each in writes]
        event = torch.Event(self._device)
        with on_stream(stream, self._device):
            awaited = self._awaited(sources, targets)
            for earlier in awaited:
                stream.wait_event(earlier)
            try:
                yield event
            finally:
                event.record(stream)
                self._mark(event, stream, sources, targets, awaited)

    def admit(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let the current stream wait for transfers of these tensors."""
        if self.asynchronous:
            stream = torch.accelerator.current_stream(self._device)
            for event in self._awaited(reads=[], writes=[self.key(each) for each in tensors]):
                stream.wait_event(event)

    def used(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let transfers of these tensors wait for the present work of the current stream."""
        if self.asynchronous:
            stream = torch.accelerator.current_stream(self._device)
            event = torch.Event(self._device)
            event.record(stream)
            self._mark(event, stream, reads=[], writes=[self.key(each) for each in tensors], awaited=[])

    def born(self, buffer: torch.Tensor) -> None:
        """Let other streams wait, before they use a new buffer, for earlier uses of its memory."""
        self.used([buffer])

    def forget(self, key: int) -> None:
        """Wait for all work on a buffer that is to be released."""
        with self._lock:
            marks = self._marks.pop(key, None)
        if marks is not None:
            for event in marks.events():
                event.synchronize()

    def synchronize(self) -> None:
        """Wait for both copy streams and the current one."""
        if self.asynchronous:
            for stream in (self.up, self.down, torch.accelerator.current_stream(self._device)):
                stream.synchronize()

    def _awaited(self, reads: list[int], writes: list[int]) -> list[Any]:
        with self._lock:
            sources = [self._marks[key] for key in reads if key in self._marks]
            targets = [self._marks[key] for key in writes if key in self._marks]
            events = [event for marks in sources for event in marks.written.values()]
            return events + [event for marks in targets for event in marks.events()]

    def _mark(
        self, event: Any, stream: Any, reads: list[int], writes: list[int], awaited: Iterable[Any]
    ) -> None:
        """Record that ``event`` follows work on these buffers, and drop the events that it waited for.

        Events of other streams that it did not wait for are kept: later work must wait for them too.
        """
        waited_for = set(map(id, awaited))
        with self._lock:
            for key in reads:
                self._marks.setdefault(key, _BufferEvents()).read[stream.stream_id] = event
            for key in writes:
                marks = self._marks.get(key, _BufferEvents()).without(waited_for)
                marks.read.pop(stream.stream_id, None)
                marks.written[stream.stream_id] = event
                self._marks[key] = marks
