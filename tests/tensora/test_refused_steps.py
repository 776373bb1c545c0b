"""Steps that do not fit their budget: they go on for their shapes alone, and the error names enough bytes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts
from accelera import BudgetExceededError
from accelera.tensora import functional, nn, optim
from accelera.tensora.core import native
from tests.tensora.budget_networks import Training
from tests.tensora.test_budget_floor import NETWORKS, OPTIMIZERS
from tests.tensora.test_op_table import CASES, accepts, tensors

FLOATS = ("float32", "float64", "float16", "bfloat16")


def refused(limit: int, step: Callable[[], Any]) -> BudgetExceededError:
    with pytest.raises(BudgetExceededError) as error, ts.budget(limit):
        step()
    assert error.value.needed_bytes > limit
    assert str(error.value).count("[budget]") == 1
    return error.value


def fits(limit: int, step: Callable[[], Any]) -> Any:
    budget = ts.budget(limit)
    with budget:
        result = step()
    assert budget.report.peak_bytes <= limit
    return result


def training(network: str, optimizer: str, read: bool) -> tuple[Callable[[], Any], list[Any]]:
    ts.random.manual_seed(5)
    model, shape = NETWORKS[network]()
    update = OPTIMIZERS[optimizer](model.parameters())
    x = ts.random.randn(*shape)

    def step() -> Any:
        update.zero_grad()
        loss = functional.softmax(model(x), dim=-1).square().mean()
        if read:
            loss.item()
        loss.backward()
        update.step()
        return loss

    return step, list(model.parameters())


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_named_bytes_are_enough_at_the_first_attempt(network: str, optimizer: str, share: float) -> None:
    step, _ = training(network, optimizer, read=False)
    budget = ts.budget("64MiB")
    with budget:
        expected = step().item()
    floor = budget.staircase()[-1].peak_bytes

    step, parameters = training(network, optimizer, read=False)
    before = [each.detach().numpy().copy() for each in parameters]
    outside = ts.memory_stats().live_bytes
    try:
        with ts.budget(max(1, int(share * floor))):
            step()
        return  # spilling idle tensors was enough
    except BudgetExceededError as error:
        needed = error.needed_bytes
    assert needed <= 4 * floor
    assert share > 0 or all(
        np.array_equal(a, b.detach().numpy()) for a, b in zip(before, parameters, strict=True)
    )
    del step, parameters, budget
    gc.collect()

    step, _ = training(network, optimizer, read=False)
    needed += max(0, ts.memory_stats().live_bytes - outside)
    assert fits(needed, step).item() == expected


@pytest.mark.parametrize("number", range(12))
def test_random_networks_fit_the_bytes_named_for_them(number: int) -> None:
    network = Training(number)
    outside = ts.memory_stats().live_bytes
    needed = refused(1, network.step_without_reads).needed_bytes
    del network
    gc.collect()
    network = Training(number)
    fits(needed + max(0, ts.memory_stats().live_bytes - outside), network.step_without_reads)


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_bytes_named_for_an_operation_are_enough(name: str, sample: Any) -> None:
    for dtype in (*FLOATS, "complex64", "int32", "bool"):
        if not accepts(sample, dtype):
            continue
        arguments = tensors(sample.inputs(dtype), dtype, sample)
        differentiable = sample.gradient and dtype in FLOATS

        def step(arguments: Any = arguments, differentiable: bool = differentiable) -> None:
            inputs = [
                x.detach().requires_grad_() if differentiable and x.dtype.name in FLOATS else x
                for x in arguments
            ]
            results = sample.call(*inputs)
            for y in results if isinstance(results, tuple | list) else [results]:
                if y.requires_grad:
                    native.sum(y, list(range(len(y.shape))), False).backward()

        try:
            step()
        except (TypeError, ValueError, RuntimeError):
            continue  # not defined or not differentiable for this type
        error = refused(1, step)
        assert "enough for the step" in str(error), (dtype, str(error))
        fits(error.needed_bytes, step)


def test_contents_that_were_not_computed_are_never_read() -> None:
    w = ts.ones((64, 64)).requires_grad_()
    x, y, kept = ts.ones((64, 64)), ts.zeros((64, 64)), []

    def read(see: Callable[[Any], Any]) -> None:
        loss = (x @ w).sum()
        loss.backward()
        y.__iadd__(x)
        kept.append(loss)
        see(loss)

    for see in (
        lambda loss: loss.item(),
        lambda loss: w.grad.tolist(),
        lambda loss: bool(loss > 0),
        lambda loss: y.tolist(),
        lambda loss: repr(loss),
        lambda loss: np.asarray(y),
    ):
        w.grad = None
        error = refused(1, lambda see=see: read(see))
        assert "what ran before contents were read" in str(error)
        assert y.tolist() == np.zeros((64, 64)).tolist()
    for lost in (kept[0], w.grad):
        with pytest.raises(RuntimeError, match="never computed"):
            lost.tolist()


def test_states_of_optimizers_are_usable_after_a_refusal() -> None:
    step, parameters = training("deep", "adam", read=True)
    free = ts.budget("64MiB")
    with free:
        step()
    before = [each.detach().numpy().copy() for each in parameters]
    refused(free.staircase()[-1].peak_bytes // 2, step)
    step()
    changes = [np.abs(a - b.detach().numpy()).max() for a, b in zip(before, parameters, strict=True)]
    assert all(0 < each < 1 for each in changes)


def test_another_error_of_the_step_is_not_replaced() -> None:
    with pytest.raises(KeyError, match="missing"), ts.budget(1):
        ts.ones((100, 100)) + 1
        raise KeyError("missing")


def test_a_scaled_loss_is_taken_as_finite() -> None:
    model = nn.Linear(30, 30)
    scaler, update = ts.amp.GradScaler(), optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        scaler.scale(model(ts.ones((50, 30))).square().mean()).backward()
        scaler.step(update)
        scaler.update()

    error = refused(1, step)
    assert "enough for the step" in str(error)
    update.zero_grad()
    fits(error.needed_bytes, step)


def test_a_refused_step_takes_no_memory_beyond_its_budget() -> None:
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(20)])
    update = optim.Adam(model.parameters())
    limit = ts.memory_stats().live_bytes + (2 << 20)
    ts.reset_peak()

    def step() -> None:
        x = ts.random.randn(10_000_000, 64)  # 2.5 GB
        model(x).square().mean().backward()
        update.step()

    error = refused(limit, step)
    assert "enough for the step" in str(error)
    assert ts.memory_stats().peak_bytes <= limit
    assert error.needed_bytes > 5_000_000_000
