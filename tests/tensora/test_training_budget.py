"""Training inside a budget: never more bytes than said, the same numbers, plans that keep their word."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.errors import BudgetExceededError
from accelera.tensora import functional, optim
from accelera.trace import Kind, Occupancy, Trace
from tests.threads import run_in_threads


@dataclass(frozen=True)
class Config:
    """Shape of a random network and its training."""

    seed: int = 0
    depth: int = 4
    width: int = 64
    batch: int = 128
    kinds: tuple[str, ...] = ("linear",)
    optimizer: str = "SGD"
    zero_first: bool = True
    tied: bool = False


class Network:
    """A random network, its data, and one step of its training."""

    def __init__(self, config: Config) -> None:
        self.config = config
        random = np.random.default_rng(config.seed)
        ts.random.manual_seed(config.seed)
        self.width = config.width
        shape = (self.width, self.width)
        self.params = [
            ts.tensor((random.normal(size=shape) / self.width**0.5).astype("f"), requires_grad=True)
            for _ in range(1 if config.tied else config.depth)
        ]
        self.scale = ts.tensor(np.ones(self.width, "f"), requires_grad=True)
        self.mean, self.var = ts.zeros((self.width,)), ts.ones((self.width,))
        data = (config.batch, self.width)
        self.inputs = tuple(ts.tensor(random.normal(size=data).astype("f")) for _ in range(2))
        self.optim = getattr(optim, config.optimizer)([*self.params, self.scale], lr=0.01)

    def layer(self, x: Any, i: int) -> Any:
        kind = self.config.kinds[i % len(self.config.kinds)]
        y = x @ self.params[i % len(self.params)]
        if kind == "norm":
            return functional.layer_norm(functional.gelu(y), (self.width,), self.scale)
        if kind == "batch":
            return functional.batch_norm(y, self.mean, self.var, self.scale, training=True)
        if kind == "dropout":
            return functional.dropout(y, 0.3)
        if kind == "residual":
            return x + ts.tanh(y)
        if kind == "written":
            z = y * 0.1
            z[:, :1] = 0.5
            return ts.tanh(z)
        if kind == "masked":
            return ts.where((y > 0) & (y < 1), y, 0.1 * x)
        if kind == "views":
            a, b = ts.split(y, 2, axis=1)
            return ts.concat([b * a, a + b], axis=1)
        return ts.relu(y)

    def loss(self) -> Any:
        x, target = self.inputs
        for i in range(self.config.depth):
            x = self.layer(x, i)
        return ((x - target) ** 2).mean()

    def step(self) -> Any:
        if self.config.zero_first:
            self.optim.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optim.step()
        if not self.config.zero_first:
            self.optim.zero_grad()
        return loss

    def losses(self, steps: int, around: Callable[[Callable[[], Any]], Any]) -> list[float]:
        return [float(around(self.step)) for _ in range(steps)]


def free_run(config: Config, steps: int) -> tuple[list[float], int]:
    """Losses without a budget, and the most bytes that the steps held above those before them."""
    network = Network(config)
    gc.collect()
    before = ts.memory_stats().live_bytes
    ts.reset_peak()
    losses = network.losses(steps, lambda step: step())
    return losses, ts.memory_stats().peak_bytes - before


CONFIGS = st.builds(
    Config,
    seed=st.integers(0, 2**16),
    depth=st.integers(2, 7),
    width=st.sampled_from([32, 64]),
    batch=st.sampled_from([64, 200]),
    kinds=st.lists(
        st.sampled_from(["linear", "norm", "batch", "dropout", "residual", "written", "views", "masked"]),
        min_size=1,
        max_size=4,
    ).map(tuple),
    optimizer=st.sampled_from(["SGD", "Adam"]),
    zero_first=st.booleans(),
    tied=st.booleans(),
)


@settings(max_examples=260, deadline=None)
@given(CONFIGS, st.floats(0.2, 1.3), st.booleans())
def test_no_step_exceeds_its_budget_and_results_are_the_same_bits(
    config: Config, share: float, inside: bool
) -> None:
    expected, peak = free_run(config, 4)
    network = Network(config)
    gc.collect()
    limit = ts.memory_stats().live_bytes + int(share * peak)
    budget = ts.budget(limit, optimizer=network.optim if inside else None)
    reports = []

    def within(step: Callable[[], Any]) -> Any:
        ts.reset_peak()
        with budget:
            loss = step()
        reports.append(budget.report)
        assert ts.memory_stats().peak_bytes <= limit
        return loss

    try:
        found = network.losses(4, within)
    except BudgetExceededError as error:
        refused = error.needed_bytes
    else:
        refused = 0
    if refused:
        assert refused > limit
        return
    np.testing.assert_array_equal(found, expected)
    for report in reports:
        assert report.peak_bytes <= limit
        assert not report.followed or report.peak_bytes == report.predicted_bytes
    if budget.staircase()[-1].peak_bytes <= limit:
        assert reports[-1].followed, reports[-1].departure


def trained(
    config: Config, limit: int, steps: int = 4, **options: Any
) -> tuple[list[float], ts.TrainingBudget]:
    """Losses of a network in that many bytes beyond those of its tensors, and the budget."""
    network = Network(config)
    gc.collect()
    budget = ts.budget(ts.memory_stats().live_bytes + limit, **options)

    def within(step: Callable[[], Any]) -> Any:
        with budget:
            return step()

    return network.losses(steps, within), budget


DEEP = Config(depth=8, kinds=("linear", "norm", "dropout", "residual"), batch=500, zero_first=False)
MASKED = Config(depth=8, kinds=("masked",), batch=2000, zero_first=False)


def test_less_budget_is_never_more_memory_nor_less_time() -> None:
    _, budget = trained(DEEP, 1 << 24)
    stairs = budget.staircase()
    floor, free = stairs[-1].peak_bytes, stairs[0].peak_bytes
    others = budget.limit_bytes - (1 << 24)  # tensors that this process held before
    assert floor - others < 0.6 * (free - others)
    plans = [budget.plan(int(limit)) for limit in np.linspace(floor, 1.1 * free, 200)]
    for less, more in itertools.pairwise(plans):
        assert less.peak_bytes <= more.peak_bytes
        assert less.added_s >= more.added_s
    assert stairs[0].added_s == 0
    assert all(each.floor_bytes == floor for each in stairs)


def test_measured_memory_falls_with_the_budget_and_equals_the_plan() -> None:
    expected, peak = free_run(DEEP, 4)
    measured = []
    for share in np.linspace(1.0, 0.5, 12):
        losses, budget = trained(DEEP, int(share * peak))
        assert losses == expected
        report = budget.report
        assert report.followed, report.departure
        assert report.peak_bytes == report.predicted_bytes <= budget.limit_bytes
        others = budget.limit_bytes - int(share * peak)  # tensors that this process held before
        measured.append(report.peak_bytes - others)
    assert measured[-1] < 0.6 * measured[0]
    assert measured == sorted(measured, reverse=True)


def test_masks_are_packed_into_bits() -> None:
    expected, _ = free_run(MASKED, 4)
    _, roomy = trained(MASKED, 1 << 26)
    others = roomy.limit_bytes - (1 << 26)  # tensors that this process held before
    packing = [
        plan.peak_bytes - others
        for plan in roomy.staircase()
        if any(each.fate == "pack" for each in roomy.tensors(plan.peak_bytes))
    ]
    assert packing
    losses, budget = trained(MASKED, packing[0])
    assert losses == expected
    assert budget.report.followed, budget.report.departure
    assert budget.report.peak_bytes == budget.report.predicted_bytes <= budget.limit_bytes
    assert "PACK" in budget.explain()


def test_below_the_floor_the_smallest_plan_is_named() -> None:
    _, budget = trained(DEEP, 1 << 24)
    floor = budget.staircase()[-1].floor_bytes
    with pytest.raises(BudgetExceededError, match=f"floor of this step is {floor}") as error:
        budget.plan(floor - 1)
    assert error.value.needed_bytes == floor
    assert budget.plan(floor).peak_bytes == floor


def test_a_step_that_cannot_fit_is_refused_with_the_bytes_that_it_needs() -> None:
    x = ts.ones((1000, 100))
    budget = ts.budget(ts.memory_stats().live_bytes + 300_000)
    with pytest.raises(BudgetExceededError, match="'add' needs") as error, budget:
        x + 1
    assert error.value.budget_bytes == budget.limit_bytes < error.value.needed_bytes
    with ts.budget(error.value.needed_bytes):
        x + 1
    with pytest.raises(BudgetExceededError, match="tensors hold"), ts.budget(1000):
        pass
    with pytest.raises(ValueError, match="lots"):
        ts.budget("lots")


def test_explain_names_fates_bytes_costs_and_the_floor() -> None:
    _, peak = free_run(DEEP, 2)
    _, budget = trained(DEEP, int(0.6 * peak))
    words = ts.explain(budget)
    for part in ("budget", "free peak", "floor", "RECOMPUTE", "OFFLOAD", "KEEP", "gelu", "ms", "next faster"):
        assert part in words, words
    with pytest.raises(RuntimeError, match="no step was recorded"):
        ts.explain(ts.budget("1GiB"))
    with pytest.raises(TypeError, match="Budget"):
        ts.explain("step")


def test_a_decorated_function_keeps_plans_by_the_shapes_of_its_arguments() -> None:
    w = ts.ones((64, 64)).requires_grad_()
    budget = ts.budget("64MiB")

    @budget
    def step(x: Any, scale: float = 1.0) -> Any:
        loss = (functional.gelu(x @ w) * scale).sum()
        loss.backward()
        w.grad = None
        return loss

    for n in (32, 48, 32, 48, 32, 48):
        step(ts.ones((n, 64)))
    assert budget.report.followed, budget.report.departure
    assert step.__name__ == "step"
    assert "plan" in ts.explain(step)


def test_a_step_that_departs_from_its_plan_keeps_its_results_and_its_budget() -> None:
    config = DEEP
    _, peak = free_run(config, 1)
    network, twin = Network(config), Network(config)
    gc.collect()
    limit = ts.memory_stats().live_bytes + int(0.6 * peak)
    budget = ts.budget(limit)
    depths = [8, 8, 8, 5, 8, 3, 8, 8]
    for depth in depths:
        object.__setattr__(network.config, "depth", depth)
        ts.random.manual_seed(depth)
        expected = float(twin.step())
        ts.random.manual_seed(depth)
        ts.reset_peak()
        with budget:
            loss = network.step()
        assert float(loss) == expected
        assert ts.memory_stats().peak_bytes <= limit + 1_000_000
    object.__setattr__(network.config, "depth", 8)


def test_an_error_inside_a_step_leaves_tensors_whole() -> None:
    _, peak = free_run(DEEP, 1)
    network = Network(DEEP)
    gc.collect()
    budget = ts.budget(ts.memory_stats().live_bytes + int(0.5 * peak))
    kept: list[Any] = []
    with pytest.raises(ZeroDivisionError), budget:
        x = network.inputs[0]
        for i in range(8):
            x = network.layer(x, i)
            kept.append(x)
        raise ZeroDivisionError
    for _ in range(2):
        with budget:
            network.step()
    twin = Network(DEEP)
    x = twin.inputs[0]
    for i, found in enumerate(kept):
        x = twin.layer(x, i)
        np.testing.assert_array_equal(found.detach().numpy(), x.detach().numpy())


def test_a_step_that_ends_before_its_backward_pass_can_still_go_backward() -> None:
    _, peak = free_run(DEEP, 1)
    network, twin = Network(DEEP), Network(DEEP)
    gc.collect()
    budget = ts.budget(ts.memory_stats().live_bytes + int(0.6 * peak))
    for seed in range(3):
        ts.random.manual_seed(seed)
        twin.step()
        ts.random.manual_seed(seed)
        with budget:
            network.step()
    assert budget.report.followed
    ts.random.manual_seed(5)
    twin.loss().backward()
    ts.random.manual_seed(5)
    with budget:
        loss = network.loss()
    assert "it ended after" in budget.report.departure
    loss.backward()
    for a, b in zip(network.params, twin.params, strict=True):
        np.testing.assert_array_equal(a.grad.numpy(), b.grad.numpy())


def test_optimizers_inside_backward_save_the_gradients() -> None:
    config = Config(depth=8, width=128, batch=16, optimizer="Adam")
    expected, _ = free_run(config, 4)
    losses, without = trained(config, 1 << 24)
    network = Network(config)
    gc.collect()
    budget = ts.budget(ts.memory_stats().live_bytes + (1 << 24), optimizer=network.optim)

    def within(step: Callable[[], Any]) -> Any:
        with budget:
            return step()

    assert network.losses(4, within) == losses == expected
    gradients = sum(each.nbytes for each in network.params)
    assert budget.report.followed
    assert budget.staircase()[0].peak_bytes <= without.staircase()[0].peak_bytes - gradients // 2
    with pytest.raises(TypeError, match="one parameter at a time"):
        ts.budget("1MiB", optimizer=object())
    with pytest.raises(TypeError, match="LBFGS cannot change"):
        ts.budget("1MiB", optimizer=optim.LBFGS(network.params))


def test_one_step_at_a_time_and_other_threads_stay_outside() -> None:
    budget = ts.budget("64MiB")
    made: list[Any] = []
    with budget:
        with pytest.raises(RuntimeError, match="goes on already"), ts.budget("64MiB"):
            pass
        run_in_threads(lambda: made.append(ts.ones((900, 900)) @ ts.ones((900, 900))))
        inside = ts.ones((500, 500))
    assert float(made[0].sum()) == 900**3
    del budget
    gc.collect()
    assert float(inside.sum()) == 250_000  # its arena lives as long as it


def test_memory_that_is_lent_to_numpy_stays_where_it_is() -> None:
    _, peak = free_run(DEEP, 1)
    network = Network(DEEP)
    gc.collect()
    budget = ts.budget(ts.memory_stats().live_bytes + int(0.7 * peak) + 400_000)
    for _ in range(3):
        with budget:
            x = functional.relu(network.inputs[0])
            view = x.numpy()
            before = view.copy()
            network.step()
            np.testing.assert_array_equal(view, before)


def test_a_hidden_layer_that_is_lent_inside_a_step_stays() -> None:
    config = Config(depth=8, kinds=("norm",), batch=2000, zero_first=False)
    expected, peak = free_run(config, 6)
    network = Network(config)
    gc.collect()
    budget = ts.budget(ts.memory_stats().live_bytes + int(0.6 * peak))
    lent: list[tuple[Any, Any]] = []
    plain_layer, plain_end = network.layer, network.optim.zero_grad

    def layer(x: Any, i: int) -> Any:
        y = plain_layer(x, i)
        if i == 2 and lends:
            lent.append((y.detach().numpy(), y.detach().numpy().copy()))
        return y

    def end() -> None:
        for view, before in lent:
            np.testing.assert_array_equal(view, before)
        lent.clear()
        plain_end()

    network.layer, network.optim.zero_grad = layer, end  # type: ignore[method-assign]
    departures = []
    for number, wanted in enumerate(expected):
        lends = number >= 2  # the plan does not expect the first time
        with budget:
            assert float(network.step()) == wanted
        departures.append(budget.report.departure)
    assert budget.report.followed
    assert "given to another library" in departures[2]
    assert departures[3:] == [""] * 3


CHILD = """
import gc, resource, sys
import numpy as np
import accelera.tensora as ts
from accelera.tensora import functional, optim
from accelera.trace import Kind, Occupancy, Trace

budgeted = sys.argv[1] == "budget"
random = np.random.default_rng(0)
width, depth, batch = 256, 24, 8192
weights = [(random.normal(size=(width, width)) / 16).astype("f") for _ in range(depth)]
params = [ts.tensor(each, requires_grad=True) for each in weights]
x = ts.tensor(random.normal(size=(batch, width)).astype("f"))
optimizer = optim.SGD(params, lr=0.01)

def step():
    y = x
    for param in params:
        y = functional.gelu(y @ param)
    loss = (y * y).mean()
    del y
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss)

for _ in range(3):  # so long that all threads take part: they and their memory are there
    ts.ones((2048, 2048)) @ ts.ones((2048, 2048))
ts.empty_cache()
limit = ts.memory_stats().live_bytes + 120_000_000
pages = int(open("/proc/self/statm").read().split()[0])
room = pages * resource.getpagesize() + 120_000_000 + 24_000_000
resource.setrlimit(resource.RLIMIT_AS, (room, room))
budget = ts.budget(limit)
for _ in range(3):
    if budgeted:
        with budget:
            step()
    else:
        step()
print("done", budget.report.followed)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of addresses are Linux's")
@pytest.mark.parametrize("way", ["budget", "free"])
def test_a_process_without_more_addresses_finishes(way: str) -> None:
    """The step's activations are 400 MB; the process may have 120 MB of tensors, and 24 MB of its own."""
    # glibc reserves addresses of another heap whenever two threads meet in the first one.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    child = [sys.executable, "-c", CHILD, way]
    done = subprocess.run(child, capture_output=True, text=True, timeout=100, check=False, env=environment)
    if way == "budget":
        assert done.stdout.strip() == "done True", done.stderr
    else:
        assert "MemoryError" in done.stderr


def resident_peak(trace: Trace) -> int:
    """Most bytes in memory at once, event by event."""
    there = Occupancy(trace).at_start.copy()
    live = peak = int(trace.size_bytes[there].sum())
    for buffer, kind in zip(trace.buffer, trace.kind, strict=True):
        leaves = kind in (Kind.EVICT, Kind.FREE)
        if kind in (Kind.READ, Kind.WRITE) or leaves:
            live += int(trace.size_bytes[buffer]) * (int(not leaves) - int(there[buffer]))
            there[buffer] = not leaves
            peak = max(peak, live)
    return peak


@pytest.mark.parametrize(("config", "share"), [(DEEP, 0.7), (DEEP, 0.4), (MASKED, 0.8)])
def test_the_trace_of_a_step_replayed_on_paper_has_its_bytes(config: Config, share: float) -> None:
    _, peak = free_run(config, 1)
    network = Network(config)
    gc.collect()
    budget = ts.budget(ts.memory_stats().live_bytes + int(share * peak))
    for _ in range(2):
        with budget:
            network.step()
    held = ts.memory_stats().live_bytes
    ts.reset_peak()
    with ts.Recording() as recording, budget:
        network.step()
    measured = ts.memory_stats().peak_bytes
    assert budget.report.followed
    assert {"pack", "recompute", "offload"} & {each.fate for each in budget.tensors()}
    trace = recording.trace()
    untouched = held - int(trace.size_bytes[Occupancy(trace).at_start].sum())
    assert resident_peak(trace) + untouched == measured <= budget.limit_bytes
    if budget.report.spilled_bytes:
        assert {Kind.EVICT, Kind.SAVE} <= set(trace.kind)
    else:
        assert Occupancy(trace).peak_bytes == resident_peak(trace)
