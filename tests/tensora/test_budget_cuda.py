"""Training inside a budget of a CUDA device's bytes, with memory of the host behind it."""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts
from accelera.errors import BudgetExceededError
from accelera.tensora import cuda, functional, optim, step_plans
from tests.tensora import emulator
from tests.tensora.dlpack import Imported

WIDTH, ROWS, DEPTH = 32, 64, 6
KINDS = {
    "mlp": ("linear",),
    "norm": ("linear", "norm"),
    "dropout": ("dropout", "linear", "residual"),
    "attention": ("attention", "linear"),
}


@pytest.fixture(autouse=True, params=["eager"])
def fusion() -> None:
    """A budget has nothing wait: these tests run once."""


@pytest.fixture(params=["late", "early"])
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order in which the emulated device runs streams: other streams run after the usual one, or before."""
    monkeypatch.setenv("EMULATED_CUDA_ORDER", request.param)


class Network:
    """Layers of some kinds on a device, and a step of their training."""

    def __init__(self, device: str, kinds: tuple[str, ...], seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        ts.random.manual_seed(seed)
        self.kinds = kinds
        self.params = [
            ts.asarray((random.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5).astype("f")).to(device)
            for _ in range(DEPTH)
        ]
        self.params.append(ts.asarray(np.ones(WIDTH, "f")).to(device))
        for each in self.params:
            each.requires_grad_()
        data = random.normal(size=(2, ROWS, WIDTH)).astype("f")
        self.x, self.target = ts.asarray(data[0]).to(device), ts.asarray(data[1]).to(device)
        self.optim = optim.SGD(self.params, lr=0.05)

    def layer(self, x: Any, i: int) -> Any:
        kind = self.kinds[i % len(self.kinds)]
        y = x @ self.params[i]
        if kind == "norm":
            return functional.layer_norm(functional.gelu(y), (WIDTH,), self.params[-1])
        if kind == "dropout":
            return functional.dropout(functional.gelu(y), 0.3)
        if kind == "residual":
            return x + ts.tanh(y)
        if kind == "attention":
            heads = y.reshape((8, ROWS // 8, 4, WIDTH // 4)).permute(0, 2, 1, 3)
            mixed = functional.scaled_dot_product_attention(heads, heads, heads)
            return x + mixed.permute(0, 2, 1, 3).reshape((ROWS, WIDTH))
        return functional.relu(y)

    def step(self) -> Any:
        x = self.x
        for i in range(DEPTH):
            x = self.layer(x, i)
        loss = ((x - self.target) ** 2).mean()
        del x
        loss.backward()
        self.optim.step()
        self.optim.zero_grad()
        return loss


def live(device: str) -> int:
    gc.collect()
    return int(ts.memory_stats(device).live_bytes)


def free_run(device: str, kinds: tuple[str, ...], steps: int) -> tuple[list[float], int]:
    """Losses without a budget, and the most bytes that the steps held above those before them."""
    network = Network(device, kinds)
    before = live(device)
    ts.reset_peak(device)
    losses = [float(network.step()) for _ in range(steps)]
    return losses, int(ts.memory_stats(device).peak_bytes) - before


def trained(
    device: str, kinds: tuple[str, ...], room: int, steps: int = 4
) -> tuple[list[float], ts.TrainingBudget]:
    """Losses in that many bytes beyond those of the network, none of which is exceeded."""
    network = Network(device, kinds)
    budget = ts.budget(live(device) + room, device=device)
    losses = []
    for _ in range(steps):
        ts.reset_peak(device)
        with budget:
            loss = network.step()
        losses.append(float(loss))
        del loss
        assert ts.memory_stats(device).peak_bytes <= budget.limit_bytes
    return losses, budget


@pytest.mark.parametrize("name", KINDS)
def test_steps_keep_to_the_planned_bytes_with_the_same_bits(name: str, device: str) -> None:
    expected, peak = free_run(device, KINDS[name], 4)
    measured, refused = [], []
    for share in (0.8, 0.6, 0.4):
        before = live(device)
        try:
            losses, budget = trained(device, KINDS[name], int(share * peak))
        except BudgetExceededError as error:
            refused.append((share, error.needed_bytes > error.budget_bytes))
            continue
        assert losses == expected
        report = budget.report
        if budget.staircase()[-1].peak_bytes > budget.limit_bytes:
            continue  # no plan fits: it is kept to by what is stored as it comes
        assert report.followed, report.departure
        assert report.peak_bytes == report.predicted_bytes <= budget.limit_bytes
        assert report.spilled_bytes + report.reruns > 0
        measured.append(report.peak_bytes - before)
        del budget, report
    # What one operation needs is much of so small a network.
    assert all(share < 0.7 and more for share, more in refused)
    assert measured
    assert measured == sorted(measured, reverse=True)


@pytest.mark.usefixtures("order")
def test_contents_leave_for_memory_of_the_host(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_plans, "CUDA_SPILL_SECONDS_PER_BYTE", 1e-13)
    expected, peak = free_run(device, KINDS["dropout"], 4)
    on_host = ts.memory_stats("cpu").live_bytes
    losses, budget = trained(device, KINDS["dropout"], int(0.6 * peak))
    assert losses == expected
    assert budget.report.followed
    assert budget.report.spilled_bytes > 0
    assert budget.report.reruns == 0
    assert ts.memory_stats("cpu").live_bytes == on_host


@pytest.mark.usefixtures("order")
def test_a_device_without_pinned_memory_for_the_host_does_as_well(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_plans, "CUDA_SPILL_SECONDS_PER_BYTE", 1e-13)
    monkeypatch.setenv("EMULATED_CUDA_NO_HOST_MEMORY", "1")
    expected, peak = free_run(device, KINDS["mlp"], 3)
    losses, budget = trained(device, KINDS["mlp"], int(0.6 * peak), 3)
    assert losses == expected
    assert budget.report.spilled_bytes > 0


def test_less_budget_is_never_more_memory_nor_less_time(device: str) -> None:
    _, budget = trained(device, KINDS["norm"], 1 << 22, 2)
    stairs = budget.staircase()
    assert stairs[0].added_s == 0
    for better, worse in itertools.pairwise(stairs):
        assert worse.peak_bytes < better.peak_bytes
        assert worse.added_s >= better.added_s
    words = ts.explain(budget)
    assert "floor" in words


def test_slow_operations_take_longer_in_plans() -> None:
    columns = {
        "flops": [1e12, 1e12, 1e12],
        "moved_bytes": [0, 0, 0],
        "names": ["matmul", "conv", "conv_weight"],
    }
    product, convolution, weight = step_plans.operation_seconds(columns, "cuda:0")
    assert 9 < convolution / product < 11
    assert 7 < weight / convolution < 9
    assert len({*step_plans.operation_seconds(columns)}) == 1


def test_too_small_a_budget_is_refused_with_the_bytes_that_it_needs(device: str) -> None:
    network = Network(device, KINDS["mlp"])
    held = live(device)
    with (
        pytest.raises(BudgetExceededError, match="'matmul' needs") as error,
        ts.budget(held + 4096, device=device),
    ):
        network.step()
    assert error.value.needed_bytes > held + 4096
    with pytest.raises(BudgetExceededError, match="tensors hold"), ts.budget(1000, device=device):
        pass
    with pytest.raises(ValueError, match="no device 'cuda:63'"):
        ts.budget("1MiB", device="cuda:63")
    with pytest.raises(ValueError, match="no device 'gpu'"):
        ts.budget("1MiB", device="gpu")


def test_tensors_on_the_cpu_are_no_part_of_it(device: str) -> None:
    x = ts.ones((64, 64), device=device)
    with ts.budget(live(device) + (1 << 20), device=device) as budget:
        host = ts.ones((1000, 1000)) + 1
        y = (x + 1).to("cpu")
        z = ts.asarray(np.ones((8, 8), "f")).to(device) * 2
    assert float(host.sum()) == 2_000_000
    assert float(y.sum()) == 2 * 64 * 64
    assert float(z.sum()) == 128
    assert budget.report.peak_bytes <= budget.limit_bytes
    del budget
    gc.collect()
    assert float((z + z).sum()) == 256  # its arena lives as long as it


def test_budgets_of_both_kinds_in_turns(device: str) -> None:
    """A tensor that one of them keeps elsewhere is brought by it when the other's step reads it."""
    expected, peak = free_run(device, KINDS["mlp"], 6)
    network = Network(device, KINDS["mlp"])
    host = [ts.asarray(np.full((64, 64), float(i))) for i in range(4)]
    on_device = ts.budget(live(device) + int(0.6 * peak), device=device)
    on_cpu = ts.budget(live("cpu") + 3 * 32768)
    made: list[Any] = []
    losses = []
    for i in range(6):
        with on_cpu:
            made.append(host[i % 4] + 1)
        with on_device:
            losses.append(float(network.step()))
            assert float(made[0].sum()) == 64 * 64
        if len(made) == 2:
            made.clear()
            made.append(host[0] + 1)
    assert losses == expected


def test_gradients_end_inside_the_backward_pass(device: str) -> None:
    expected, peak = free_run(device, KINDS["mlp"], 4)
    network = Network(device, KINDS["mlp"])
    budget = ts.budget(live(device) + int(0.7 * peak), device=device, optimizer=network.optim)
    losses = []
    for _ in range(4):
        with budget:
            losses.append(float(network.step()))
    assert losses == expected
    assert budget.report.followed


@pytest.mark.usefixtures("order")
def test_what_was_stored_is_read_after_the_step(device: str) -> None:
    """It leaves the arena, which has no room for all of it."""
    x = ts.asarray(np.arange(2048, dtype="f")).to(device)
    with ts.budget(live(device) + 5 * 8192, device=device) as budget:
        kept = [x + i for i in range(12)]
    assert budget.report.spilled_bytes > 0
    for i, each in enumerate(kept):
        np.testing.assert_array_equal(each.to("cpu").numpy(), np.arange(i, 2048 + i, dtype="f"))


@pytest.mark.usefixtures("order")
def test_small_blocks_move_together_where_only_gaps_are_left(device: str) -> None:
    x = ts.asarray(np.arange(128, dtype="f")).to(device)
    big = ts.asarray(np.arange(2048, dtype="f")).to(device)
    with ts.budget(live(device) + 40 * 512, device=device):
        tensors = [x + i for i in range(40)]
        del tensors[::2]
        product = big * 2
        for i, tensor in enumerate(tensors):
            np.testing.assert_array_equal(tensor.to("cpu").numpy(), np.arange(128, dtype="f") + 2 * i + 1)
    np.testing.assert_array_equal(product.to("cpu").numpy(), 2 * np.arange(2048, dtype="f"))


@pytest.mark.parametrize("n_gap", [16, 512])
def test_large_operand_moves_by_a_few_bytes(n_gap: int, device: str) -> None:
    """Through other memory, or in parts: the device's copies between ranges that overlap are undefined."""
    gap, large = (ts.asarray(np.arange(n, dtype="f")).to(device) for n in (n_gap, 20480))
    with ts.budget(live(device) + 2 * large.nbytes, device=device):
        first, operand = gap + 1, large + 1
        del first
        product = operand * 2
    np.testing.assert_array_equal(operand.to("cpu").numpy(), np.arange(1, 20481))
    np.testing.assert_array_equal(product.to("cpu").numpy(), 2 * np.arange(1, 20481))


@pytest.mark.usefixtures("order")
def test_another_stream_sees_what_was_done_before(device: str) -> None:
    expected, peak = free_run(device, KINDS["norm"], 4)
    network = Network(device, KINDS["norm"])
    budget = ts.budget(live(device) + int(0.6 * peak), device=device)
    losses = []
    for i in range(4):
        with cuda.stream(cuda.Stream(device) if i % 2 else cuda.current_stream(device)), budget:
            losses.append(float(network.step()))
    assert losses == expected


def depart(x: Any) -> None:
    x * 2


def fail(_: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("then", [depart, fail])
def test_a_step_may_leave_its_plan(
    then: Callable[[Any], Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_plans, "CUDA_SPILL_SECONDS_PER_BYTE", 1e-13)
    kinds = KINDS["dropout"]
    _, peak = free_run(device, kinds, 1)
    network = Network(device, kinds)
    budget = ts.budget(live(device) + int(0.7 * peak), device=device)
    for until in range(0, DEPTH, 2):
        for _ in range(3):
            with budget:
                network.step()
        assert budget.report.followed, budget.report.departure
        expected = layers(network, until, lambda _: None)
        gc.collect()
        try:
            with budget:
                found = layers(network, until, then)
        except ZeroDivisionError:
            continue
        for one, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, wanted)


def layers(network: Network, until: int, then: Callable[[Any], Any]) -> list[Any]:
    ts.random.manual_seed(until)
    x, kept = network.x, []
    for i in range(DEPTH):
        x = network.layer(x, i)
        kept.append(x)
        if i == until:
            then(x)
    return [each.detach().to("cpu").numpy().copy() for each in kept]


@pytest.mark.parametrize("count", [1, 3, 17, 65, 1000])
def test_blocks_of_a_step_are_aligned_for_the_device(count: int, device: str) -> None:
    x = ts.asarray(np.arange(count, dtype="f")).to(device)
    with ts.budget(live(device) + 40_001, device=device):
        tensors = [x + i for i in range(6)]
        assert {Imported(tensor).address % 256 for tensor in tensors} == {0}
    for i, tensor in enumerate(tensors):
        np.testing.assert_array_equal(tensor.to("cpu").numpy(), np.arange(count, dtype="f") + i)
        assert Imported(tensor).address % 256 == 0


def test_pinned_memory_of_a_step_is_released_by_one_without(device: str) -> None:
    driver = emulator.driver()
    driver.emulated_pinned_bytes.restype = ctypes.c_size_t
    x = ts.asarray(np.arange(2048, dtype="f")).to(device)
    before = driver.emulated_pinned_bytes()
    budget = ts.budget(live(device) + 5 * 8192, device=device)
    for _ in range(2):
        with budget:
            tensors = [x + i for i in range(12)]
            for i, tensor in enumerate(tensors):
                np.testing.assert_array_equal(tensor.to("cpu").numpy(), np.arange(i, 2048 + i, dtype="f"))
            del tensors, tensor
        assert budget.report.spilled_bytes > 0
        assert driver.emulated_pinned_bytes() > before
    with budget:
        y = x + 1
    assert driver.emulated_pinned_bytes() == before
    with budget:
        tensors = [y + i for i in range(12)]
    for i, tensor in enumerate(tensors):
        np.testing.assert_array_equal(tensor.to("cpu").numpy(), np.arange(i + 1, 2049 + i, dtype="f"))
