"""``StrategyManager``: batches of work on CPU, GPU or both; the CPU does what a GPU cannot (seed 002)."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar, final

from accelera._logs import configure_logging
from accelera.errors import ArgumentError, DeviceError
from accelera.execution.arguments import (
    Fallback,
    OnError,
    Rerun,
    WorkloadProfile,
    check_function,
    check_profile,
    check_workers,
    listed,
)
from accelera.execution.executors.auto import AutoCpuExecutor, CpuName, cpu_executor, default_cpu, inline_of
from accelera.execution.executors.device import DeviceLane, default_gpu
from accelera.execution.executors.lanes import (
    CpuExecutor,
    GpuExecutor,
    check_executors,
    is_available,
    lane_of,
    run_on_lanes,
)
from accelera.execution.futures import StrategyExecutor, mapped, run_in_thread, starmapped
from accelera.execution.hardware.capabilities import HardwareCapabilities
from accelera.execution.hardware.cpu_share import usable_cores
from accelera.execution.hardware.load import SystemLoad
from accelera.execution.observability.observer import Observer, checked_observers
from accelera.execution.observability.telemetry import ManagerTotals, Telemetry, is_logged, log_hardware
from accelera.execution.request import (
    ExecuteRequest,
    StreamRequest,
    build_result,
    quick_result,
    result_from,
    take_failures,
    without_frames,
)
from accelera.execution.result import ExecutionResult, ManagerStats, TaskFailure
from accelera.execution.selector import StrategySelector
from accelera.execution.strategy.memory_limit import UNLIMITED, AdmissionControl, ConcurrencyLimit
from accelera.execution.strategy.strategy import (
    NO_GPU,
    Decision,
    ExecutionStrategy,
    StrategyKind,
    default_strategy,
    named_strategy,
    select_strategy,
    stream_decision,
)
from accelera.execution.streaming.stream import TaskStream, open_stream
from accelera.execution.streaming.thread_bound import is_thread_bound
from accelera.execution.tasks.batch import Batch
from accelera.execution.tasks.retry import Retry
from accelera.memory._internal import LEDGER
from accelera.settings import StrategyName, current_value
from accelera.units import format_bytes, parse_limit

Task = TypeVar("Task")
Output = TypeVar("Output")

Begun = tuple[list[Any], list[TaskFailure], float]
"""Outputs of the first tasks, the failure of the next one if it failed, and the seconds they took."""


@final
class StrategyManager:
    """Runs batches of independent tasks where they are done soonest.

    Parameters
    ----------
    cpu
        Carries tasks out on the CPU: a ``CpuExecutor`` of seed 002, or one of ours; ``"threads"``, or
        ``"processes"`` for worker processes of its own; None: an ``AutoCpuExecutor`` that all such managers
        share, which uses threads.
    gpu
        Carries tasks out on a GPU: a ``GpuExecutor``; None: there is none.
    strategy
        Where work runs, or ``"auto"``, ``"cpu"``, ``"gpu"``, ``"hybrid"``; ``Auto`` decides for every batch.
    observers
        Hear of everything that happens.
    learn
        Whether the speed of both devices is measured, kept from run to run, and used; without, the same
        batch gets the same decision for ever: that of the seed's tree.
    budget
        Bytes of memory, or text such as ``"8GiB"``, above 0; None: no limit. With a GPU: what a task may
        take on the CPU which does not fit the GPU even alone; one that needs more fails with
        ``TaskTooLargeError``, and nothing else is held to it. Without a GPU, and always with
        ``StrategyManager.auto``: what all tasks under way may take together, where a profile says what each
        takes.

    Raises
    ------
    TypeError
        When an executor is a class or lacks a method, or an observer or a strategy is none.
    UnknownNameError
        When no strategy has that name.
    ValueError
        When the budget is no size, or 0, or both executors have the same name.
    """

    def __init__(
        self,
        cpu: CpuExecutor | CpuName | None = None,
        gpu: GpuExecutor | None = None,
        strategy: ExecutionStrategy | StrategyName = ExecutionStrategy.Auto,
        *,
        observers: Sequence[Observer] = (),
        learn: bool = True,
        budget: int | float | str | None = None,
    ) -> None:
        asked_cpu = cpu
        cpu = cpu_executor(cpu)
        check_executors(cpu, gpu)
        strategy = named_strategy(strategy)
        self._observers = checked_observers(observers)
        self._settings = asked_cpu, gpu, strategy, self._observers, learn, budget
        self._cpu = lane_of(cpu)
        self._inline = inline_of(cpu)
        budget_bytes = None if budget is None else parse_limit("StrategyManager", budget)
        name = getattr(gpu, "name", "gpu")
        if gpu is not None and name == self._cpu.name:
            raise ArgumentError(
                f"[StrategyManager] both executors are called {name!r}, and results tell them apart by their"
                " names: give the GPU's another `name`"
            )
        self._gpu = None if gpu is None else DeviceLane(gpu, name, budget_bytes=budget_bytes)
        self._selector = StrategySelector.for_lanes(strategy, cpu, self._cpu.name, self._gpu, learn=learn)
        alone = gpu is None and budget_bytes is not None
        self._admission = AdmissionControl(budget_bytes, _workers_of(cpu)) if alone else None
        self._strategy = strategy
        self._totals = ManagerTotals()
        configure_logging()
        log_hardware(None if gpu is None else functools.partial(is_available, gpu))
        if self._gpu is not None and gpu is not None:
            Telemetry(self._observers).uses(self._gpu.name, gpu.memory_available)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the settings: a copy, as in a worker process, has measured and counted nothing yet."""
        return _with_settings, self._settings

    def __repr__(self) -> str:
        gpu = "" if self._gpu is None else f", gpu={self._gpu.name!r}"
        return f"StrategyManager(cpu={self._cpu.name!r}{gpu}, strategy={self._strategy})"

    @property
    def strategy(self) -> ExecutionStrategy:
        """The strategy that the manager was given."""
        return self._strategy

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices in results: the CPU's, then the GPU's if there is one."""
        return (self._cpu.name,) if self._gpu is None else (self._cpu.name, self._gpu.name)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Observers of all batches and streams."""
        return self._observers

    @classmethod
    def auto(
        cls,
        budget: int | float | str | None = None,
        *,
        strategy: ExecutionStrategy | StrategyName | None = None,
        workers: int | None = None,
        device: str | None = None,
        observers: Sequence[Observer] = (),
        learn: bool = True,
    ) -> StrategyManager:
        """Return a manager with what this machine has.

        Parameters
        ----------
        budget
            The most memory that tasks under way may take on CPU and GPU together, such as ``"8GiB"`` or
            ``"50%"`` of the RAM, where a profile says what each takes; a task that takes more alone is
            refused with ``TaskTooLargeError`` before any begins. Every batch keeps to it by itself. None:
            ``ACCELERA_BUDGET``; without that the CPU's tasks keep within what is free, the GPU's within its
            own memory. ``StrategyManager(cpu, gpu, budget=…)`` is of single tasks instead.
        strategy
            Where work runs: an ``ExecutionStrategy``, or ``"auto"``, ``"cpu"``, ``"gpu"``, ``"hybrid"``;
            None: ``ACCELERA_STRATEGY``. Where there is no GPU everything runs on the CPU.
        workers
            Tasks at once on the CPU; None: ``ACCELERA_WORKERS``, else the usable cores.
        device
            The GPU, such as ``"cuda:1"``, or ``"sim:256MiB"`` for one that is not there; None:
            ``ACCELERA_DEVICE``, else the first accelerator, if any.
        observers, learn
            As for ``StrategyManager``.

        Raises
        ------
        UnknownNameError, ValueError
            When an option cannot be.
        DeviceError
            When a device is named that this machine has not.
        """
        check_workers("StrategyManager.auto", workers)
        workers = current_value("workers") if workers is None else workers
        cpu = default_cpu() if workers is None else AutoCpuExecutor(workers)
        admission = AdmissionControl(budget, cpu.workers)
        given = admission.budget_now()
        limit_bytes = given.limit_bytes if given.is_given else None
        chosen = default_strategy(strategy)
        gpu = None if chosen.kind is StrategyKind.CPU_ONLY else default_gpu(device, limit_bytes)
        manager = cls(cpu, gpu, chosen, observers=observers, learn=learn, budget=limit_bytes)
        manager._admission = admission
        return manager

    @classmethod
    def cpu_only(cls, cpu: CpuExecutor | CpuName | None = None) -> StrategyManager:
        """Return a manager without a GPU."""
        return cls(cpu)

    @classmethod
    def new(cls, cpu: CpuExecutor, gpu: GpuExecutor) -> StrategyManager:
        """Return a manager with both; the same as ``StrategyManager(cpu, gpu)``."""
        return cls(cpu, gpu)

    @classmethod
    def with_strategy(
        cls, cpu: CpuExecutor, gpu: GpuExecutor | None, strategy: ExecutionStrategy
    ) -> StrategyManager:
        """Return a manager that does not decide itself."""
        return cls(cpu, gpu, strategy)

    @staticmethod
    def select_strategy(
        profile: WorkloadProfile, hardware: HardwareCapabilities, load: SystemLoad
    ) -> ExecutionStrategy:
        """Return what the decision tree of seed 002 says; a pure function of its arguments."""
        return select_strategy(profile, hardware, load)

    def explain(self, profile: WorkloadProfile, fn: Callable[..., Any] | None = None) -> Decision:
        """Return what would be decided for such a batch now, by which rule, and why.

        Predicted seconds need ``fn`` and ten samples of each device; the reasons say what is missing.
        """
        check_profile("explain", profile)
        decision = self._selector.explain(profile.task_count, profile, fn)
        advice = None if fn is None or decision.strategy.kind is StrategyKind.GPU_ONLY else self._advice(fn)
        if advice is not None:
            decision = replace(decision, reasons=(*decision.reasons, advice))
        size = profile.memory_per_task
        if decision.strategy.uses_gpu and self._gpu is not None and self._gpu.fits_none(size):
            reason = (
                f"a task of {format_bytes(size)} is more than the GPU has free: each is tried alone there"
            )
            decision = replace(decision, reasons=(*decision.reasons, reason))
        return self._admitted(decision, profile)[0]

    def _advice(self, fn: Callable[..., Any]) -> str | None:
        """Return a recommendation of worker processes for ``fn``; None where there is none."""
        return self._cpu.recommendation(fn) if isinstance(self._cpu, AutoCpuExecutor) else None

    def execute(
        self,
        tasks: Iterable[Task],
        fn: Callable[[Task], Output],
        profile: WorkloadProfile | None = None,
        *,
        on_error: OnError = "raise",
        rerun: Rerun = "on_failure",
        fallback: Fallback = "unfinished",
        retry: Retry | None = None,
        timeout: float | None = None,
        cancel: threading.Event | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> ExecutionResult[Output]:
        """Run ``fn`` on every task and return the outputs in the order of the tasks.

        Parameters
        ----------
        tasks
            Independent tasks; an iterator is read whole.
        fn
            Returns the output of one task; a ``Kernel`` may have a batched form for GPUs as well.
        profile
            What is known of the batch; the number of tasks is always their real one.
        on_error
            What a task whose function raises does to the batch: ``"raise"`` ends it with the user's own
            exception, ``"collect"`` leaves its ``TaskFailure`` in its place, ``"skip"`` leaves it out.
        rerun
            ``"freely"``: a task that is late on one side may be begun on the other as well (``fn`` is pure);
            ``"never"``: not even after a failure.
        fallback
            What the CPU does when a GPU fails: what is unfinished, ``"all"`` again, or ``"never"`` anything.
        retry
            When a task that raised is tried again; None: never.
        timeout
            Seconds after which nothing more is begun or waited for.
        cancel
            An event that ends the batch early when it is set; what is done is returned, and a task or an
            executor that does not end within half a second is left behind.
        progress
            Called with the number of tasks done and of all.

        Raises
        ------
        Exception
            The user's own, with a note of its task, where ``on_error`` is ``"raise"``.
        UnfinishedError
            When the time is over; its ``result`` has what was done. Only with ``on_error="raise"``.
        DeviceError, DeviceMemoryError
            When a GPU fails and nothing may fall back; also when there is none, the strategy is ``GpuOnly``
            and ``fallback`` is ``"never"``.
        TypeError
            When an option, or ``fn``, is of no kind that fits.
        """
        check_function("execute", fn)
        request = ExecuteRequest(profile, on_error, rerun, fallback, retry, timeout, cancel, progress)
        # This frame may be kept by an exception: it must have neither the list of tasks nor the result.
        return without_frames(
            self._execute(tasks if isinstance(tasks, (tuple, range)) else listed(tasks), fn, request)
        )

    def stream(
        self,
        tasks: Iterable[Task],
        fn: Callable[[Task], Output],
        profile: WorkloadProfile | None = None,
        *,
        ordered: bool = True,
        window: int | str | None = None,
        on_error: OnError = "raise",
        rerun: Rerun = "on_failure",
        retry: Retry | None = None,
        timeout: float | None = None,
        cancel: threading.Event | None = None,
    ) -> TaskStream[Output]:
        """Yield the index and the output of every task, however many there are, in bounded memory.

        Parameters
        ----------
        tasks
            Drawn by a separate thread while the window is not full; may be endless, and may block. A source
            that reads a SQLite connection or a ``threading.local`` is read by the thread that takes the
            outputs.
        fn
            Returns the output of one task.
        profile
            Its ``memory_per_task`` is what a window in bytes reckons with, else the largest task and output
            so far.
        ordered
            Whether outputs come in the order of their tasks, or as soon as they are there.
        window
            How much may be drawn and not yet taken: tasks, or memory such as ``"256MiB"``; None: 1024 tasks.
        on_error
            What a task whose function raises does to the stream: ``"raise"`` ends it with the user's own
            exception where the output would have come, ``"collect"`` yields its ``TaskFailure`` there,
            ``"skip"`` leaves it out.
        rerun
            ``"never"``: no task is begun twice, not even after a failure of its device. ``"freely"`` is as
            ``"on_failure"``: only a batch has tasks that are late taken over.
        retry
            When a task that raised is tried again; None: never.
        timeout
            Seconds from now after which no output is waited for, and what is under way is left behind.
        cancel
            An event that ends the stream early when it is set; what does not end within half a second is left
            behind.

        Raises
        ------
        UnknownNameError, ValueError, TypeError
            When an option is none, or ``fn`` cannot be called.
        UnfinishedError
            From the stream, when the time is over; its ``result`` is the stream's report.
        """
        check_function("stream", fn)
        request = StreamRequest(
            profile, on_error, rerun, retry, timeout, cancel, ordered=ordered, window=window
        )
        decision, request.limit = self._admitted(
            stream_decision(self._strategy, gpu=self._gpu is not None), profile
        )
        learn = functools.partial(self._selector.learn, fn, profile)
        lanes = self._cpu, self._gpu
        return open_stream(tasks, fn, request, decision, lanes, self._observers, learn, self._totals.count)

    def map(
        self,
        fn: Callable[..., Output],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        **options: Any,
    ) -> Iterator[Output]:
        """Return the outputs of ``fn`` in the order of its arguments, made as they are read.

        As with the built-in ``map`` nothing is begun before the first output is asked for, and the iterables
        need not end. ``as_executor().map`` does everything at once, whether or not it is read.

        Parameters
        ----------
        fn
            Called with one argument of each iterable, until the shortest ends.
        iterables
            Drawn as there is room for them: ``window`` tasks are under way or wait to be read.
        timeout
            Seconds from now in which an output must be there; None: waits for ever.
        chunksize
            Has no effect, as in ``ThreadPoolExecutor.map``: pieces are sized by the time their tasks take.
        options
            Those of ``stream``: ``profile``, ``ordered``, ``window``, ``on_error``, ``rerun``, ``retry``,
            ``cancel``.

        Raises
        ------
        Exception
            From the iterator, the user's own, where ``on_error`` is ``"raise"``.
        UnfinishedError
            From the iterator, a ``TimeoutError``: when the time is over.
        TypeError, ValueError
            When ``fn`` cannot be called, there is no iterable, or an option is none.
        """
        stream = functools.partial(self.stream, timeout=timeout, **options)
        return mapped(stream, fn, iterables, chunksize)

    def starmap(
        self,
        fn: Callable[..., Output],
        tasks: Iterable[Iterable[Any]],
        *,
        timeout: float | None = None,
        chunksize: int = 1,
        **options: Any,
    ) -> Iterator[Output]:
        """Return the outputs of ``fn(*task)`` for every task, as ``map`` does with one argument of each."""
        stream = functools.partial(self.stream, timeout=timeout, **options)
        return starmapped(stream, fn, tasks, chunksize)

    def stats(self) -> ManagerStats:
        """Return what has been done so far; may be asked at any time, by any thread."""
        return self._totals.stats()

    async def aexecute(
        self, tasks: Iterable[Task], fn: Callable[[Task], Output], *args: Any, **options: Any
    ) -> ExecutionResult[Output]:
        """Do as ``execute`` does while other coroutines run; when cancelled, no further task is begun."""
        if is_thread_bound(tasks):
            tasks = listed(tasks)
        return await run_in_thread(functools.partial(self.execute, tasks, fn, *args), options)

    def as_executor(self, workers: int | None = None) -> StrategyExecutor:
        """Return this manager as an ``Executor`` of ``concurrent.futures``; so many calls run at once."""
        check_workers("as_executor", workers)
        return StrategyExecutor(self, usable_cores() if workers is None else workers)

    def _execute(
        self, tasks: Sequence[Any], function: Callable[[Any], Any], request: ExecuteRequest
    ) -> ExecutionResult[Any]:
        """Decide, begin in the calling thread, run the rest on the lanes, build the result."""
        if request.fallback == "never":
            self._require_gpu()
        began_s = time.perf_counter()
        decision = self._decide(tasks, function, request)
        telemetry = self._telemetry(decision, tasks) if self._observers or is_logged() else None
        try:
            begun = self._begin_inline(tasks, function, request, decision)
            if telemetry is None:
                if len(begun[0]) == len(tasks):
                    quick = self._quick_result(function, request, decision, begun, began_s)
                    self._report_missing_gpu(quick)
                    return quick
                telemetry = self._telemetry(decision, tasks)
            result = self._run_rest(tasks, function, request, decision, telemetry, begun, began_s)
            if not (result.failures or telemetry.retries):
                self._selector.learn(function, request.profile, telemetry.samples, result.execution_time)
        except BaseException as error:
            telemetry = telemetry or Telemetry()
            telemetry.failed(error, time.perf_counter() - began_s, self._totals)
            raise
        self._report_missing_gpu(result)
        telemetry.done(result, self._totals)
        return result

    def _report_missing_gpu(self, result: ExecutionResult[Any]) -> None:
        """Add an error where the GPU was to work, or could have been chosen, and was not usable."""
        gpu, decision = self._gpu, result.decision
        uses_gpu = decision.rule == NO_GPU.rule or decision.strategy.kind is not StrategyKind.CPU_ONLY
        if gpu is None or not uses_gpu or result.errors or not result.outputs:
            return
        if gpu.name not in result.per_device and not is_available(gpu.executor):
            text = f"[{gpu.name}] is_available() returned False: the CPU did all tasks"
            result.errors = (DeviceError(text),)

    def _decide(
        self, tasks: Sequence[Any], function: Callable[[Any], Any], request: ExecuteRequest
    ) -> Decision:
        """Return where the batch runs; the request gets the limit that the memory sets."""
        repeats = request.repeats(function)
        decision = self._selector.decide(len(tasks), request.profile, function, repeats=repeats)
        if tasks:
            decision, request.limit = self._admitted(decision, request.profile)
        return decision

    def _telemetry(self, decision: Decision, tasks: Sequence[Any]) -> Telemetry:
        telemetry = Telemetry(self._observers)
        telemetry.decided(decision, len(tasks))
        return telemetry

    def _begin_inline(
        self,
        tasks: Sequence[Any],
        function: Callable[[Any], Any],
        request: ExecuteRequest,
        decision: Decision,
    ) -> Begun:
        """Run the first tasks in the calling thread, where that is the soonest.

        Where one raised, the list has its failure: taking it out leaves no reference to it here.
        """
        if self._inline is None or not request.plain or decision.strategy.kind is not StrategyKind.CPU_ONLY:
            return [], [], 0.0
        outputs, error, seconds = self._inline(function, tasks)
        return outputs, [] if error is None else [TaskFailure(len(outputs), error, self._cpu.name)], seconds

    def _quick_result(
        self,
        function: Callable[[Any], Any],
        request: ExecuteRequest,
        decision: Decision,
        begun: Begun,
        began_s: float,
    ) -> ExecutionResult[Any]:
        """Return the result of a batch that was done at once and that nobody observes: no telemetry."""
        outputs, _, seconds = begun
        result = quick_result(self._cpu.name, outputs, seconds, decision, began_s)
        self._totals.count_done(result.per_device)
        samples = [(self._cpu.name, len(outputs), seconds)]
        self._selector.learn(function, request.profile, samples, result.execution_time)
        return result

    def _run_rest(
        self,
        tasks: Sequence[Any],
        function: Callable[[Any], Any],
        request: ExecuteRequest,
        decision: Decision,
        telemetry: Telemetry,
        begun: Begun,
        began_s: float,
    ) -> ExecutionResult[Any]:
        """Run on the lanes what was not done in the calling thread; return the result of all."""
        outputs, failed, seconds = begun
        if outputs or failed:
            whole = len(outputs) == len(tasks)
            telemetry.ran(self._cpu.name, len(outputs), seconds, whole=whole, counted=True)
        if len(outputs) == len(tasks):
            return result_from(outputs, (), decision, telemetry, began_s)
        failure = failed.pop() if failed else None
        batch = request.batch(tasks, function, telemetry, decision, outputs, failure)
        del failure  # an exception that is kept must not find itself in this call
        reservation = LEDGER.reserve("execute", "executor", request.reserved_bytes())
        with reservation, reservation.covering() if reservation.nbytes else nullcontext():
            run_on_lanes(batch, self._cpu, self._gpu, decision.strategy)
        if batch.stopped_by == "device" and request.fallback == "all":
            batch = self._run_again_on_cpu(batch, tasks, request, decision)
        return build_result(batch, decision, request.on_error, began_s)

    def _run_again_on_cpu(
        self, batch: Batch, tasks: Sequence[Any], request: ExecuteRequest, decision: Decision
    ) -> Batch:
        """Do everything again without the GPU that ended ``batch``."""
        batch.close()
        take_failures(batch)
        batch = request.batch(tasks, batch.function, batch.telemetry, decision.on_cpu(), [])
        run_on_lanes(batch, self._cpu, None, ExecutionStrategy.CpuOnly)
        return batch

    def _require_gpu(self) -> None:
        if self._gpu is None and self._strategy.kind is StrategyKind.GPU_ONLY:
            raise DeviceError(
                "[execute] fallback='never' with GpuOnly, and the manager has no GPU: nothing may run on the"
                " CPU instead; give the manager a GPU, or fallback='unfinished'"
            )

    def _admitted(
        self, decision: Decision, profile: WorkloadProfile | None
    ) -> tuple[Decision, ConcurrencyLimit]:
        if self._admission is None or profile is None:
            return decision, UNLIMITED
        return self._admission.admitted(decision, profile.memory_per_task)


def _with_settings(
    cpu: Any, gpu: Any, strategy: Any, observers: Sequence[Observer], learn: bool, budget: Any
) -> StrategyManager:
    """Return a manager as a pickled one was made."""
    return StrategyManager(cpu, gpu, strategy, observers=observers, learn=learn, budget=budget)


def _workers_of(cpu: CpuExecutor) -> int:
    workers = getattr(cpu, "workers", None)
    return workers if isinstance(workers, int) else usable_cores()
