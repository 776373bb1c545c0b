"""What is decided for a batch, and why: by the seed's tree, and by what has been measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.execution import (
    AutoCpuExecutor,
    ExecutionStrategy,
    Observer,
    SimulatedExecutor,
    StrategyManager,
    SystemLoad,
    ThreadsExecutor,
    TorchDeviceExecutor,
    WorkloadProfile,
    kernel,
    selector,
)
from accelera.execution._internal import Decision
from accelera.execution.selector import GpuMemoryGauge, StrategySelector
from accelera.execution.strategy.cost_model import DecisionInputs, cached_choice, choose_strategy
from accelera.execution.strategy.history import (
    DevicePair,
    FunctionHistory,
    PerformanceHistory,
    PerformanceModel,
)
from accelera.execution.strategy.rates import NEEDED, DeviceRates
from accelera.execution.tasks.balance import FIRST_SHARE, BackupTasks, Dispatcher, LoadBalancer, RangeQueue
from accelera.execution.tasks.queue import DeviceKind
from accelera.testing._internal import BridgeGpu
from tests.execution.test_selection import COUNTS, PARALLEL, PRESSURES, as_written

SIDES = DevicePair("cpu", "cpu model", 4, "gpu", "gpu model")
TREE = Decision(ExecutionStrategy.GpuOnly, "large parallel workload", ("enough",))
SMALL = Decision(ExecutionStrategy.CpuOnly, "small workload", ("few",))
MANY = 60
"""So many batches are enough to learn from, though a busy machine takes some of the measurements away."""


class Gpu(BridgeGpu):
    """Does what it is given at once, taking so long for a piece and for each task."""

    def __init__(self, launch_s: float = 0.0, task_s: float = 0.0) -> None:
        super().__init__()
        self.launch_s, self.task_s = launch_s, task_s
        self.available = True

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        self.batches.append(len(tasks))
        time.sleep(self.launch_s + self.task_s * len(tasks))
        return list(tasks)

    def is_available(self) -> bool:
        return self.available


def measured(
    cpu_task_s: float, gpu_task_s: float, launch_s: float = 1e-3, samples: int = NEEDED
) -> FunctionHistory:
    entry = FunctionHistory()
    for index in range(samples):
        count = 1 + 3 * (index % 5)
        entry.record("cpu model", count, count * cpu_task_s, launches=False)
        entry.record("gpu model", count, launch_s + count * gpu_task_s, launches=True)
    entry.batch(0.0)
    return entry


def nap(task: Any) -> Any:
    time.sleep(1e-3)
    return task


def test_explain_names_the_leaf_of_the_tree_on_both_sides_of_every_border(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Gpu()
    manager = StrategyManager(None, gpu)
    rules = set()
    for available in (True, False):
        gpu.available = available
        for pressure in PRESSURES:
            load = SystemLoad(gpu_memory_pressure=pressure)
            monkeypatch.setattr(SystemLoad, "current", staticmethod(lambda load=load: load))
            for count in COUNTS:
                for parallel in PARALLEL:
                    told = manager.explain(WorkloadProfile(count, parallelization=parallel))
                    assert told.strategy == as_written(count, available, pressure, parallel)
                    rules.add(told.rule)
    assert rules == {
        "no GPU",
        "small workload",
        "GPU memory pressure",
        "large parallel workload",
        "shared workload",
    }


def test_explain_says_what_is_missing() -> None:
    manager = StrategyManager(ThreadsExecutor(2), Gpu())
    profile = WorkloadProfile(60)
    assert "no function was given" in manager.explain(profile).reasons[-1]
    assert "nothing is measured yet" in manager.explain(profile, nap).reasons[-1]
    manager.execute(range(60), nap)
    manager.execute(range(60), nap)
    told = manager.explain(profile, nap)
    assert "of 10 samples" in told.reasons[-1]
    assert told.samples["cpu"] + told.samples["fake"] > 0
    cpu_only = StrategyManager(ThreadsExecutor(2), Gpu(), ExecutionStrategy.CpuOnly)
    for _ in range(MANY):
        cpu_only.execute(range(30), nap)
        told = cpu_only.explain(profile, nap)
        if told.samples["cpu"] >= NEEDED:
            break
    assert told.reasons[-1] == (
        f"too little is measured to compare the devices: cpu has {told.samples['cpu']},"
        f" fake has {told.samples['fake']} of 10 samples"
    )
    assert set(told.predicted_s) == {"CpuOnly"}
    silent = StrategyManager(None, Gpu(), learn=False).explain(profile, nap)
    assert "does not learn" in silent.reasons[-1]


def test_a_manager_without_a_gpu_predicts_what_it_has_measured() -> None:
    manager = StrategyManager.cpu_only(ThreadsExecutor(2))
    for _ in range(MANY):
        manager.execute(range(30), nap)
        told = manager.explain(WorkloadProfile(1000), nap)
        if told.samples["cpu"] >= NEEDED:
            break
    assert (told.rule, told.strategy) == ("no GPU", ExecutionStrategy.CpuOnly)
    assert told.samples["cpu"] >= NEEDED
    assert told.predicted_s["CpuOnly"] >= 0.5
    assert not [reason for reason in told.reasons if "too little" in reason]


def test_measurements_take_over_from_the_tree() -> None:
    gpu = Gpu(launch_s=5e-2, task_s=1e-3)
    manager = StrategyManager(ThreadsExecutor(4), gpu)
    rules: list[str] = []
    for _ in range(MANY):
        rules.append(manager.execute(range(60), nap).decision.rule)
        told = manager.explain(WorkloadProfile(60), nap)
        learned = "learned rates" in rules and set(told.predicted_s) == {"CpuOnly", "GpuOnly", "Hybrid"}
        if learned and told.predicted_s["CpuOnly"] < told.predicted_s["GpuOnly"]:
            break
    else:
        pytest.fail(f"after {MANY} batches: {told}")
    assert rules[:2] == ["large parallel workload", "gathering samples"]
    assert min(told.samples.values()) >= NEEDED
    assert "predicted" in str(told)


def test_without_learning_decisions_stay_the_trees() -> None:
    manager = StrategyManager(ThreadsExecutor(2), Gpu(), learn=False)
    decisions = [manager.execute(range(60), nap).decision for _ in range(12)]
    assert all(decision == decisions[0] for decision in decisions)
    assert decisions[0].rule == "large parallel workload"


def test_batches_that_failed_are_not_recorded() -> None:
    book = PerformanceHistory()
    learner = PerformanceModel(lambda: book, DevicePair.of(ThreadsExecutor(2), "cpu", None, ""))

    def fails(task: int) -> int:
        time.sleep(1e-3)
        if task == 7:
            raise ValueError("seven")
        return task

    manager = StrategyManager.cpu_only(ThreadsExecutor(2))
    manager._selector._model = learner
    manager.execute(range(20), fails, on_error="collect")
    assert learner.known(fails, None) is None
    manager.execute(range(7), fails)
    assert learner.known(fails, None) is not None


def test_pieces_that_failed_on_the_gpu_are_not_recorded() -> None:
    class Small(Gpu):
        def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
            if len(tasks) > 8:
                raise RuntimeError("CUDA out of memory")
            return super().execute_batch(tasks, process_fn)

    seen: list[int] = []

    class Watching(Observer):
        def on_chunk(self, device: str, task_count: int, seconds: float) -> None:
            seen.append(task_count)

    manager = StrategyManager(ThreadsExecutor(2), Small(task_s=1e-3), observers=[Watching()])
    manager.execute(range(60), nap)
    assert 0 in seen, "a piece that ran out of memory did no task"
    learner = manager._selector._model
    assert learner is not None
    entry = learner.known(nap, None)
    assert entry is not None
    assert entry.samples(learner.sides.gpu_model) == len([count for count in seen if count]) - 1


def test_pieces_that_went_to_worker_processes_are_the_cpus() -> None:
    with AutoCpuExecutor(2) as cpu:
        manager = StrategyManager(cpu, Gpu(), ExecutionStrategy.CpuOnly)
        slow = kernel(processes=True)(nap)
        for _ in range(2):
            shares = manager.execute(range(8), slow).per_device
            assert set(shares) == {"processes"}
        learner = manager._selector._model
        assert learner is not None
        entry = learner.known(slow, None)
        assert entry is not None
        assert entry.samples(learner.sides.cpu_model) > 0


def test_a_gpu_that_cannot_even_say_whether_it_is_there_is_none() -> None:
    class Broken(Gpu):
        def is_available(self) -> bool:
            raise RuntimeError("driver gone")

    result = StrategyManager(None, Broken()).execute(range(60), abs)
    assert result.outputs == list(range(60))
    assert (result.strategy_used, result.decision.rule) == (ExecutionStrategy.CpuOnly, "no GPU")


def test_slow_slower_and_equal_devices() -> None:
    now = DecisionInputs(400, SIDES)
    assert choose_strategy(measured(1e-3, 1e-5), now, TREE).strategy == ExecutionStrategy.GpuOnly
    assert choose_strategy(measured(1e-3, 1e-1), now, TREE).strategy == ExecutionStrategy.CpuOnly
    both = choose_strategy(measured(1e-3, 2.5e-4), now, TREE)
    assert (both.strategy, both.dynamic) == (ExecutionStrategy.Hybrid(), True)
    assert both.pace is not None
    assert both.predicted_s["Hybrid"] < 0.7 * min(both.predicted_s["CpuOnly"], both.predicted_s["GpuOnly"])
    assert both.rule == "learned rates"


def test_a_decision_stands_until_what_was_measured_has_moved() -> None:
    entry, now = measured(1e-3, 2.5e-4), DecisionInputs(400, SIDES)
    assert cached_choice(entry, now) is None
    first = choose_strategy(entry, now, TREE)
    entry.record(SIDES.cpu_model, 1, 1e-3, launches=False)
    entry.batch(0.1)
    assert cached_choice(entry, now) is first
    assert cached_choice(entry, now._replace(task_count=500)) is None
    for _ in range(30):
        entry.record(SIDES.cpu_model, 1, 1.4e-3, launches=False)
        entry.batch(0.1)
    assert cached_choice(entry, now) is None
    moved = choose_strategy(entry, now, TREE)
    assert moved.predicted_s["CpuOnly"] > 1.1 * first.predicted_s["CpuOnly"]


def test_a_gpu_must_win_by_more_than_five_per_cent() -> None:
    now = DecisionInputs(4, SIDES)
    assert choose_strategy(measured(1e-2, 2.2e-3), now, TREE).strategy == ExecutionStrategy.CpuOnly
    assert choose_strategy(measured(1e-2, 2.0e-3), now, TREE).strategy == ExecutionStrategy.GpuOnly


def test_a_gpu_that_has_yet_to_begin_pays_for_it() -> None:
    entry, now = measured(1e-3, 1e-5), DecisionInputs(400, SIDES)
    cold = choose_strategy(entry, now._replace(begin_s=0.3, begun=False), TREE)
    assert cold.strategy == ExecutionStrategy.CpuOnly
    assert cold.predicted_s["GpuOnly"] == pytest.approx(
        0.3 + choose_strategy(entry, now, TREE).predicted_s["GpuOnly"]
    )


def test_what_others_take_slows_a_device_down() -> None:
    entry, now = measured(1e-3, 2.5e-4), DecisionInputs(400, SIDES)
    usual = choose_strategy(entry, now, TREE).predicted_s
    busy = choose_strategy(entry, now._replace(speeds=(0.5, 1.0)), TREE).predicted_s
    assert busy["CpuOnly"] == pytest.approx(2 * usual["CpuOnly"])
    assert busy["GpuOnly"] == usual["GpuOnly"]
    shared = choose_strategy(entry, now._replace(speeds=(1.0, 0.5)), TREE).predicted_s
    assert shared["GpuOnly"] == pytest.approx(2 * usual["GpuOnly"])


def test_memory_that_holds_few_tasks_means_many_launches() -> None:
    entry, now = measured(1e-3, 1e-5, launch_s=0.05), DecisionInputs(400, SIDES)
    assert choose_strategy(entry, now, TREE).strategy == ExecutionStrategy.GpuOnly
    assert choose_strategy(entry, now._replace(fitting=10), TREE).strategy == ExecutionStrategy.CpuOnly


def test_tasks_that_may_be_taken_over_are_shared_whenever_a_gpu_can_help() -> None:
    entry, now = measured(1e-2, 2.2e-3), DecisionInputs(4, SIDES, repeats=True)
    decision = choose_strategy(entry, now, TREE)
    assert decision.strategy == ExecutionStrategy.Hybrid()
    assert decision.predicted_s["Hybrid"] <= min(decision.predicted_s.values())
    assert choose_strategy(measured(1e-3, 1.0), now, TREE).strategy == ExecutionStrategy.CpuOnly


def test_a_trifle_is_the_cpus() -> None:
    assert (
        choose_strategy(measured(1e-6, 1e-9), DecisionInputs(100, SIDES), TREE).strategy
        == ExecutionStrategy.CpuOnly
    )


def test_what_was_not_chosen_is_measured_anew_for_one_per_cent_of_the_time() -> None:
    entry, now = measured(1e-3, 1e-5), DecisionInputs(400, SIDES)
    entry.batch(0.09)
    assert choose_strategy(entry, now, TREE).rule == "learned rates"
    entry.batch(0.02)
    anew = choose_strategy(entry, now, TREE)
    assert (anew.rule, anew.strategy, anew.pace) == ("sampling anew", ExecutionStrategy.Hybrid(), None)
    entry.record("cpu model", 1, 1e-3, launches=False)
    assert choose_strategy(entry, now, TREE).rule == "learned rates"


def test_samples_that_the_tree_would_never_give_are_gathered() -> None:
    entry = FunctionHistory()
    for _ in range(NEEDED):
        entry.record("gpu model", 60, 0.1, launches=True)
    now = DecisionInputs(60, SIDES)
    rules = []
    for _ in range(4):
        rules.append(choose_strategy(entry, now, TREE).rule)
        entry.batch(0.1)
    assert rules == ["large parallel workload", "gathering samples"] * 2
    changed = FunctionHistory()
    for _ in range(NEEDED):
        changed.record("cpu model", 10, 0.1, launches=False)
    assert choose_strategy(changed, now, TREE).rule == "gathering samples", "not the unknown GPU alone"
    few = FunctionHistory()
    few.record("cpu model", 5, 0.1, launches=False)
    few.batch(29.0)
    cold = DecisionInputs(5, SIDES, begun=False)
    assert choose_strategy(few, cold, SMALL).rule == "small workload"
    few.batch(2.0)
    assert choose_strategy(few, cold, SMALL).rule == "gathering samples"


def test_a_given_hybrid_pulls_at_the_learned_pace() -> None:
    book = PerformanceHistory()
    learner = PerformanceModel(lambda: book, SIDES)
    decider = StrategySelector(ExecutionStrategy.Hybrid(), Gpu(), learner)
    assert decider.decide(60, None, nap).pace is None
    pieces = [(device, 1 + index % 4, 1e-3) for index in range(12) for device in ("cpu", "gpu")]
    learner.record(nap, None, pieces, 1.0, (1.0, 1.0))
    decision = decider.decide(60, None, nap)
    assert (decision.rule, decision.dynamic) == ("given", True)
    assert decision.pace is not None
    assert decision.pace.workers == 4


PACES = st.builds(
    DeviceRates,
    st.floats(1e-6, 10.0),
    st.integers(1, 64),
    st.floats(1e-8, 10.0),
    st.floats(0.0, 0.1),
    st.floats(0.0, 1.0),
    st.floats(0.0, 50.0),
)


@given(PACES, st.integers(1, 10_000), st.floats(0.0, 10.0))
def test_somebody_always_takes_the_next_task(pace: DeviceRates, remaining: int, gpu_left_s: float) -> None:
    gpu, cpu = pace.gpu_count(remaining), pace.cpu_count(remaining, gpu_left_s)
    assert 0 <= gpu <= remaining
    assert cpu >= 0
    assert gpu or pace.cpu_count(remaining, 0.0)


@given(PACES, st.integers(1, 10_000))
def test_the_gpu_does_not_end_later_than_the_cpu(pace: DeviceRates, remaining: int) -> None:
    count = pace.gpu_count(remaining)
    if 1 < count < remaining:
        rest_s = (remaining - count) * pace.cpu_task_s / pace.workers
        assert pace.gpu_s(count) <= rest_s * (1 + 1e-9)


@given(st.none() | PACES, st.integers(1, 400), st.booleans(), st.randoms())
def test_every_task_is_handed_out_whatever_the_pace_is_and_was_thought_to_be(
    pace: DeviceRates | None, count: int, repeats: bool, dice: Any
) -> None:
    sharing = Dispatcher(RangeQueue(count), BackupTasks() if repeats else None, LoadBalancer(pace, 0.0))
    done = [False] * count
    at: dict[int, tuple[float, int, int]] = {}
    now_s, left = 0.0, count
    for _ in range(20_000):
        if not left:
            return
        for taker, side in enumerate((DeviceKind.GPU, DeviceKind.CPU, DeviceKind.CPU)):
            if taker not in at:
                offer = sharing.offer(side, taker, 50, left, now_s, done.__getitem__)
                if offer.found is not None:
                    at[taker] = (now_s + dice.uniform(1e-4, 1.0), *offer.found)
        earliest = min(at, key=lambda each: at[each][0]) if at else None
        if earliest is None:
            now_s += 0.05
            continue
        now_s, start, stop = at.pop(earliest)
        left -= sum(not each for each in done[start:stop])
        done[start:stop] = [True] * (stop - start)
    pytest.fail(f"{left} tasks were never handed out")


def test_the_first_piece_of_an_unknown_gpu_is_a_small_part() -> None:
    pacing = LoadBalancer(None, 0.0)
    assert pacing.allowed(DeviceKind.GPU, 0, 1000, 1000, 0.0) == 1000 // FIRST_SHARE
    pacing.took(DeviceKind.GPU, 0, 62, 0.0)
    assert pacing.allowed(DeviceKind.CPU, 1, 10, 938, 0.0) == 10
    pacing.took(DeviceKind.CPU, 1, 10, 0.0)
    # in one second the GPU did 62 tasks and the only worker none: it may take most, but not all, of the rest
    assert 62 < pacing.allowed(DeviceKind.GPU, 0, 928, 928, 1.0) < 928


def test_tasks_that_did_not_fit_do_not_make_the_gpu_look_fast() -> None:
    pacing = LoadBalancer(None, 0.0)
    pacing.took(DeviceKind.GPU, 0, 100, 0.0)
    pacing.returned(0, 100)
    pacing.took(DeviceKind.CPU, 1, 1, 0.0)
    assert pacing.allowed(DeviceKind.GPU, 0, 160, 160, 0.001) == 160 // FIRST_SHARE


def test_tasks_that_the_cpu_gives_back_do_not_make_the_gpu_look_slow() -> None:
    allowed = []
    for given_back in (0, 50):
        pacing = LoadBalancer(None, 0.0)
        pacing.took(DeviceKind.GPU, 0, 62, 0.0)
        pacing.took(DeviceKind.CPU, 1, 100, 0.0)
        pacing.returned(1, given_back)
        allowed.append(pacing.allowed(DeviceKind.GPU, 0, 838, 838, 1.0))
    assert allowed[0] == allowed[1]


def test_the_cpu_leaves_the_last_tasks_to_a_gpu_that_is_sooner_and_not_for_ever() -> None:
    pace = DeviceRates(cpu_task_s=1.0, workers=2, gpu_task_s=0.01)
    pacing = LoadBalancer(pace, 0.0)
    pacing.took(DeviceKind.GPU, 0, 10, 0.0)
    assert pacing.allowed(DeviceKind.CPU, 1, 5, 20, 0.05) == 0
    assert pacing.allowed(DeviceKind.CPU, 1, 5, 20, 5.0) > 0
    pacing.give_up_gpu()
    assert pacing.allowed(DeviceKind.CPU, 1, 5, 20, 0.05) == 5


@pytest.mark.parametrize("pure", [False, True])
def test_a_paced_batch_on_real_threads_is_whole(pure: bool) -> None:
    function = kernel(pure=pure)(nap)
    manager = StrategyManager(ThreadsExecutor(3), Gpu(launch_s=1e-3, task_s=3e-4))
    rules: list[str] = []
    while len(rules) < MANY and rules.count("learned rates") < 3:
        result = manager.execute(list(range(70)), function)
        assert result.outputs == list(range(70))
        rules.append(result.decision.rule)
    assert "learned rates" in rules


class Filling(Gpu):
    """A GPU whose free memory is set."""

    free_bytes = 8 << 30

    def memory_available(self) -> int:
        return self.free_bytes


class Telling(Filling):
    """It can tell how much memory it has."""

    def memory_total(self) -> int:
        return 8 << 30


@pytest.mark.parametrize("kind", [Filling, Telling])
def test_the_pressure_is_that_of_the_managers_own_gpu(
    kind: type[Filling], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    gpu = kind()
    manager = StrategyManager(None, gpu, learn=False)
    manager._selector._memory = GpuMemoryGauge(gpu, lambda: now_s[0])

    def rule() -> str:
        now_s[0] += selector.AGE_S
        return manager.explain(WorkloadProfile(60)).rule

    assert rule() == "large parallel workload"
    gpu.free_bytes = 2 << 30
    assert rule() == "large parallel workload"
    gpu.free_bytes = 1 << 30
    assert rule() == "GPU memory pressure"
    gpu.free_bytes = 8 << 30
    assert manager.explain(WorkloadProfile(60)).rule == "GPU memory pressure", "not asked so soon again"
    assert rule() == "large parallel workload"
    load = SystemLoad(gpu_memory_pressure=0.9)
    monkeypatch.setattr(SystemLoad, "current", staticmethod(lambda: load))
    elsewhere = "large parallel workload" if kind is Telling else "GPU memory pressure"
    assert rule() == elsewhere, "what the system says is of its first GPU"


def test_a_gpu_that_does_not_say_how_full_it_is_is_as_full_as_the_system_says() -> None:
    class Silent(Telling):
        def memory_total(self) -> int:
            raise RuntimeError("driver gone")

    assert GpuMemoryGauge(Silent()).pressure(0.3) == 0.3


def test_the_memory_of_our_own_gpus() -> None:
    assert SimulatedExecutor("1GiB").memory_total() == 1 << 30
    assert TorchDeviceExecutor("cpu", budget="1MiB").memory_total() == 1 << 20
    assert TorchDeviceExecutor("cpu").memory_total() > 1 << 20
