"""The runner: overlap, order, what it tells and records, and how it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from accelera.devices import Device, get_device
from accelera.engine import Progress, RunObserver, RunReport
from accelera.engine.report import Observers
from accelera.errors import DeviceError, StoreError
from accelera.plan import Plan
from accelera.stores import Store, open_store
from accelera.stores._internal import Region, create_store
from accelera.trace import Kind, TraceLog
from accelera.trace._internal import Access
from tests.matmul.interrupted import grid, nothing_left, our_threads
from tests.matmul.products import (
    ROOMY,
    assert_as_planned,
    assert_close,
    cpu,
    in_npy,
    run,
    smallest_budget,
    values,
)
from tests.planned import matmul
from tests.threads import run_in_threads


class Diary:
    """What happened, in order, heard from many threads; any of them may wait for another."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.entries: list[tuple[Any, ...]] = []

    def note(self, entry: tuple[Any, ...]) -> None:
        with self._changed:
            self.entries.append(entry)
            self._changed.notify_all()

    def count(self, kind: str) -> int:
        return sum(each[0] == kind for each in self.entries)

    def wait_for(self, happened: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(happened, PATIENCE_S), what


Waiting = Callable[[Diary, int], None]
"""Returns when the product, or the writing, of so many before it may end."""


def at_once(diary: Diary, number: int) -> None:
    """Wait for nothing."""


class WatchedStore(Store):
    """A store that takes its time and says when it begins and ends."""

    def __init__(
        self, store: Store, diary: Diary, name: str, pause_s: float = 0.0, until: Waiting = at_once
    ) -> None:
        self._store, self._diary, self._pause_s, self._until = store, diary, pause_s, until
        self.shape, self.dtype, self.tier, self.name = store.shape, store.dtype, store.tier, name

    @property
    def layout(self) -> Any:
        return self._store.layout

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        self._diary.note(("read", self.name, region))
        time.sleep(self._pause_s)
        return self._store.read(region, out)

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        self._diary.note(("write",))
        time.sleep(self._pause_s)
        self._until(self._diary, self._diary.count("written"))
        moved = self._store.write(region, data)
        self._diary.note(("written",))
        return moved

    def flush(self) -> None:
        self._store.flush()


class WatchedDevice(Device):
    """The CPU, slower, saying when each product begins and ends."""

    name = "watched"
    host_memory = True

    def __init__(
        self, diary: Diary, pause_s: float = 0.0, fail_at: int = 0, until: Waiting = at_once
    ) -> None:
        self._cpu, self._diary, self._pause_s, self._fail_at = get_device("cpu"), diary, pause_s, fail_at
        self._until = until
        self.products = 0
        self.held_bytes = self.peak_bytes = 0
        for method in ("view", "upload", "download", "synchronize", "can_take"):
            setattr(self, method, getattr(self._cpu, method))

    def gemm(self, a: Any, b: Any, c: Any, *, accumulate: bool, conjugate_a: bool = False) -> None:
        self.products += 1
        if self.products == self._fail_at:
            raise DeviceError("[gemm] broken")
        self._diary.note(("begin",))
        time.sleep(self._pause_s)
        self._until(self._diary, self.products - 1)
        self._cpu.gemm(a, b, c, accumulate=accumulate, conjugate_a=conjugate_a)
        self._diary.note(("end",))

    def total_bytes(self) -> int:
        return self._cpu.total_bytes()

    def available_bytes(self) -> int:
        return self._cpu.available_bytes()

    def workspace_bytes(self) -> int:
        return self._cpu.workspace_bytes()

    def allocate(self, nbytes: int) -> Any:
        self.held_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return self._cpu.allocate(nbytes)

    def release(self, buffer: Any) -> None:
        self.held_bytes -= buffer.nbytes
        self._cpu.release(buffer)

    def view(self, buffer: Any, shape: Any, dtype: Any, order: Any) -> Any: ...
    def upload(self, host: Any, target: Any) -> None: ...
    def download(self, source: Any, host: Any) -> None: ...
    def gram(self, a: Any, c: Any, *, accumulate: bool) -> None: ...
    def symmetrize(self, c: Any) -> None: ...
    def synchronize(self) -> None: ...

    flops_per_s = 1e11


EDGE, TILE = 80, 20
TILES = (EDGE // TILE) ** 2
PATIENCE_S = 300


@pytest.fixture
def operands(tmp_path: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], Store, Store]:
    """Deep and narrow: every tile needs new blocks of both."""
    a, b = values((EDGE, 400), "f4"), values((400, EDGE), "f4", 1)
    return a, b, in_npy(tmp_path / "a", a), in_npy(tmp_path / "b", b)


def watched(
    operands: tuple[Any, Any, Store, Store],
    out: Path,
    *,
    pauses_s: tuple[float, float, float] = (0.0, 0.0, 0.0),
    product_until: Waiting = at_once,
    write_until: Waiting = at_once,
    prefetch: bool = True,
) -> tuple[Diary, RunReport]:
    """Run with pauses in reads, products and writes, or until others are there; return what happened."""
    read_s, compute_s, write_s = pauses_s
    a, b, store_a, store_b = operands
    diary = Diary()
    result = create_store(out, (EDGE, EDGE), "f4")
    device = WatchedDevice(diary, compute_s, until=product_until)
    with nothing_left():
        _, report = matmul(
            WatchedStore(store_a, diary, "A", read_s),
            WatchedStore(store_b, diary, "B", read_s),
            WatchedStore(result, diary, "C", write_s, write_until),
            device=device,
            budget_bytes=ROOMY,
            tiles=grid(EDGE, EDGE, TILE),
            prefetch=prefetch,
        )
    result.commit()
    assert_close(np.load(out), a, b)
    assert_as_planned(report)
    assert (device.held_bytes, device.peak_bytes) == (0, report.peak_pool_bytes)
    return diary, report


def read_ahead(diary: Diary, plan: Plan) -> list[bool]:
    """Return, for each step but the first, whether what it is the first to need was being read before."""
    first: dict[Any, int] = {}
    for index, step in enumerate(plan.steps()):
        for name, block in zip("AB", step.reads, strict=True):
            first.setdefault((name, str(block.region)), index)
    ended, early = 0, []
    for kind, *what in diary.entries:
        ended += kind == "end"
        if kind == "read" and (needed_at := first[what[0], str(what[1])]):
            early.append(ended < needed_at)
    return early


def written_behind(diary: Diary) -> list[bool]:
    """Return, for each block but the last, whether a product ended while it was written."""
    writing, beside = False, []
    for kind, *_ in diary.entries:
        writing = {"write": True, "written": False}.get(kind, writing)
        if kind == "write":
            beside.append(False)
        elif writing and kind == "end":
            beside[-1] = True
    return beside[:-1]


def next_reads_have_begun(diary: Diary, product: int) -> None:
    """Let a product of the grid, row after row, end only when what the next one needs is being read."""
    row, column = (at * TILE for at in divmod(min(product + 1, TILES - 1), EDGE // TILE))

    def begun() -> bool:
        # By name, not by number: of two readers the one that began later may be noted first.
        reads = [(name, region) for kind, name, region in map(_three, diary.entries) if kind == "read"]
        rows = any(name == "A" and region[0].start == row for name, region in reads)
        return rows and any(name == "B" and region[1].start == column for name, region in reads)

    diary.wait_for(begun, "nothing is read during a product")


def _three(entry: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    kind, name, region = (*entry, None, None)[:3]
    return kind, name, region


def block_before_is_being_written(diary: Diary, product: int) -> None:
    diary.wait_for(lambda: diary.count("write") >= product, "nothing is written during a product")


def next_product_has_ended(diary: Diary, written: int) -> None:
    products = min(written + 2, TILES)
    diary.wait_for(lambda: diary.count("end") >= products, "nothing is computed during a write")


class TestOverlap:
    def test_blocks_are_read_ahead_while_others_are_computed(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path
    ) -> None:
        diary, report = watched(operands, tmp_path / "c.npy", product_until=next_reads_have_begun)
        early = read_ahead(diary, report.plan)
        assert early == [True] * 6

    def test_finished_blocks_are_written_while_others_are_computed(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path
    ) -> None:
        diary, _ = watched(
            operands,
            tmp_path / "c.npy",
            product_until=block_before_is_being_written,
            write_until=next_product_has_ended,
        )
        assert written_behind(diary) == [True] * (TILES - 1)

    def test_without_prefetch_nothing_is_read_during_a_product(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path
    ) -> None:
        diary, report = watched(operands, tmp_path / "c.npy", pauses_s=(0.001, 0.005, 0), prefetch=False)
        assert report.plan.window == 1
        assert read_ahead(diary, report.plan) == [False] * 6

    @pytest.mark.parametrize(
        "slow", [(0.003, 0, 0), (0, 0.003, 0), (0, 0, 0.003)], ids=["read", "compute", "write"]
    )
    def test_whoever_is_slow_the_result_is_the_same(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path, slow: tuple[float, float, float]
    ) -> None:
        watched(operands, tmp_path / "c.npy", pauses_s=slow)

    def test_prefetch_changes_no_value(self, operands: tuple[Any, Any, Store, Store], tmp_path: Path) -> None:
        results = []
        for prefetch in (True, False):
            out = tmp_path / f"{prefetch}.npy"
            _, report = run(*operands[2:], out, prefetch=prefetch, tiles=grid(EDGE, EDGE, TILE))
            assert_as_planned(report)
            results.append(np.load(out))
            assert_close(results[-1], *operands[:2])

    @pytest.mark.parametrize("readers", [1, 2, 5])
    def test_any_number_of_readers(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path, readers: int
    ) -> None:
        most: list[int] = []
        others = threading.enumerate()

        class Count(RunObserver):
            def on_progress(self, progress: Progress) -> None:
                most.append(len(our_threads(others)))

        _, report = run(*operands[2:], tmp_path / "c.npy", readers=readers, observers=[Count()])
        assert_as_planned(report)
        assert_close(np.load(tmp_path / "c.npy"), *operands[:2])
        assert max(most) <= readers + 2, "readers, one writer, one that admits"


class TestTelling:
    def test_observers_hear_of_a_run_from_start_to_finish(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path
    ) -> None:
        heard: list[Any] = []

        class Listen(RunObserver):
            def on_start(self, plan: Plan) -> None:
                heard.append(plan)

            def on_progress(self, progress: Progress) -> None:
                heard.append(progress)

            def on_finish(self, report: RunReport) -> None:
                heard.append(report)

            def on_error(self, error: BaseException) -> None:
                heard.append(error)

        _, report = run(*operands[2:], tmp_path / "c.npy", observers=[Listen()], tiles=grid(EDGE, EDGE, TILE))
        plan, *progress, finished = heard
        assert plan is report.plan
        assert finished == report
        assert [each.done_steps for each in progress] == list(range(1, plan.forecast.steps + 1))
        assert {each.total_steps for each in progress} == {plan.forecast.steps}
        assert {each.planned_bytes for each in progress} == {plan.moved_bytes}
        for name in ("moved_bytes", "done_tiles"):
            figures = [getattr(each, name) for each in progress]
            assert figures == sorted(figures)
        assert progress[-1].done_tiles == len(grid(EDGE, EDGE, TILE))
        assert progress[-1].moved_bytes <= plan.moved_bytes

    def test_a_resumed_run_counts_to_the_end(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path
    ) -> None:
        out, seen = tmp_path / "c.npy", []

        class Stop(RunObserver):
            def on_progress(self, progress: Progress) -> None:
                if progress.done_tiles == 6:
                    raise KeyboardInterrupt

        class Listen(RunObserver):
            def on_progress(self, progress: Progress) -> None:
                seen.append((progress.done_steps, progress.total_steps))

        options: dict[str, Any] = {"budget_bytes": ROOMY, "tiles": grid(EDGE, EDGE, TILE)}
        with pytest.raises(KeyboardInterrupt):
            matmul(*operands[2:], out, device=cpu(), observers=[Stop()], **options)
        matmul(*operands[2:], out, device=cpu(), observers=[Listen()], resume=True, **options)
        assert seen[0][0] > 1
        assert seen[-1][0] == seen[-1][1]

    def test_several_observers_hear_the_same_in_order(self) -> None:
        heard: list[tuple[int, str]] = []

        class Listen(RunObserver):
            def __init__(self, number: int) -> None:
                self._number = number

            def on_start(self, plan: Plan) -> None:
                heard.append((self._number, "start"))

            def on_error(self, error: BaseException) -> None:
                heard.append((self._number, "error"))

        both: Any = Observers([Listen(1), Listen(2)])
        both.on_start(None)
        both.on_error(ValueError())
        assert heard == [(1, "start"), (2, "start"), (1, "error"), (2, "error")]

    @pytest.mark.parametrize("moment", ["on_start", "on_progress"])
    def test_what_an_observer_raises_ends_the_run(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path, moment: str
    ) -> None:
        class Raise(RunObserver):
            pass

        def fail(*_: Any) -> None:
            raise LookupError("mine")

        setattr(Raise, moment, fail)
        with nothing_left(), pytest.raises(LookupError, match="mine"):
            run(*operands[2:], tmp_path / "c.npy", observers=[Raise()])
        assert not (tmp_path / "c.npy").exists()


class TestRecording:
    def test_every_pin_is_recorded_in_the_order_of_the_plan(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path
    ) -> None:
        """However the threads meet: the trace is that of the plan's own walk."""
        log = TraceLog()
        _, report = run(*operands[2:], tmp_path / "c.npy", recorder=log, tiles=grid(EDGE, EDGE, TILE))
        expected = [
            (block.id, block.held_bytes, index, block is step.write)
            for index, step in enumerate(report.plan.steps())
            for block in (*step.reads, step.write)
        ]
        assert [(x.buffer, x.nbytes, x.step, x.kind == Kind.WRITE) for x in log if x.counts] == expected
        assert len(expected) == report.hits + report.misses
        assert {(x.op, x.role, x.dtype) for x in log if x.counts} == {("matmul", "tile", "float32")}

    def test_each_block_of_the_result_is_freed_once_and_never_used_again(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path
    ) -> None:
        log = TraceLog()
        run(*operands[2:], tmp_path / "c.npy", recorder=log, tiles=grid(EDGE, EDGE, TILE))
        freed: set[int] = set()
        for access in log:
            assert access.buffer not in freed
            if access.kind == Kind.FREE:
                freed.add(access.buffer)
        assert freed == {access.buffer for access in log if access.kind == Kind.WRITE}
        assert len(freed) == 16

    def test_blocks_are_recorded_in_the_type_they_are_held_in(self, tmp_path: Path) -> None:
        log = TraceLog()
        a, b = values((30, 40), "f2"), values((40, 20), "f2", 1)
        run(in_npy(tmp_path / "a", a), in_npy(tmp_path / "b", b), tmp_path / "c.npy", recorder=log)
        assert {access.dtype for access in log if access.counts} == {"float32"}
        assert log[0].nbytes == 30 * 40 * 4

    def test_a_recorder_that_fails_ends_the_run(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path
    ) -> None:
        class Full:
            def __init__(self) -> None:
                self.left = 10

            def record(self, access: Access) -> None:
                self.left -= 1
                if not self.left:
                    raise StoreError("trace file full")

        with nothing_left(), pytest.raises(StoreError, match="trace file full"):
            run(*operands[2:], tmp_path / "c.npy", recorder=Full(), tiles=grid(EDGE, EDGE, TILE))

    def test_operands_used_in_place_are_not_pinned(self) -> None:
        log = TraceLog()
        _, report = run(open_store(values((30, 40), "f4")), open_store(values((40, 20), "f4")), recorder=log)
        assert len(log) == report.peak_pool_bytes == report.moved_bytes == 0


class TestEnding:
    def test_a_device_that_fails_ends_the_run_and_is_not_asked_again(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path
    ) -> None:
        device = WatchedDevice(Diary(), fail_at=3)
        out = tmp_path / "c.npy"
        with nothing_left(), pytest.raises(DeviceError, match="broken"):
            matmul(*operands[2:], out, device=device, budget_bytes=ROOMY, tiles=grid(EDGE, EDGE, TILE))
        assert device.products == 3
        assert not out.exists()

    def test_a_bug_in_a_users_store_is_neither_hidden_nor_retried(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path
    ) -> None:
        calls: list[int] = []

        class Buggy(WatchedStore):
            def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
                calls.append(1)
                raise TypeError("my mistake")

        buggy = Buggy(operands[2], Diary(), "A")
        with nothing_left(), pytest.raises(TypeError, match="my mistake"):
            matmul(buggy, operands[3], tmp_path / "c.npy", device=cpu(), budget_bytes=ROOMY)
        assert len(calls) == 1
        assert sorted(each.name for each in tmp_path.iterdir()) == ["a.npy", "b.npy"]

    def test_a_writer_that_fails_last_is_heard(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path
    ) -> None:
        """The last block's write fails when everything is computed."""
        result = create_store(tmp_path / "c.npy", (EDGE, EDGE), "f4")

        class Last(WatchedStore):
            def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
                if region[0].stop == EDGE and region[1].stop == EDGE:
                    time.sleep(0.05)
                    raise StoreError("disk full")
                return super().write(region, data)

        with nothing_left(), pytest.raises(StoreError, match="disk full"):
            matmul(
                *operands[2:], Last(result, Diary(), "C"), device=cpu(), budget_bytes=ROOMY,
                tiles=grid(EDGE, EDGE, TILE),
            )  # fmt: skip
        result.abort()

    def test_control_c_while_waiting_for_data(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path
    ) -> None:
        """The signal comes while the computing thread sleeps: it wakes, and everything ends."""
        heard = threading.Event()

        def hear(number: int, frame: FrameType | None) -> None:
            heard.set()
            raise KeyboardInterrupt

        class Interrupting(WatchedStore):
            reads = 0

            def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
                self.reads += 1
                if self.reads == 3:
                    os.kill(os.getpid(), signal.SIGINT)
                if self.reads >= 3:
                    assert heard.wait(PATIENCE_S)
                return super().read(region, out)

        slow = Interrupting(operands[2], Diary(), "A")
        before = signal.signal(signal.SIGINT, hear)
        try:
            with nothing_left(), pytest.raises(KeyboardInterrupt):
                matmul(
                    slow, operands[3], tmp_path / "c.npy", device=cpu(), budget_bytes=ROOMY,
                    tiles=grid(EDGE, EDGE, TILE),
                )  # fmt: skip
        finally:
            signal.signal(signal.SIGINT, before)
        assert slow.reads >= 3
        assert not (tmp_path / "c.npy").exists()

    def test_runs_in_several_threads_at_once(
        self, operands: tuple[Any, Any, Store, Store], tmp_path: Path
    ) -> None:
        """One device, the same operands, four results."""
        least_bytes = smallest_budget(*operands[2:], tmp_path / "c.npy")
        problems: list[BaseException] = []

        def work(number: int) -> None:
            try:
                out = tmp_path / f"c{number}.npy"
                _, report = matmul(*operands[2:], out, device=cpu(), budget_bytes=least_bytes)
                assert_as_planned(report)
                assert_close(np.load(out), *operands[:2])
            except BaseException as error:
                problems.append(error)

        with nothing_left():
            run_in_threads(*(partial(work, number) for number in range(4)))
        assert problems == []
