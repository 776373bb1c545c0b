"""Leases on a node with a GPU: both sides take from them, what the GPU fails at is not lost; without Ray."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from accelera.errors import UnknownOutcomeError
from accelera.execution import RayExecutor, Retry, StrategyManager
from accelera.execution._internal import DeviceShare, Kernel
from accelera.execution.cluster import lease, scheduler
from accelera.execution.cluster.contract import (
    Cause,
    GpuReport,
    Lease,
    LeaseLost,
    LeasePart,
    Node,
    node_seconds,
    pack,
    unpack,
)
from accelera.execution.cluster.lease import read_in_flight
from accelera.execution.cluster.node import PATIENCE, Agent, LearnedRates
from accelera.execution.executors import device
from accelera.execution.faults.breaker import Breaker, BreakerState
from accelera.execution.strategy.rates import DeviceRates
from accelera.testing import FakeGpu, LocalCluster, sticky
from accelera.testing._internal import out_of_memory, transient
from tests.execution.stand_ins import Clock, Meeting, blanked, run_schedules
from tests.threads import run_in_threads

KNOWN: dict[int, Any] = {}

LEASE = f"gpu-test-{os.getpid()}"
"""Its marks lie where those of other runs of the tests lie."""

pytestmark = pytest.mark.usefixtures("own_temporary_files")


@pytest.fixture(autouse=True)
def _patient_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases whose time is not over while both sides wait for one another, however slow the machine is."""
    monkeypatch.setattr(scheduler, "TRIAL_S", 600.0)
    monkeypatch.setattr(scheduler, "LIMIT_S", 600.0)


class Here:
    """A kernel that is found again in this process rather than copied."""

    def __init__(self, function: Callable[[Any], Any], batch: Callable[..., Any] | None = None) -> None:
        kernel = Kernel(function)
        if batch is not None:
            kernel.gpu_batch(batch)
        KNOWN[id(kernel)] = kernel
        self._key = id(kernel)

    def __call__(self, task: int) -> Any:
        return KNOWN[self._key](task)

    def __reduce__(self) -> Any:
        return known, (self._key,)


def known(key: int) -> Any:
    return KNOWN[key]


class Nodes(LocalCluster):
    """Nodes with a GPU each, two processors, and a way to die after so many parts of a lease."""

    def __init__(self, *gpus: FakeGpu, lives: Callable[[int], int | None] = lambda number: None) -> None:
        super().__init__(len(gpus))
        self.agents = [Agent(2, gpu) for gpu in gpus]
        self._agents = {node.id: agent for node, agent in zip(self._nodes, self.agents, strict=True)}
        self._lives = lives

    def _run(self, node: Node, lease: Lease, lost: LeaseLost | None) -> None:
        parts_left = self._lives(len(self.leases))
        if parts_left is None:
            super()._run(node, lease, lost)
            return
        agent = self._agents[node.id]
        for part in agent.run(lease):
            if not parts_left or part.last:
                agent.stop(lease.id)
                break
            parts_left -= 1
            self._events.put((lease.id, part))
        self._events.put((lease.id, LeaseLost(Cause.NODE, "unplugged")))


def a_bit(task: int) -> int:
    time.sleep(0.001)
    return task


def after(meeting: Callable[[], object], function: Callable[[Any], Any] = a_bit) -> Callable[[Any], Any]:
    """Return ``function`` as it is run when ``meeting`` is over."""

    def waits(task: Any) -> Any:
        meeting()
        return function(task)

    return waits


def lease_of(count: int, function: Callable[[Any], Any], **options: Any) -> Lease:
    given = {"limit_s": 600.0, **options}
    return Lease(LEASE, 100, count, pack(range(count)), pack(function), **given)


def parts_of(agent: Agent, lease: Lease) -> list[LeasePart]:
    return list(agent.run(lease))


def outcomes_of(parts: Sequence[LeasePart]) -> dict[int, Any]:
    pairs = [
        (index, outcome)
        for part in parts
        for start, _, packed in part.outcomes
        for index, outcome in enumerate(unpack(packed), start)
    ]
    assert len({index for index, _ in pairs}) == len(pairs), "no outcome comes twice"
    return dict(pairs)


def on_gpu(parts: Sequence[LeasePart]) -> int:
    return sum(part.gpu.tasks for part in parts if part.gpu is not None)


def run(cluster: Nodes, count: int, function: Callable[[Any], Any], **options: Any) -> Any:
    return StrategyManager(cpu=RayExecutor(cluster)).execute(range(count), function, **options)


def test_both_sides_of_a_node_take_part_and_are_told_apart() -> None:
    meet = Meeting(6)
    gpus = [FakeGpu(task_s=1e-4, faults=meet) for _ in range(2)]
    result = run(Nodes(*gpus), 600, Here(after(meet)))
    assert result.outputs == list(range(600))
    assert set(result.per_device) == {"node 0", "node 0 fake", "node 1", "node 1 fake"}
    assert sum(share.tasks for share in result.per_device.values()) == 600
    assert not result.fallback_occurred
    assert (result.oom_splits, result.errors) == (0, ())


def test_the_form_for_many_at_once_is_used_on_the_gpu() -> None:
    def at_once(tasks: Sequence[int], name: str) -> list[str]:
        return [f"{task} on {name}" for task in tasks]

    meet = Meeting(3)
    kernel = Here(after(meet, lambda task: f"{a_bit(task)} on cpu"), at_once)
    result = run(Nodes(FakeGpu(task_s=1e-4, faults=meet)), 300, kernel)
    assert [int(output.split()[0]) for output in result.outputs] == list(range(300))
    assert {output.partition(" ")[2] for output in result.outputs} == {"on cpu", "on fake"}


def test_memory_that_runs_out_is_bisected_on_the_node_and_told() -> None:
    meet = Meeting(3)
    gpu = FakeGpu(max_batch=3, faults=meet)
    result = run(Nodes(gpu), 200, Here(after(meet)))
    assert result.outputs == list(range(200))
    assert result.oom_splits > 0
    assert "out of memory" not in str(result.errors)
    assert not result.fallback_occurred
    assert result.per_device["node 0 fake"].tasks > 0
    assert min(gpu.failed) > 3


@pytest.mark.parametrize("fault", [transient, sticky])
def test_a_gpu_that_fails_is_left_alone_and_its_node_goes_on(fault: Callable[[], Exception]) -> None:
    meet = Meeting(3)
    gpu = FakeGpu(faults=lambda call: meet() or fault())
    cluster = Nodes(gpu)
    with_clock(cluster.agents[0], lambda: 0.0)
    result = run(cluster, 200, Here(after(meet)))
    assert result.outputs == list(range(200))
    assert result.fallback_occurred
    assert set(result.per_device) == {"node 0"}
    assert "CUDA error" in str(result.errors[0])
    assert len(gpu.calls) <= 3


def with_clock(agent: Agent, clock: Callable[[], float]) -> Breaker:
    assert agent._gpu is not None
    agent._gpu.breaker = Breaker(clock, random.Random(0))
    return agent._gpu.breaker


def test_a_gpu_that_was_left_alone_is_tried_again_by_later_leases() -> None:
    now_s, back = [0.0], threading.Event()

    def fault(call: int) -> Exception | None:
        if call < 3:
            return transient()
        back.set()
        return None

    agent = Agent(2, FakeGpu(faults=fault))
    breaker = with_clock(agent, lambda: now_s[0])
    function = Here(lambda task: now_s[0] == 0.0 or back.wait(300), lambda tasks, name: [True] * len(tasks))
    while breaker.state is BreakerState.CLOSED:
        assert len(outcomes_of(parts_of(agent, lease_of(100, function)))) == 100
    now_s[0] = 1000.0
    parts = parts_of(agent, lease_of(100, function))
    assert set(outcomes_of(parts).values()) == {True}
    assert on_gpu(parts) > 0


def test_an_exception_is_the_users_wherever_it_was_raised() -> None:
    def at_once(tasks: Sequence[int], name: str) -> list[int]:
        return [bad_at_77(task) for task in tasks]

    def bad_at_77(task: int) -> int:
        if task == 77:
            raise KeyError(task)
        return a_bit(task)

    result = run(Nodes(FakeGpu()), 150, Here(bad_at_77, at_once), on_error="collect")
    assert result.failed_indices == (77,)
    assert isinstance(result.failures[0].error, KeyError)
    assert [output for output in blanked(result.outputs) if output is not None] == [
        n for n in range(150) if n != 77
    ]
    assert not result.fallback_occurred


def test_what_only_the_gpu_form_cannot_do_the_processors_do() -> None:
    def at_once(tasks: Sequence[int], name: str) -> list[int]:
        if any(task < 3 for task in tasks):
            raise ValueError("too small for this form")
        return list(tasks)

    meet = Meeting(3)
    result = run(Nodes(FakeGpu(faults=meet)), 100, Here(after(meet), at_once))
    assert result.outputs == list(range(100))
    assert result.fallback_occurred
    assert {str(error) for error in result.errors} == {"too small for this form"}


def test_retries_are_told() -> None:
    seen: list[int] = []

    def flaky(task: int) -> int:
        seen.append(task)
        if task % 10 == 0 and seen.count(task) == 1:
            raise OSError(task)
        return a_bit(task)

    result = run(Nodes(FakeGpu()), 100, Here(flaky), retry=Retry(times=1))
    assert result.outputs == list(range(100))
    assert result.retries == 10


def test_a_lease_ends_in_time_with_what_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    meet, began_s = Meeting(3), time.monotonic()
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() if meet.over else began_s, perf_counter=time.perf_counter
    )
    monkeypatch.setattr(lease, "time", clock)
    agent = Agent(2, FakeGpu(task_s=1e-3, faults=meet))
    parts = parts_of(agent, lease_of(20_000, Here(after(meet)), limit_s=0.5))
    found = outcomes_of(parts)
    assert 0 < on_gpu(parts) < len(found) < 10_000
    assert all(found[index] == index - 100 for index in found)


@pytest.mark.parametrize("room", [0, 2])
def test_every_lease_gets_something_done_however_short(room: int) -> None:
    agent, left = Agent(1, FakeGpu(max_batch=room, launch_s=0.01)), 12
    for turn in range(left):
        lease = replace(lease_of(left, a_bit, limit_s=0.0), id=f"{LEASE}-{turn}")
        found = outcomes_of(parts_of(agent, lease))
        assert found or not left
        left -= len(found)
    assert left == 0


def test_what_must_not_run_again_does_not_after_a_gpu_failed() -> None:
    seen: list[int] = []

    def noted(task: int) -> int:
        seen.append(task)
        return a_bit(task)

    failing = threading.Event()

    def fault(call: int) -> Exception | None:
        if call != 1:
            return None
        failing.set()
        return transient()

    gpu = FakeGpu(faults=fault, before_fault=0.5)
    kernel = Here(
        after(lambda: failing.wait(300), noted), lambda tasks, name: [noted(task) for task in tasks]
    )
    result = run(Nodes(gpu), 200, kernel, rerun="never", on_error="collect")
    assert len(result.failures) == sum(gpu.failed) > 0
    assert all(isinstance(failure.error, UnknownOutcomeError) for failure in result.failures)
    assert max(Counter(seen).values()) == 1


def test_what_a_gpu_was_at_is_marked() -> None:
    found: list[Any] = []

    def at_once(tasks: Sequence[int], name: str) -> list[int]:
        found.append((tasks[0], tasks[-1], read_in_flight(LEASE)))
        return list(tasks)

    meet = Meeting(3)
    parts_of(Agent(2, FakeGpu(faults=meet)), lease_of(40, Here(after(meet), at_once)))
    first, last, marks = found[0]
    assert (100 + first, 100 + last + 1) in marks


@pytest.mark.parametrize("options", [{"alone": True}, {"gpu": False}])
def test_suspects_and_calls_are_the_processors(options: dict[str, bool]) -> None:
    gpu = FakeGpu()
    parts = parts_of(Agent(2, gpu), lease_of(30, a_bit, **options))
    assert len(outcomes_of(parts)) == 30
    assert gpu.calls == []
    assert {part.gpu for part in parts} == {None}


def test_futures_do_not_go_to_the_gpu() -> None:
    gpu = FakeGpu()
    with RayExecutor(Nodes(gpu)).as_futures() as pool:
        assert list(pool.map(a_bit, range(20))) == list(range(20))
    assert gpu.calls == []


def test_streams_are_shared_with_it_as_batches_are() -> None:
    enough = threading.Event()

    def room(call: int) -> int:
        if call > 4:
            enough.set()
        return 5

    gpu = FakeGpu(max_batch=room, faults={3: transient, 4: transient})
    manager = StrategyManager(cpu=RayExecutor(Nodes(gpu)))
    function = Here(after(lambda: enough.wait(300)), lambda tasks, name: list(tasks))
    assert [output for _, output in manager.stream(iter(range(400)), function)] == list(range(400))
    assert len(gpu.failed) >= 3


def test_a_short_lease_is_shared_where_there_is_a_gpu() -> None:
    meet = Meeting(3)
    gpu = FakeGpu(faults=meet)
    assert len(outcomes_of(parts_of(Agent(2, gpu), lease_of(200, Here(after(meet)), short=True)))) == 200
    assert gpu.calls


def test_two_leases_at_once_share_one_gpu() -> None:
    most, now = [0], [0]
    lock, begun = threading.Lock(), threading.Event()

    def at_once(tasks: Sequence[int], name: str) -> list[int]:
        begun.set()
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.002)
        with lock:
            now[0] -= 1
        return list(tasks)

    agent, function = Agent(2, FakeGpu()), pack(Here(after(lambda: begun.wait(300)), at_once))
    found: dict[str, dict[int, Any]] = {}

    def one(name: str) -> None:
        lease = Lease(name, 0, 150, pack(range(150)), function, 600.0)
        found[name] = outcomes_of(parts_of(agent, lease))

    run_in_threads(*(partial(one, name) for name in ("one", "another")), longest_s=300)
    assert [sorted(found[name]) for name in ("one", "another")] == [list(range(150))] * 2
    assert most == [1]


def test_a_thread_that_dies_holds_nobody_up_afterwards() -> None:
    def leaves(task: int) -> int:
        raise SystemExit

    agent = Agent(1, FakeGpu())
    for turn in range(2):
        with contextlib.suppress(SystemExit):  # a GPU's ends the lease, a thread's does not
            parts_of(agent, replace(lease_of(4, Here(leaves)), id=f"{LEASE}-{turn}"))
    assert len(outcomes_of(parts_of(agent, lease_of(20, a_bit)))) == 20


def test_a_stopped_lease_leaves_no_thread_behind() -> None:
    agent, begun = Agent(2, FakeGpu(task_s=0.001)), threading.Event()

    def tells(task: int) -> int:
        begun.set()
        return a_bit(task)

    running = threading.Thread(target=parts_of, args=(agent, lease_of(10_000, Here(tells))))
    running.start()
    assert begun.wait(300)
    agent.stop(LEASE)
    running.join(300)
    assert not running.is_alive()


def test_a_device_that_is_not_there_is_not_waited_for() -> None:
    gpu = FakeGpu()
    gpu.available = False
    assert len(outcomes_of(parts_of(Agent(2, gpu), lease_of(100, a_bit)))) == 100
    assert gpu.calls == []


def test_a_node_is_as_fast_as_both_its_sides() -> None:
    assert node_seconds(10, 2.0, None) == 2.0
    assert node_seconds(10, 2.0, GpuReport("cuda:0", 0, 0.5)) == 2.0
    assert node_seconds(0, 0.0, GpuReport("cuda:0", 10, 0.5)) == 0.5
    assert node_seconds(10, 1.0, GpuReport("cuda:0", 30, 1.0)) == pytest.approx(1.0)
    assert node_seconds(10, 1.0, GpuReport("cuda:0", 60, 2.0)) == pytest.approx(70 / 40)


def test_a_pace_is_learned_from_the_second_lease_on_and_doubted_in_time() -> None:
    learned = LearnedRates(2)
    cpu, gpu, nothing = DeviceShare(10, 1, 10.0), DeviceShare(100, 1, 1.0), DeviceShare()
    learned.learn(cpu, gpu)
    assert learned.pace is None
    learned.learn(cpu, gpu)
    assert learned.pace == DeviceRates(1.0, 2, 0.01)
    learned.learn(nothing, DeviceShare(9000, 1, PATIENCE - 1.0))
    assert learned.pace is not None
    learned.learn(nothing, DeviceShare(9000, 1, 2.0))
    assert learned.pace is None


class Schedule:
    """One batch on nodes with GPUs, what goes wrong with it, and what must hold of it in the end."""

    def __init__(self, seed: int) -> None:
        dice = self.dice = random.Random(seed)
        self.count = dice.choice((0, 1, 3, 20, 60, 200))
        self.seen: list[int] = []
        rare = dice.choice((0.0, 0.0, 0.02, 0.2))
        self.bad = {index for index in range(self.count) if dice.random() < rare}
        self.only_on_cpu = {index for index in range(self.count) if dice.random() < rare}
        self.rerun = dice.choice(("on_failure", "on_failure", "never"))
        self.retry = dice.choice((None, Retry(times=1)))
        self.batched = dice.random() < 0.5
        self.gpus = [self.make_gpu() for _ in range(dice.choice((1, 2)))]
        lost = dice.choice((0.0, 0.0, 0.3))
        self.deaths = [dice.choice((0, 1)) if dice.random() < lost else None for _ in range(8)]

    def make_gpu(self) -> FakeGpu:
        dice = self.dice
        faulty = dice.choice((0.0, 0.1, 0.5, 1.0))
        kinds = dice.choice(((transient,), (transient, sticky), (transient, sticky, out_of_memory)))
        faults = [dice.choice(kinds) if dice.random() < faulty else None for _ in range(64)]

        def fault(call: int) -> Exception | None:
            kind = faults[call % len(faults)]
            return None if kind is None else kind()

        room = dice.choice((0, 1, 3, 10, None))
        return FakeGpu(max_batch=room, faults=fault, before_fault=dice.choice((0.0, 0.5, 1.0)))

    def function(self, index: int) -> int:
        self.seen.append(index)
        if index % 7 == 0:
            time.sleep(0.001)
        if index in self.bad:
            raise ValueError(f"{index} is bad")
        return index * index

    def at_once(self, tasks: Sequence[int], name: str) -> list[int]:
        for task in tasks:
            if task in self.only_on_cpu:
                raise ValueError(f"{task} is not for this form")
        return [self.function(task) for task in tasks]

    def run(self) -> None:
        cluster = Nodes(*self.gpus, lives=lambda number: dict(enumerate(self.deaths, 1)).get(number))
        step_s = self.dice.choice((0.0, 0.1, 10.0))
        for agent in cluster.agents:
            with_clock(agent, Clock(step_s))
        function = Here(self.function, self.at_once if self.batched else None)
        options = {"rerun": self.rerun, "retry": self.retry, "on_error": "collect"}
        self.check(run(cluster, self.count, function, **options))

    def check(self, result: Any) -> None:
        unknown = {each.index for each in result.failures if isinstance(each.error, UnknownOutcomeError)}
        raised = set(result.failed_indices) - unknown
        assert self.rerun == "never" or not unknown
        assert raised <= (self.bad | (self.only_on_cpu if self.rerun == "never" else set()))
        assert self.bad <= raised | unknown
        failed = raised | unknown
        assert blanked(result.outputs) == [
            None if index in failed else index * index for index in range(self.count)
        ]
        assert (result.stopped_by, result.unfinished_indices) == (None, ())
        if self.rerun == "never":
            tried_again = 0 if self.retry is None else self.retry.times
            assert max(Counter(self.seen).values(), default=0) <= 1 + tried_again


@pytest.mark.parametrize("group", range(8))
def test_nothing_is_lost_or_doubled_and_every_batch_ends(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "LOOK_AGAIN_S", 1e-4)
    run_schedules(range(group * 25, group * 25 + 25), lambda seed: Schedule(seed).run(), longest_s=240)
