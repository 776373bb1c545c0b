"""The happens-before checker: held to reachability in a graph, and to finding every wait that is left out."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accelera.devices import get_device
from accelera.devices.torch_device import TorchDevice
from accelera.devices.torch_streams import Lanes
from accelera.testing import FakeCuda
from accelera.testing._internal import HOST, DataRaceError, HappensBefore, Span
from accelera.testing.fake_streams import FakeEvent, FakeStream
from tests.threads import run_in_threads

STREAMS = ("one", "two", "three")
F32 = np.dtype(np.float32)


class Access(NamedTuple):
    """Work on a stream that reads or writes a range of one piece of memory."""

    stream: Any
    start: int
    stop: int
    writes: bool


class Record(NamedTuple):
    """An event after what a stream was given so far."""

    stream: Any


class Wait(NamedTuple):
    """A wait of a stream, or of the host, for the event of that number, counted round."""

    stream: Any
    event: int


anywhere = st.sampled_from([*STREAMS, HOST])
accesses = st.builds(
    lambda stream, start, size, writes: Access(stream, start, start + size, writes),
    anywhere,
    st.integers(0, 5),
    st.integers(1, 4),
    st.booleans(),
)
programs = st.lists(
    st.one_of(
        accesses,
        accesses,
        st.builds(Record, st.sampled_from(STREAMS)),
        st.builds(Wait, anywhere, st.integers(0, 9)),
    ),
    max_size=14,
)


def found_by_checker(program: list[Any]) -> bool:
    order, events = HappensBefore(), list[Any]()
    for step in program:
        if isinstance(step, Record):
            events.append(order.record(step.stream))
        elif isinstance(step, Wait):
            if events:
                order.wait(step.stream, events[step.event % len(events)])
        else:
            spans = [Span("memory", step.start, step.stop)]
            order.launch(step.stream, "work", **{"writes" if step.writes else "reads": spans})
    return bool(order.races)


def found_by_graph(program: list[Any]) -> bool:
    """Draw an edge for every order that CUDA promises; look for conflicting work that no path connects."""
    before: dict[int, set[int]] = {}
    last: dict[Any, int] = {}
    events: list[int] = []
    for number, step in enumerate(program):
        edges = {last[each] for each in {step.stream, HOST} if each in last}
        if isinstance(step, Wait) and events:
            edges.add(events[step.event % len(events)])
        before[number] = edges.union(*(before[each] for each in edges))
        last[step.stream] = number
        if isinstance(step, Record):
            events.append(number)
    done = [(number, step) for number, step in enumerate(program) if isinstance(step, Access)]
    return any(
        (one.writes or other.writes)
        and one.start < other.stop
        and other.start < one.stop
        and first not in before[second]
        for (first, one), (second, other) in itertools.combinations(done, 2)
    )


@given(programs)
def test_it_finds_what_no_path_in_a_graph_orders(program: list[Any]) -> None:
    assert found_by_checker(program) == found_by_graph(program)


@given(programs, st.data())
def test_leaving_a_wait_out_hides_no_race(program: list[Any], data: st.DataObject) -> None:
    waits = [number for number, step in enumerate(program) if isinstance(step, Wait)]
    if waits and found_by_checker(program):
        gone = data.draw(st.sampled_from(waits))
        assert found_by_checker(program[:gone] + program[gone + 1 :])


def test_each_wait_of_a_pipeline_is_needed() -> None:
    """Uploads, products and downloads of one buffer: without any one of four waits there is a race."""

    def races(left_out: str) -> list[str]:
        order, tile = HappensBefore(), [Span("tile", 0, 8)]

        def wait(name: str, stream: Any, until: Any) -> None:
            if name != left_out:
                order.wait(stream, until)

        for _ in range(2):
            order.launch("up", "upload", writes=tile)
            wait("product after upload", "usual", order.record("up"))
            order.launch("usual", "product", reads=tile, writes=[Span("sum", 0, 8)])
            wait("upload after product", "up", order.record("usual"))
            wait("download after product", "down", order.record("usual"))
            order.launch("down", "download", reads=[Span("sum", 0, 8)], writes=[Span("host", 0, 8)])
            wait("product after download", "usual", order.record("down"))
        order.wait(HOST, order.record("down"))
        order.launch(HOST, "NumPy", reads=[Span("host", 0, 8)])
        return order.races

    assert races("none") == []
    for name, said in {
        "product after upload": "product on stream usual reads bytes 0 to 8 of tile; nothing orders it after "
        "upload on stream up, which writes 0 to 8",
        "upload after product": "upload on stream up writes bytes 0 to 8 of tile; nothing orders it after "
        "product on stream usual, which reads 0 to 8",
        "download after product": "download on stream down reads bytes 0 to 8 of sum",
        "product after download": "product on stream usual writes bytes 0 to 8 of sum",
    }.items():
        assert said in races(name)[0], name


def test_the_host_is_ordered_by_its_waits_alone() -> None:
    order, tile = HappensBefore(), [Span("tile", 0, 8)]
    order.launch("up", "upload", writes=tile)
    reached = order.record("up")
    assert not order.is_known_done(reached)
    order.launch(HOST, "NumPy", reads=tile)
    with pytest.raises(DataRaceError, match="1 pairs of accesses that nothing orders"):
        order.check()
    order.wait(HOST, reached)
    assert order.is_known_done(reached)
    order.launch("other", "later", writes=tile)
    assert len(order.races) == 1, "work that is handed over after the host has waited comes after it"


def test_memory_that_is_no_more_has_no_past() -> None:
    order, tile = HappensBefore(), [Span("tile", 0, 8)]
    order.launch("one", "first", writes=tile)
    order.forget("tile")
    order.launch("two", "second", writes=tile)
    order.check()


# The real code of the devices, with one kind of wait taken out


def upload_product_download() -> None:
    """What the engine does with a device: readers fill tiles, others multiply them and fetch results."""
    device = get_device("cuda")
    assert isinstance(device, TorchDevice)
    shape = (200, 200)
    buffers = [device.allocate(4 * 200 * 200) for _ in range(3)]
    left, right, out = (device.view(each, shape, F32, (0, 1)) for each in buffers)
    host, found = np.ones(shape, F32), np.empty(shape, F32)
    with ThreadPoolExecutor(1) as other:
        for turn in range(3):
            for tile in (left, right):
                other.submit(device.upload, host, tile).result()
            device.gemm(left, right, out, accumulate=turn > 0)
            other.submit(device.download, out, found).result()
    for each in buffers:
        device.release(each)


def streamed_slab() -> None:
    """What offload does with a device: two streams compute with a slab, then it is filled anew."""
    device = get_device("cuda")
    assert isinstance(device, TorchDevice)
    slab = device.allocate(4096)
    home = torch.ones(4096, dtype=torch.uint8).pin_memory()
    for _ in range(2):
        device.transfer(home, slab)
        streams = [torch.Stream("cuda") for _ in range(2)]
        for stream in streams:
            with stream:
                device.admit(slab)
        for stream in streams:
            with stream:
                slab.to(torch.int32).sum()
                device.used(slab)
    device.release(slab)


@contextlib.contextmanager
def without(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, instead: Any) -> Iterator[FakeCuda]:
    with FakeCuda("1GiB") as cuda, monkeypatch.context() as patched:
        patched.setattr(owner, name, instead)
        yield cuda


LEFT_OUT = {
    "waits between streams": (FakeStream, "wait_event", lambda self, event: None),
    "waits for buffers": (Lanes, "_awaited", lambda self, reads, writes: []),
    "marks after work": (Lanes, "_mark", lambda self, *_, **__: None),
}


@pytest.mark.parametrize("left_out", LEFT_OUT)
@pytest.mark.parametrize("use", [upload_product_download, streamed_slab])
def test_a_wait_taken_out_of_the_devices_is_a_race(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[], None], left_out: str
) -> None:
    with FakeCuda("1GiB"):
        use()
    with pytest.raises(DataRaceError, match="nothing orders it after"):  # noqa: SIM117 - left before it is raised
        with without(monkeypatch, *LEFT_OUT[left_out]) as cuda:
            use()
            cuda.synchronize()


def test_an_event_of_one_stream_only_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: the latest user of a slab was remembered, whoever else still read it."""
    mark = Lanes._mark

    def forgetful(
        self: Lanes, event: Any, stream: Any, reads: list[int], writes: list[int], awaited: Iterable[Any]
    ) -> None:
        for key in writes:
            self._marks.pop(key, None)
        mark(self, event, stream, reads, writes, awaited)

    with pytest.raises(DataRaceError, match="copy to the device"):  # noqa: SIM117 - as above
        with without(monkeypatch, Lanes, "_mark", forgetful):
            streamed_slab()


def test_a_host_that_does_not_wait_is_a_race_and_gets_wrong_numbers() -> None:
    source = torch.zeros(1000, dtype=torch.uint8)
    with pytest.raises(DataRaceError, match="copy to the device"), FakeCuda() as cuda:
        pinned, there = source.pin_memory(), torch.empty(1000, dtype=torch.uint8, device="cuda")
        with torch.Stream("cuda"):
            there.copy_(pinned, non_blocking=True)
        there.fill_(7)
        cuda.synchronize()


def test_an_event_is_reached_when_its_stream_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded event says nothing of what comes later on its stream."""
    with FakeCuda() as cuda:
        stream = torch.Stream("cuda")
        tile = torch.zeros(100, device="cuda")
        event = torch.Event("cuda")
        with stream:
            default: Any = cuda.default_stream()
            stream.wait_stream(default)
            tile.add_(1)
            event.record(stream)
        assert isinstance(event, FakeEvent)
        assert not event.query()
        event.synchronize()
        assert event.query()
        assert float(tile.sum()) == 100
        late = cuda.order.record(stream.key)
        with stream:
            tile.add_(1)
        assert cuda.order.is_known_done(late)
        assert not cuda.order.is_known_done(cuda.order.record(stream.key))
        stream.synchronize()


def test_threads_have_current_streams_of_their_own() -> None:
    with FakeCuda() as cuda:
        seen: list[Any] = []
        with torch.Stream("cuda") as mine:
            run_in_threads(lambda: seen.append(cuda.current_stream()))
            assert cuda.current_stream() == mine
        assert seen == [cuda.default_stream()]
