"""Transfers of a step to its spill file and back while operations run: same bits and bytes, safe to leave."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts
from accelera.tensora import step_plans
from tests.tensora.step_graphs import IN_BEGIN, OUT_BEGIN
from tests.tensora.test_training_budget import Config, Network, free_run

CONFIG = Config(depth=8, kinds=("linear", "norm", "dropout", "residual"), batch=500, zero_first=False)


@pytest.fixture(autouse=True)
def cheap_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans prefer the file to running again."""
    monkeypatch.setattr(step_plans, "SPILL_SECONDS_PER_BYTE", 1e-11)


def planned(share: float, steps: int = 2) -> tuple[Network, ts.TrainingBudget]:
    """A network that was trained within a share of its free peak, and has a plan."""
    _, peak = free_run(CONFIG, 1)
    network = Network(CONFIG)
    gc.collect()
    budget = ts.budget(ts.memory_stats().live_bytes + int(share * peak))
    for _ in range(steps):
        with budget:
            network.step()
    return network, budget


def kinds_of(budget: ts.TrainingBudget) -> set[int]:
    """Kinds of the actions of the plan that a budget follows."""
    plans = budget._plans[None]
    assert budget._current.plan is not None
    actions, *_ = plans.graph.schedule(*plans._costs, budget._current.plan.fates)
    return {kind for _, _, kind, _ in actions}


@pytest.mark.parametrize("share", [0.8, 0.6, 0.5])
def test_overlapped_steps_have_the_planned_bytes_and_the_free_losses(share: float) -> None:
    expected, _ = free_run(CONFIG, 5)
    network, budget = planned(share, 0)
    found = []
    for _ in range(5):
        ts.reset_peak()
        with budget:
            loss = network.step()
        found.append(float(loss))
        assert ts.memory_stats().peak_bytes <= budget.limit_bytes
    assert found == expected
    assert budget.report.followed, budget.report.departure
    assert budget.report.peak_bytes == budget.report.predicted_bytes <= budget.limit_bytes
    assert budget.report.spilled_bytes > 0
    assert {OUT_BEGIN, IN_BEGIN} <= kinds_of(budget)


def results(network: Network, around: Any, until: int, then: Callable[[Any], Any]) -> list[Any]:
    """What the layers make; after some of them something happens that the plan does not have."""
    kept: list[Any] = []
    with contextlib.suppress(ZeroDivisionError), around:
        x = network.inputs[0]
        for i in range(CONFIG.depth):
            x = network.layer(x, i)
            kept.append(x)
            if i == until:
                then(x)
    return [each.detach().numpy().copy() for each in kept]


def fail(_: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("then", [lambda x: x * 2, fail], ids=["another operation", "an error"])
def test_a_step_may_leave_its_plan_at_any_layer(then: Callable[[Any], Any]) -> None:
    network, budget = planned(0.5)
    for until in range(CONFIG.depth):
        for _ in range(3):  # planned anew, after the last one
            with budget:
                network.step()
        assert budget.report.followed, budget.report.departure
        ts.random.manual_seed(until)
        expected = results(network, contextlib.nullcontext(), -1, then)
        gc.collect()
        ts.random.manual_seed(until)
        found = results(network, budget, until, then)
        assert "operation" in budget.report.departure
        assert len(found) == (until + 1 if then is fail else CONFIG.depth)
        for one, wanted in zip(found, expected, strict=False):
            np.testing.assert_array_equal(one, wanted)


def test_a_backward_pass_may_end_anywhere() -> None:
    """Gradients of a step that was cut short inside its backward pass are whole afterwards."""
    network, budget = planned(0.5)
    twin, _ = planned(0.5)
    left = itertools.count()

    def hook(_: Any) -> None:
        if next(left) == 0:
            raise ZeroDivisionError

    handles = [each.register_post_accumulate_grad_hook(hook) for each in network.params]
    for stop in range(0, CONFIG.depth, 2):
        left = itertools.count(-stop)
        with pytest.raises(ZeroDivisionError), budget:
            network.step()
        for each in network.params:
            assert each.grad is None or np.isfinite(each.grad.numpy()).all()
        network.optim.zero_grad()
    for handle in handles:
        handle.remove()
    ts.random.manual_seed(1)
    expected = float(twin.loss())
    ts.random.manual_seed(1)
    with budget:
        loss = network.loss()
    assert float(loss) == expected


def test_what_is_on_its_way_can_be_read_and_let_go_in_a_forked_child() -> None:
    """The child has none of its parent's threads, and the parent goes on."""
    expected, _ = free_run(CONFIG, 4)
    network, budget = planned(0.5)
    layer = network.layer
    for i, at in enumerate((3, 6)):

        def forking(x: Any, k: int, at: int = at) -> Any:
            if k == at:
                child = os.fork()
                if child == 0:
                    os._exit(read_and_leave(x))
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            return layer(x, k)

        network.layer = forking  # type: ignore[assignment]
        with budget:
            loss = network.step()
        assert float(loss) == expected[2 + i]
        assert budget.report.followed, budget.report.departure


def read_and_leave(x: Any) -> int:
    """An exit status; in the child."""
    return int(not np.isfinite(x.detach().numpy()).all())


def test_a_step_reads_what_another_budget_keeps_in_its_file() -> None:
    x = ts.asarray(np.arange(4096, dtype="f"))
    gc.collect()
    with ts.budget(ts.memory_stats().live_bytes + 5 * 16384) as first:
        kept = [x + i for i in range(12)]
    assert first.report.spilled_bytes > 0
    with ts.budget(ts.memory_stats().live_bytes + 30 * 16384):
        found = [each * 2 for each in kept]
    for i, each in enumerate(found):
        np.testing.assert_array_equal(each.numpy(), 2 * (np.arange(4096, dtype="f") + i))


FULL_DISK = """
import gc, resource, sys
import accelera.tensora as ts
from accelera.tensora import step_plans
step_plans.SPILL_SECONDS_PER_BYTE = 1e-11
from tests.tensora.test_budget_overlap import CONFIG, planned
network, budget = planned(0.5, 3)
spilled = budget.report.spilled_bytes
assert budget.report.followed and spilled
values = [each.detach().numpy().copy() for each in network.params]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
try:
    with budget:
        network.step()
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for each, value in zip(network.params, values):
    assert (each.detach().numpy() == value).all()
network.optim.zero_grad()
for _ in range(2):
    with budget:
        network.step()
assert budget.report.followed, budget.report.departure
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of file sizes are Linux's")
@pytest.mark.parametrize("most", [0, 150_000, 400_000])
def test_a_disk_that_fills_meanwhile_is_an_error_of_the_step_and_nothing_is_lost(most: int) -> None:
    child = [sys.executable, "-c", FULL_DISK, str(most)]
    done = subprocess.run(child, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "bytes cannot be written to" in done.stdout
    assert "give a spill_dir with more room" in done.stdout


def test_files_are_closed_and_threads_end_with_their_budget() -> None:
    def now() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    planned(0.5)
    before = now()
    network, budget = planned(0.5)
    assert now()[0] > before[0]
    del network, budget
    files, threads = now()
    assert files <= before[0]
    assert threads <= before[1]  # one of an earlier test may end meanwhile
