"""How near strategies come to the best split: simulated batches, and threads with a GPU that sleeps.

python -m benchmarks strategies
python -m benchmarks strategies --cases regret
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import random
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from typing import Any

from accelera.execution import (
    ExecutionStrategy,
    HardwareCapabilities,
    StrategyManager,
    SystemLoad,
    ThreadsExecutor,
    WorkloadProfile,
)
from accelera.execution.faults.batch_size import BatchSizer
from accelera.execution.selector import StrategySelector
from accelera.execution.strategy.cost_model import DecisionInputs, choose_strategy
from accelera.execution.strategy.history import (
    DevicePair,
    FunctionHistory,
    PerformanceHistory,
    PerformanceModel,
)
from accelera.execution.strategy.strategy import Decision, StrategyKind, rule_for
from benchmarks import cases as in_cases
from benchmarks.goals import Goal, judged
from benchmarks.strategy_simulation import (
    WORKERS,
    Case,
    alone_s,
    as_the_seed_does,
    best_split_s,
    cases,
    cpu_s,
    on_the_cpu,
    on_the_gpu,
    pulled,
)
from benchmarks.strategy_threads import Setting, SleepingGpu, ratios

NOISE = 0.2
"""Standard deviation of what learned rates are off by, relative and the same for all samples of a device."""
SAMPLES = 12
SIDES = DevicePair("cpu", "cpu", WORKERS, "gpu", "gpu")

POLICIES = (
    "CPU only",
    "seed's tree",
    "static 70/30",
    "pull",
    "pull, re-issue",
    "learned",
    "learned, re-issue",
)


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save all tables."""
    functions = {"costs": costs, "regret": regret, "threads": threads}
    options = in_cases.parser("strategies", functions).parse_args(arguments)
    return in_cases.run(
        options, {name: functools.partial(each, options.small) for name, each in functions.items()}
    )


def costs(small: bool) -> dict[str, Any]:
    """Print what importing, detecting, reading the load, and deciding take."""
    manager = StrategyManager(ThreadsExecutor(WORKERS), SleepingGpu(Setting(1.0, None, 1, 0.0)), learn=False)
    profile = WorkloadProfile(60)
    count = 100 if small else 20_000
    standing_us, anew_us = _from_rates_us(count)
    figures = {
        "import ms": 1e3 * _import_s(),
        "first detection ms": 1e3
        * _fresh_s("from accelera.execution import HardwareCapabilities as H", "H.detect()"),
        "cached load us": _best_us(SystemLoad.current, count),
        "decision us": _best_us(lambda: manager._selector.decide(60, profile, None), count),
        "decision from rates us": standing_us,
        "decision from rates that moved us": anew_us,
    }
    print("  ".join(f"{name} {each:.2f}" for name, each in figures.items()), flush=True)
    goals = (
        Goal("G1", "decision by the tree on a cached snapshot, µs", figures["decision us"], 2.0),
        Goal("G1", "decision from rates on a cached snapshot, µs", figures["decision from rates us"], 2.0),
        Goal("G1", "first detection, ms", figures["first detection ms"], 50.0),
        Goal("G1", "import beyond the standard library, ms", figures["import ms"], 50.0),
    )
    return {**figures, "goals": judged(goals)}


def _import_s() -> float:
    """Return the seconds that importing a manager takes, with what it needs of the standard library there."""
    statement = "from accelera.execution import StrategyManager"
    names = f"{statement}; import sys; print(*(sys.stdlib_module_names & set(sys.modules)))"
    needed = subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, check=True)
    return _fresh_s(f"import {', '.join(needed.stdout.split())}", statement)


def _fresh_s(setup: str, statement: str) -> float:
    """Return the seconds of a statement in a new process, after ``setup``, with modules compiled before."""
    code = f"{setup}\nimport time; b = time.perf_counter(); {statement}; print(time.perf_counter() - b)"
    with tempfile.TemporaryDirectory() as compiled:
        variables = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
        return min(
            float(subprocess.check_output([sys.executable, "-c", code], env=variables)) for _ in range(6)
        )


def _best_us(call: Callable[[], object], count: int) -> float:
    return 1e6 * min(timeit.repeat(call, number=count, repeat=5)) / count


def _from_rates_us(count: int) -> tuple[float, float]:
    """Return what deciding takes while nothing measured has moved, and when everything is reckoned anew."""
    book = PerformanceHistory()
    learner = PerformanceModel(lambda: book, SIDES)
    decider = StrategySelector(ExecutionStrategy.Auto, SleepingGpu(Setting(1.0, None, 1, 0.0)), learner)
    for _ in range(SAMPLES):
        learner.record(abs, None, [("cpu", 10, 0.01), ("gpu", 100, 0.012)], 0.02, (1.0, 1.0))
    assert decider.decide(300, None, abs).rule == "learned rates"
    entry = learner.known(abs, None)
    assert entry is not None, "it was measured"

    def anew() -> None:
        entry.choice = None
        decider.decide(300, None, abs)

    return _best_us(lambda: decider.decide(300, None, abs), count), _best_us(anew, count)


def regret(small: bool) -> dict[str, Any]:
    """Print how many times longer each policy takes than the best static split with perfect knowledge."""
    chosen = list(cases())
    if small:
        chosen = random.Random(0).sample([case for case in chosen if case.count <= 300], 40)
    rows = [_ratios(case, seed) for seed, case in enumerate(chosen)]
    print(f"{len(chosen)} cases; ratio to the best static split")
    print(f"{'policy':>18} {'geomean':>8} {'p90':>7} {'p99':>8} {'max':>8} {'in 10 %':>8} {'> 2x':>6}")
    figures = {name: _summary([row[name] for row in rows]) for name in POLICIES}
    for name, said in figures.items():
        print(
            f"{name:>18} {said['geomean']:8.3f} {said['p90']:7.2f} {said['p99']:8.2f} {said['max']:8.1f}"
            f" {said['within_10']:8.0%} {said['above_2x']:6.1%}"
        )
    alone = [row["learned, re-issue"] <= 1.1 * row["better alone"] for row in rows]
    share = sum(alone) / len(alone)
    print(f"learned, re-issue: within 10 % of the better of CPU and GPU alone in {share:.1%}")
    goals = (
        *_regret_goals("late tasks taken over", figures["learned, re-issue"], (1.05, 0.85, 2.0)),
        *_regret_goals("without", figures["learned"], (1.10, 0.80, 3.5)),
        Goal("G8", "within 10 % of the better of CPU and GPU alone, share", share, 0.95, at_least=True),
    )
    return {
        "batches": len(chosen),
        "policies": figures,
        "not_worse_than_alone": share,
        "goals": judged(goals),
    }


def _regret_goals(how: str, said: dict[str, float], bounds: tuple[float, float, float]) -> tuple[Goal, ...]:
    return (
        Goal("G8", f"{how}: geometric mean", said["geomean"], bounds[0]),
        Goal("G8", f"{how}: within 10 %, share", said["within_10"], bounds[1], at_least=True),
        Goal("G8", f"{how}: p99", said["p99"], bounds[2]),
    )


def threads(small: bool) -> dict[str, Any]:
    """Print how many times longer than the ideal real threads take beside a GPU that sleeps."""
    count, task_s, warm_runs = (40, 1e-3, 2) if small else (300, 5e-3, 12)
    rows: list[Any] = []
    for cap, ratio in itertools.product((None, count // 5), (1.0,) if small else (0.25, 0.5, 1, 2.33, 5, 20)):
        row = ratios(Setting(ratio, cap, count, task_s), warm_runs)
        if not rows:
            print(f"{'cap':>5} {'r':>5} " + " ".join(f"{name:>17}" for name in row))
        print(
            f"{cap or '-':>5} {ratio:5.2f} " + " ".join(f"{each:17.2f}" for each in row.values()), flush=True
        )
        rows.append({"cap": cap, "ratio": ratio, "policies": row})
    return {"rows": rows, "goals": judged(_thread_goals(rows))}


def _thread_goals(rows: list[dict[str, Any]]) -> list[Goal]:
    """Cold is a batch of which nothing is known; neither takes late tasks over, as is the default."""
    goals = []
    for row in rows:
        cold, warm, cap = row["policies"]["pull"], row["policies"]["learned"], row["cap"]
        what = f"GPU {row['ratio']:g} x all CPUs{', a fifth fits' if cap else ''}"
        bound = 1.15 if cap is None and row["ratio"] <= 5 else 1.25
        if row["ratio"] <= 5:
            goals.append(Goal("G7", f"{what}, cold / ideal", cold, bound))
        if row["ratio"] <= 5 or cap is None:
            goals.append(Goal("G7", f"{what}, warm / ideal", warm, bound))
    return goals


def _ratios(case: Case, seed: int) -> dict[str, float]:
    tasks = case.tasks(seed)
    known = _known(case)
    taken = {
        "CPU only": cpu_s(tasks),
        "seed's tree": as_the_seed_does(case, tasks, _tree(case).strategy.gpu_tasks(case.count) or 0),
        "static 70/30": as_the_seed_does(case, tasks, round(0.7 * case.count)),
        "pull": pulled(case, tasks, None, BatchSizer(), again=False),
        "pull, re-issue": pulled(case, tasks, None, BatchSizer(), again=True),
        "learned": _learned(case, tasks, known, again=False),
        "learned, re-issue": _learned(case, tasks, known, again=True),
        "better alone": alone_s(case, tasks),
    }
    best_s = best_split_s(case, tasks)
    return {name: seconds / best_s for name, seconds in taken.items()}


def _tree(case: Case) -> Decision:
    hardware = HardwareCapabilities(WORKERS, gpu_available=True)
    rule = rule_for(WorkloadProfile(case.count), hardware, SystemLoad())
    return Decision(
        rule.strategy, rule.name, (rule.reason,), dynamic=rule.strategy.kind is StrategyKind.HYBRID
    )


def _known(case: Case) -> tuple[FunctionHistory, float]:
    """Return rates from earlier batches, all of a device off by the same factor, and how it begins."""
    dice = random.Random(f"{case}")
    off = {side: dice.lognormvariate(0, NOISE) for side in ("cpu", "gpu", "begin")}
    entry = FunctionHistory()
    for index in range(SAMPLES):
        seconds = case._replace(count=max(1, min(case.cap, 1 << index % 6))).tasks(dice.randrange(1 << 30))
        work_s = sum(seconds)
        entry.record("cpu", len(seconds), off["cpu"] * work_s, launches=False)
        gpu_s = case.launch_s + work_s * case.gpu_share
        entry.record("gpu", len(seconds), off["gpu"] * gpu_s, launches=True)
    entry.batch(0.0)
    return entry, off["begin"] * case.begin_s


def _learned(case: Case, tasks: list[float], known: tuple[FunctionHistory, float], *, again: bool) -> float:
    size = _fitting(case)
    now = DecisionInputs(case.count, SIDES, (1.0, 1.0), known[1], not case.cold, size.limit, again)
    decision = choose_strategy(known[0], now, _tree(case))
    if decision.strategy == ExecutionStrategy.CpuOnly:
        return on_the_cpu(case, tasks)
    if decision.strategy == ExecutionStrategy.GpuOnly:
        return on_the_gpu(case, tasks, size)
    return pulled(case, tasks, decision.pace, size, again=again)


def _fitting(case: Case) -> BatchSizer:
    """Return what earlier batches have found to fit."""
    size = BatchSizer()
    for _ in range(30):
        count = min(case.count, size.limit or case.count)
        (size.succeeded if count <= case.cap else size.ran_out)(count)
    return size


def _summary(ratios: list[float]) -> dict[str, float]:
    ordered = sorted(ratios)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {
        "geomean": math.exp(sum(map(math.log, ratios)) / len(ratios)),
        "p90": at(0.9),
        "p99": at(0.99),
        "max": ordered[-1],
        "within_10": sum(ratio <= 1.1 for ratio in ratios) / len(ratios),
        "above_2x": sum(ratio > 2 for ratio in ratios) / len(ratios),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
