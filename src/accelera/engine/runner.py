"""Runner of a plan: reads ahead, computes, writes behind, all inside the pool.

Four kinds of threads work together. One admits the accesses in the plan's order (``plan.walk``), so
that eviction is decided by the plan alone and never by timing. Readers load the blocks. The
calling thread computes, and a writer stores finished blocks of the result. A step is retired
only when it is computed and, if it finished a block, written.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from accelera.devices import Device
from accelera.engine.options import OperationOptions
from accelera.engine.report import Progress, RunObserver, RunReport
from accelera.engine.staging import Mover
from accelera.errors import StateError
from accelera.memory._internal import Buffer, BufferPool
from accelera.plan import Plan
from accelera.plan._internal import BufferNumbers, OperandBlock, Pass, PlanStep, policy_of, walk
from accelera.policy import create_policy
from accelera.stores import Store
from accelera.trace import Kind
from accelera.trace._internal import Access, Recorder, RunRecorder

Kernel = Callable[[Device, PlanStep, Sequence[Any], Any], None]
"""Computes one step: (device, step, arrays read, array written)."""


@dataclass
class RunControl:
    """Hooks by which a job follows and steers one run of a plan."""

    observer: RunObserver = field(default_factory=RunObserver)
    on_written: Callable[[OperandBlock], None] = lambda block: None
    """Called by the writer after a block of the result is in its store."""
    skip: Callable[[PlanStep], bool] = lambda step: False
    """True for a step that need not run, such as one whose result is stored according to the journal."""
    may_skip: bool = True
    """False where ``skip`` is False for every step."""
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
        self._bytes_read: Counter[int] = Counter()
        self._read_lock = threading.Lock()
        self._bytes_written = 0
        self._skipped = 0
        self._stall_s = self._compute_s = 0.0
        self._empty_memory: Any = None
        self._ready: queue.SimpleQueue[_AdmittedStep | None] = queue.SimpleQueue()
        self._completion = _StepCompletion()
        self._renumbering = None if options.recorder is None else _RenumberingRecorder(options.recorder)
        self._residents = [
            store.resident() if operand.in_place else None
            for operand, store in zip(plan.operands, stores, strict=True)
        ]

    def run(self) -> RunReport:
        """Run all steps; raises the first error once all threads have ended and all memory is released."""
        began = time.perf_counter()
        readers = ThreadPoolExecutor(self._options.readers, "accelera-read")
        writer = ThreadPoolExecutor(1, "accelera-write")
        pool = self._pool(readers)
        admitter = threading.Thread(target=self._admit, args=(pool,), name="accelera-admit", daemon=True)
        try:
            with _thread_limit_explained(self._plan.operation):
                admitter.start()
                steps = self._compute(writer)
        except BaseException as error:
            self._completion.fail(error)
            raise
        finally:
            if admitter.ident is not None:
                admitter.join()
            writer.shutdown()
            readers.shutdown(cancel_futures=True)
            pool.close()
            if self._empty_memory is not None:
                self._device.release(self._empty_memory)
        self._completion.check()
        return self._report(pool, steps, time.perf_counter() - began)

    def _pool(self, readers: ThreadPoolExecutor) -> BufferPool:
        """Begin the recording and return an empty pool; each pass sets its own policy."""
        plan, recorder = self._plan, self._options.recorder
        if isinstance(recorder, RunRecorder):
            recorder.begin({**plan.facts(), "device": self._device.name})
        return BufferPool(
            plan.capacity_bytes,
            create_policy("fifo"),
            self._device,
            readers=readers,
            recorder=self._renumbering,
            op=plan.operation,
        )

    def _passes(self) -> Iterator[Pass]:
        """Yield the passes that have steps to run, without the skipped steps."""
        for each in self._plan.pattern.passes():
            steps = each.steps() if self._control.may_skip else ()
            skipped = Counter(self._control.skip(step) for step in steps)
            self._skipped += skipped[True]
            if skipped[False] or not skipped:
                yield Pass(partial(self._remaining_steps, each))

    def _remaining_steps(self, each: Pass) -> Iterator[PlanStep]:
        return (step for step in each.steps() if not self._control.skip(step))

    def _admit(self, pool: BufferPool) -> None:
        """Admit accesses in order, keeping the plan's window of steps under way."""
        driver = _BufferPoolDriver(self, pool, self._completion, self._plan, self._renumbering)
        try:
            for index, step in walk(self._passes(), self._plan.window, driver):
                self._ready.put(_AdmittedStep(index, step, driver.take()))
        except BaseException as error:
            self._completion.fail(error)
        finally:
            self._ready.put(None)

    def _compute(self, writer: ThreadPoolExecutor) -> int:
        count = tiles = 0
        requested = time.perf_counter()
        while (admitted := self._ready.get()) is not None:
            self._completion.check()
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
            self._record_times(admitted, began - requested, ended - began)
            count += 1
            tiles += step.last
            self._finish(admitted, writer)
            self._report_progress(count, tiles)
            requested = time.perf_counter()
        self._completion.check()
        return count

    def _record_times(self, admitted: _AdmittedStep, waited_s: float, compute_s: float) -> None:
        self._stall_s += waited_s
        self._compute_s += compute_s
        if isinstance(self._options.recorder, RunRecorder):
            self._options.recorder.took(admitted.index, compute_s, admitted.step.flops)

    def _finish(self, admitted: _AdmittedStep, writer: ThreadPoolExecutor) -> None:
        if admitted.step.last:
            writer.submit(self._write, admitted).add_done_callback(self._completion.watch)
        else:
            self._completion.done(admitted.index)

    def _write(self, admitted: _AdmittedStep) -> None:
        block = admitted.step.write
        if block.held_bytes:
            memory = admitted.buffers[block.id].memory
            operand = self._plan.operands[block.operand]
            self._bytes_written += self._mover.write(self._stores[block.operand], block, operand, memory)
        self._control.on_written(block)
        self._completion.done(admitted.index)

    def load(self, block: OperandBlock) -> Callable[[Any], int]:
        """Return a loader that fills a buffer with ``block``."""

        def fill(memory: Any) -> int:
            operand = self._plan.operands[block.operand]
            moved = self._mover.read(self._stores[block.operand], block, operand, memory)
            with self._read_lock:
                self._bytes_read[block.operand] += moved
            return moved

        return fill

    def _array(self, block: OperandBlock, buffers: dict[int, Buffer]) -> Any:
        resident = self._residents[block.operand]
        if resident is not None:
            return resident[block.region]
        memory = buffers[block.id].wait() if block.held_bytes else self._empty()
        return self._mover.view(memory, block, self._plan.operands[block.operand])

    def _empty(self) -> Any:
        """Return the zero-byte buffer that all blocks without elements share."""
        if self._empty_memory is None:
            self._empty_memory = self._device.allocate(0)
        return self._empty_memory

    def _report_progress(self, count: int, tiles: int) -> None:
        done, total = count + self._skipped, self._plan.forecast.steps
        moved = sum(self._bytes_read.values()) + self._bytes_written
        self._control.observer.on_progress(Progress(done, total, tiles, moved, self._plan.moved_bytes))

    def _report(self, pool: BufferPool, steps: int, seconds: float) -> RunReport:
        names = [operand.name for operand in self._plan.operands[:-1]]
        return RunReport(
            plan=self._plan,
            device=self._device.name,
            seconds=seconds,
            bytes_read={name: self._bytes_read[index] for index, name in enumerate(names)},
            bytes_written=self._bytes_written,
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
class _AdmittedStep:
    """A step whose blocks are pinned, and loading or loaded."""

    index: int
    step: PlanStep
    buffers: dict[int, Buffer]


class _RenumberingRecorder:
    """Passes the pool's events on with buffer numbers that are unique in the run.

    The pool uses its numbers again in every pass.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._last_events: dict[int, Access] = {}
        """Latest event per number of the pool, with the number of the run."""
        self._count = 0

    def record(self, access: Access) -> None:
        """Pass an event on, renumbered."""
        last_event = self._last_events.get(access.buffer)
        number = self._count if last_event is None else last_event.buffer
        self._count += last_event is None
        found = replace(access, buffer=number)
        self._recorder.record(found)
        if access.kind is Kind.FREE:
            self._last_events.pop(access.buffer, None)
        else:
            self._last_events[access.buffer] = found

    def free(self, buffer: int, step: int) -> None:
        """Record that a buffer which left the pool before is freed."""
        if buffer in self._last_events:
            last_event = self._last_events.pop(buffer)
            self._recorder.record(replace(last_event, step=step, kind=Kind.FREE))


class _BufferPoolDriver:
    """``PoolDriver`` that drives the buffer pool of a run."""

    def __init__(
        self,
        runner: PlanRunner,
        pool: BufferPool,
        completion: _StepCompletion,
        plan: Plan,
        recorder: _RenumberingRecorder | None,
    ) -> None:
        self._runner = runner
        self._plan = plan
        self._dtypes = [str(operand.held_dtype) for operand in plan.operands]
        self._recorder = recorder
        self._numbers = BufferNumbers()
        self._pool = pool
        self._completion = completion
        self._pinned: dict[int, Buffer] = {}

    def begin(self, following: Pass, held: Collection[int], step: int) -> None:
        plan = self._plan
        for block, number in self._numbers.items():
            if block not in held:
                self._free_number(number, step)
        self._numbers.keep(held, again=True)
        steps, room = following.steps(), plan.capacity_bytes
        self._pool.renew(policy_of(steps, plan.operands, plan.window, plan.eviction, room, plan.operation))

    def _free_number(self, number: int, step: int) -> None:
        if number in self._pool:
            self._pool.free(number, step=step)
        elif self._recorder is not None:
            self._recorder.free(number, step)

    def wait(self, step: int) -> None:
        self._completion.wait_for(step)

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


@contextmanager
def _thread_limit_explained(op: str) -> Iterator[None]:
    """Raise StateError where the system starts no further thread, which Python reports as RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        raise StateError(
            f"[{op}] the system starts no further thread; raise the limit of processes (ulimit -u) or of "
            "the container, or end other work"
        ) from error


class _StepCompletion:
    """Tracks which steps are complete, and the first error."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._completed: set[int] = set()
        self._first_pending = 0
        self._error: BaseException | None = None

    def done(self, index: int) -> None:
        """Mark step ``index`` as computed and stored."""
        with self._condition:
            self._completed.add(index)
            while self._first_pending in self._completed:
                self._completed.remove(self._first_pending)
                self._first_pending += 1
            self._condition.notify_all()

    def wait_for(self, index: int) -> None:
        """Wait until step ``index`` and all before it are done; raises an error of the run meanwhile."""
        with self._condition:
            self._condition.wait_for(lambda: self._first_pending > index or self._error is not None)
        self.check()

    def fail(self, error: BaseException) -> None:
        """Make every waiter raise ``error``; the first error stays."""
        with self._condition:
            self._error = self._error or error
            self._condition.notify_all()

    def watch(self, future: Future[None]) -> None:
        """Fail with the error of ``future``, if it has one."""
        error = future.exception()
        if error is not None:
            self.fail(error)

    def check(self) -> None:
        """Raise the first error, if there is one."""
        if self._error is not None:
            raise self._error
