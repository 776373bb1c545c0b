"""Runner of a plan: reads ahead, computes, writes behind, all inside the pool.

Three kinds of threads meet here. One admits the accesses in the plan's order (``plan.walk``), so
that eviction is decided by the plan alone and never by timing. Readers fill the blocks. The
calling thread computes, and a writer stores finished blocks of the result. A step may be retired
only when it is computed and, if it finished a block, written.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from accelera.devices import Device
from accelera.engine.options import OperationOptions
from accelera.engine.report import Observer, Progress, RunReport
from accelera.engine.staging import Mover
from accelera.memory import Buffer, BufferPool
from accelera.plan import BufferNumbers, OperandBlock, Pass, Plan, PlanStep, policy_of, walk
from accelera.policy import create_policy
from accelera.stores import Store
from accelera.trace import Access, Kind, Recorder, RunRecorder

Kernel = Callable[[Device, PlanStep, Sequence[Any], Any], None]
"""Computes one step: (device, step, arrays read, array written)."""


@dataclass
class RunControl:
    """Hooks by which a job follows and steers one run of a plan."""

    observer: Observer = field(default_factory=Observer)
    on_written: Callable[[OperandBlock], None] = lambda block: None
    """Called by the writer after a block of the result is in its store."""
    skip: Callable[[PlanStep], bool] = lambda step: False
    """Steps that need not be run, such as those whose result a journal says is stored."""
    may_skip: bool = True
    """False where ``skip`` says False of every step."""
    keep_going: Callable[[], bool] = lambda: True
    """Asked before each new block of the result; False ends the run early with ``Interrupted``."""


class Interrupted(Exception):
    """The run stopped at a block boundary because it was asked to."""


class PlanRunner:
    """One run of one plan."""

    def __init__(
        self,
        plan: Plan,
        stores: Sequence[Store],
        device: Device,
        kernel: Kernel,
        options: OperationOptions,
        control: RunControl,
    ) -> None:
        self._plan = plan
        self._stores = stores
        self._device = device
        self._kernel = kernel
        self._options = options
        self._control = control
        self._mover = Mover(device, options.readers + 1)
        self._read: Counter[int] = Counter()
        self._counting = threading.Lock()
        self._written = 0
        self._skipped = 0
        self._stall_s = self._compute_s = 0.0
        self._nothing: Any = None
        self._ready: queue.SimpleQueue[_Admitted | None] = queue.SimpleQueue()
        self._gate = _StepGate()
        self._numbered = None if options.recorder is None else _RunNumbers(options.recorder)
        self._residents = [
            store.resident() if operand.in_place else None
            for operand, store in zip(plan.operands, stores, strict=True)
        ]

    def run(self) -> RunReport:
        """Run all steps; raise whatever stopped them, with all threads ended and memory returned."""
        began = time.perf_counter()
        readers = ThreadPoolExecutor(self._options.readers, "accelera-read")
        writer = ThreadPoolExecutor(1, "accelera-write")
        pool = self._pool(readers)
        admitter = threading.Thread(target=self._admit, args=(pool,), name="accelera-admit", daemon=True)
        admitter.start()
        try:
            steps = self._compute(writer)
        except BaseException as error:
            self._gate.fail(error)
            raise
        finally:
            admitter.join()
            writer.shutdown()
            readers.shutdown(cancel_futures=True)
            pool.close()
            if self._nothing is not None:
                self._device.release(self._nothing)
        self._gate.check()
        return self._report(pool, steps, time.perf_counter() - began)

    def _pool(self, readers: ThreadPoolExecutor) -> BufferPool:
        """Return an empty pool, with the recorder told; each pass brings its own policy."""
        plan, recorder = self._plan, self._options.recorder
        if isinstance(recorder, RunRecorder):
            recorder.begin({**plan.facts(), "device": self._device.name})
        return BufferPool(
            plan.capacity_bytes,
            create_policy("fifo"),
            self._device,
            readers=readers,
            recorder=self._numbered,
            op=plan.operation,
        )

    def _passes(self) -> Iterator[Pass]:
        """Yield the passes that have something to do, without the steps that need not be run."""
        for each in self._plan.pattern.passes():
            steps = each.steps() if self._control.may_skip else ()
            there = Counter(self._control.skip(step) for step in steps)
            self._skipped += there[True]
            if there[False] or not there:
                yield Pass(partial(self._left, each))

    def _left(self, each: Pass) -> Iterator[PlanStep]:
        return (step for step in each.steps() if not self._control.skip(step))

    def _admit(self, pool: BufferPool) -> None:
        """Admit accesses in order, keeping the plan's window of steps under way."""
        driver = _BufferPoolDriver(self, pool, self._gate, self._plan, self._numbered)
        try:
            for index, step in walk(self._passes(), self._plan.window, driver):
                self._ready.put(_Admitted(index, step, driver.take()))
        except BaseException as error:
            self._gate.fail(error)
        finally:
            self._ready.put(None)

    def _compute(self, writer: ThreadPoolExecutor) -> int:
        count = tiles = 0
        asked = time.perf_counter()
        while (admitted := self._ready.get()) is not None:
            self._gate.check()
            step = admitted.step
            if step.first and not self._control.keep_going():
                raise Interrupted
            arrays = [self._array(block, admitted.buffers) for block in step.reads]
            out = self._array(step.write, admitted.buffers)
            began = time.perf_counter()
            self._kernel(self._device, step, arrays, out)
            self._device.synchronize()
            ended = time.perf_counter()
            del arrays, out
            self._note_times(admitted, began - asked, ended - began)
            count += 1
            tiles += step.last
            self._finish(admitted, writer)
            self._tell(count, tiles)
            asked = time.perf_counter()
        self._gate.check()
        return count

    def _note_times(self, admitted: _Admitted, waited_s: float, compute_s: float) -> None:
        self._stall_s += waited_s
        self._compute_s += compute_s
        if isinstance(self._options.recorder, RunRecorder):
            self._options.recorder.took(admitted.index, compute_s, admitted.step.flops)

    def _finish(self, admitted: _Admitted, writer: ThreadPoolExecutor) -> None:
        if admitted.step.last:
            writer.submit(self._write, admitted).add_done_callback(self._gate.watch)
        else:
            self._gate.done(admitted.index)

    def _write(self, admitted: _Admitted) -> None:
        block = admitted.step.write
        if block.held_bytes:
            memory = admitted.buffers[block.id].memory
            operand = self._plan.operands[block.operand]
            self._written += self._mover.write(self._stores[block.operand], block, operand, memory)
        self._control.on_written(block)
        self._gate.done(admitted.index)

    def load(self, block: OperandBlock) -> Callable[[Any], int]:
        """Return what fills a buffer with ``block``."""

        def fill(memory: Any) -> int:
            operand = self._plan.operands[block.operand]
            moved = self._mover.read(self._stores[block.operand], block, operand, memory)
            with self._counting:
                self._read[block.operand] += moved
            return moved

        return fill

    def _array(self, block: OperandBlock, buffers: dict[int, Buffer]) -> Any:
        resident = self._residents[block.operand]
        if resident is not None:
            return resident[block.region]
        memory = buffers[block.id].wait() if block.held_bytes else self._empty()
        return self._mover.view(memory, block, self._plan.operands[block.operand])

    def _empty(self) -> Any:
        """Return the memory of blocks without elements."""
        if self._nothing is None:
            self._nothing = self._device.allocate(0)
        return self._nothing

    def _tell(self, count: int, tiles: int) -> None:
        done, total = count + self._skipped, self._plan.forecast.steps
        moved = sum(self._read.values()) + self._written
        self._control.observer.on_progress(Progress(done, total, tiles, moved, self._plan.moved_bytes))

    def _report(self, pool: BufferPool, steps: int, seconds: float) -> RunReport:
        names = [operand.name for operand in self._plan.operands[:-1]]
        return RunReport(
            plan=self._plan,
            device=self._device.name,
            seconds=seconds,
            bytes_read={name: self._read[index] for index, name in enumerate(names)},
            bytes_written=self._written,
            peak_pool_bytes=pool.peak_allocated_bytes,
            hits=pool.stats.hits,
            misses=pool.stats.misses,
            evictions=pool.stats.evictions,
            fetched_bytes=pool.stats.fetched_bytes,
            saved_bytes=pool.stats.saved_bytes,
            stall_s=self._stall_s,
            compute_s=self._compute_s,
            steps_run=steps,
            steps_skipped=self._skipped,
        )


@dataclass(frozen=True)
class _Admitted:
    """A step whose blocks are pinned, loading or loaded."""

    index: int
    step: PlanStep
    buffers: dict[int, Buffer]


class _RunNumbers:
    """Gives the pool's buffers, whose numbers serve again in every pass, numbers of the whole run."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: dict[int, Access] = {}
        """By the pool's number the latest event, with the number of the whole run."""
        self._count = 0

    def record(self, access: Access) -> None:
        """Pass an event on."""
        known = self._known.get(access.buffer)
        number = self._count if known is None else known.buffer
        self._count += known is None
        found = replace(access, buffer=number)
        self._recorder.record(found)
        if access.kind is Kind.FREE:
            self._known.pop(access.buffer, None)
        else:
            self._known[access.buffer] = found

    def free(self, buffer: int, step: int) -> None:
        """Say that a buffer's life is over, which left the pool before."""
        if buffer in self._known:
            known = self._known.pop(buffer)
            self._recorder.record(replace(known, step=step, kind=Kind.FREE))


class _BufferPoolDriver:
    """Drives the pool from a walk."""

    def __init__(
        self, runner: PlanRunner, pool: BufferPool, gate: _StepGate, plan: Plan, recorder: _RunNumbers | None
    ) -> None:
        self._runner = runner
        self._plan = plan
        self._dtypes = [str(operand.held_dtype) for operand in plan.operands]
        self._recorder = recorder
        self._numbers = BufferNumbers()
        self._pool = pool
        self._gate = gate
        self._pinned: dict[int, Buffer] = {}

    def begin(self, following: Pass, held: Collection[int], step: int) -> None:
        plan = self._plan
        for block, number in self._numbers.items():
            if block not in held:
                self._drop(number, step)
        self._numbers.keep(held, again=True)
        steps, room = following.steps(), plan.capacity_bytes
        self._pool.renew(policy_of(steps, plan.operands, plan.window, plan.eviction, room, plan.operation))

    def _drop(self, number: int, step: int) -> None:
        if number in self._pool:
            self._pool.free(number, step=step)
        elif self._recorder is not None:
            self._recorder.free(number, step)

    def wait(self, step: int) -> None:
        self._gate.wait_for(step)

    def admit(self, block: OperandBlock, step: int, *, write: bool) -> None:
        load = None if write else self._runner.load(block)
        self._pinned[block.id] = self._pool.pin(
            self._numbers[block.id],
            block.held_bytes,
            load,
            step=step,
            write=write,
            role="tile",
            dtype=self._dtypes[block.operand],
            name=block.name(self._plan.operands) if self._recorder is not None else "",
        )

    def take(self) -> dict[int, Buffer]:
        """Return the buffers pinned since the last call, by block id."""
        pinned, self._pinned = self._pinned, {}
        return pinned

    def unpin(self, block: OperandBlock, step: int) -> None:
        self._pool.unpin(self._numbers[block.id], step=step)

    def free(self, block: OperandBlock, step: int) -> None:
        number = self._numbers.pop(block.id)
        self._pool.note_saved(number, step=step)
        self._pool.free(number, step=step)


class _StepGate:
    """Which steps are done, and whether something failed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._done: set[int] = set()
        self._lowest = 0
        self._error: BaseException | None = None

    def done(self, index: int) -> None:
        """Take note that step ``index`` is computed and stored."""
        with self._condition:
            self._done.add(index)
            while self._lowest in self._done:
                self._done.remove(self._lowest)
                self._lowest += 1
            self._condition.notify_all()

    def wait_for(self, index: int) -> None:
        """Wait until step ``index`` and all before it are done; raise what failed meanwhile."""
        with self._condition:
            self._condition.wait_for(lambda: self._lowest > index or self._error is not None)
        self.check()

    def fail(self, error: BaseException) -> None:
        """Make every waiter give up with ``error``; the first error stays."""
        with self._condition:
            self._error = self._error or error
            self._condition.notify_all()

    def watch(self, future: Future[None]) -> None:
        """Fail with what ``future`` raised, if it did."""
        error = future.exception()
        if error is not None:
            self.fail(error)

    def check(self) -> None:
        """Raise what failed, if anything did."""
        if self._error is not None:
            raise self._error
