"""Plans of offloaded models beside what the runs then do: hits, misses and bytes are one and the same."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from accelera import offload, offloaded, plan_offload
from accelera.errors import BudgetExceededError, ShapeError
from accelera.offload import OffloadPlan
from accelera.offload._internal import OffloadReport
from accelera.simulator import simulate
from tests.offload.language_model import WORDS, language_model

BUDGET = 64 << 20


def layers(count: int = 8, width: int = 768) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))


def big_language_model() -> nn.Module:
    return language_model(width=256, blocks=4).eval()


def rows(count: int, width: int = 768) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(1))


def words() -> torch.Tensor:
    return torch.randint(0, WORDS, (2, 12), generator=torch.Generator().manual_seed(1))


def counted(report: OffloadReport) -> tuple[int, ...]:
    counts = (report.uses, report.hits, report.misses, report.evictions)
    return (*counts, report.fetched_bytes, report.saved_bytes)


def per_pass(model: nn.Module, one_pass: Callable[[], Any], count: int) -> list[tuple[int, ...]]:
    cache = offloaded(model).cache
    told = [counted(cache.report())]
    for _ in range(count):
        one_pass()
        gc.collect()
        told.append(counted(cache.report()))
    return [tuple(b - a for a, b in zip(*pair, strict=True)) for pair in itertools.pairwise(told)]


def predicted(plan: OffloadPlan) -> list[tuple[int, ...]]:
    return [
        (each.uses, each.hits, each.misses, each.evictions, each.bytes_read, each.bytes_written)
        for each in plan.passes
    ]


def inference(model: nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    def one_pass() -> None:
        with torch.no_grad():
            model(inputs)

    return one_pass


def training(model: nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def one_pass() -> None:
        model.zero_grad(set_to_none=True)
        model(inputs).mean().backward()
        optimizer.step()

    return one_pass


@pytest.mark.parametrize(
    ("build", "inputs", "budget"),
    [(layers, rows(16), BUDGET), (big_language_model, words(), 56 << 20)],
    ids=["layers", "language model"],
)
def test_inference_does_what_was_planned(build: Any, inputs: torch.Tensor, budget: int) -> None:
    model = offload(build().eval(), budget, inputs=inputs)
    plan = offloaded(model).plan
    assert plan is not None
    assert not plan.train
    assert per_pass(model, inference(model, inputs), len(plan.passes)) == predicted(plan)
    report = offloaded(model).report()
    assert report.peak_bytes == plan.peak_pool_bytes
    on_their_way = sum(each.bytes_read for each in plan.passes) - report.bytes_read
    assert 0 <= on_their_way <= offloaded(model).cache.window_bytes + plan.block_bytes
    offloaded(model).close()


@pytest.mark.parametrize("activations", ["auto", "keep"])
def test_training_moves_what_was_planned(activations: str) -> None:
    model, inputs = layers(6, 512).train(), rows(48, 512)
    offload(model, 55 << 20, inputs=inputs, activations=activations)
    plan = offloaded(model).plan
    assert plan is not None
    assert plan.train
    ran = per_pass(model, training(model, inputs), len(plan.passes))
    for real, planned in zip(ran, predicted(plan), strict=True):
        assert real[0] == planned[0]
        # Whether a block is read ahead at the end of one pass or in the next depends on when a thread comes.
        assert real[4:] == pytest.approx(planned[4:], rel=0.03, abs=2 * plan.block_bytes)
    offloaded(model).close()


def test_the_trace_of_a_plan_replays_to_its_figures() -> None:
    plan = plan_offload(layers(), rows(4), BUDGET, train=False)
    report = simulate(plan.trace, plan.capacity_bytes, plan.policy)
    assert report.fetched_bytes == sum(each.bytes_read for each in plan.passes)
    assert report.misses == sum(each.misses for each in plan.passes)
    assert report.hits == sum(each.hits for each in plan.passes)


def test_the_model_is_left_as_it_was() -> None:
    model = layers(3, 256).train()
    before = dict(model.named_parameters())
    bytes_before = {name: each.detach().clone() for name, each in before.items()}
    plan_offload(model, rows(2, 256), "1GiB")
    assert all(each is before[name] for name, each in model.named_parameters())
    assert all(torch.equal(each, bytes_before[name]) for name, each in model.named_parameters())
    assert all(each.grad is None for each in model.parameters())
    assert model.training
    assert not model._forward_hooks
    assert torch.equal(model(rows(2, 256)), layers(3, 256)(rows(2, 256)))


def test_a_model_that_nothing_could_hold_is_planned_by_shapes() -> None:
    def build() -> nn.Module:
        with torch.device("meta"):
            return nn.Sequential(*(nn.Linear(65536, 65536, bias=False) for _ in range(3)))

    plan = plan_offload(build(), torch.empty(1, 65536, device="meta"), "24GiB", train=False, passes=2)
    assert plan.weights_bytes == 3 * 65536**2 * 4
    assert plan.peak_bytes["ram"] <= 24 << 30
    assert plan.first.bytes_read == plan.weights_bytes


def test_a_plan_keeps_to_its_budget_and_tells_itself() -> None:
    plan = plan_offload(layers(), rows(16), BUDGET, train=False)
    assert plan.peak_bytes["ram"] <= BUDGET
    assert plan.capacity_bytes + sum(plan.reserved.values()) <= BUDGET
    assert plan.peak_bytes["disk"] == plan.weights_bytes
    assert plan.streamed_bytes + plan.resident_bytes == plan.weights_bytes
    assert len(plan.seconds) == len(plan.passes)
    assert all(seconds > 0 for seconds in plan.seconds)
    told = plan.explain()
    for word in ("inference of Sequential", "64.0 MiB", "peak", "first pass", "later passes"):
        assert word in told
    assert len(plan.table().splitlines()) == 1 + len(plan.passes)
    assert plan.to_dict()["passes"][0]["bytes_read"] == plan.first.bytes_read
    assert str(plan) == told


def test_a_longer_batch_reserves_more() -> None:
    small, large = (plan_offload(layers(2), rows(n), BUDGET, train=False) for n in (4, 1024))
    name = "activations and temporaries"
    assert large.reserved[name] - small.reserved[name] >= 1020 * 768 * 4
    assert large.capacity_bytes < small.capacity_bytes


def test_a_budget_that_is_too_small_is_refused_with_one_that_works() -> None:
    model, inputs = layers(4), rows(256)
    with pytest.raises(BudgetExceededError, match="smallest workable budget is") as refused:
        plan_offload(model, inputs, "8MiB", train=False)
    assert refused.value.budget_bytes == 8 << 20
    least = refused.value.needed_bytes
    plan = plan_offload(model, inputs, least + (1 << 20), train=False)
    assert plan.peak_bytes["ram"] <= least + (1 << 20)
    assert plan.minimum_budget_bytes == least


def test_offload_with_inputs_refuses_before_anything_is_moved() -> None:
    model = layers(2)
    with pytest.raises(BudgetExceededError):
        offload(model, "8MiB", inputs=rows(1))
    assert type(model[0].weight) is nn.Parameter


@pytest.mark.parametrize("train", [False, True])
def test_inputs_that_do_not_fit_name_the_layer(train: bool, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.Sequential(nn.GELU(), nn.Linear(300, 4)))
    says = r"^\[plan_offload\] 1\.1, a Linear of weight \(4, 300\).* cannot take \(4, 256\) of float32: .*300"
    with pytest.raises(ShapeError, match=says) as refused:
        plan_offload(model, torch.randn(4, 256), "256MiB", train=train)
    assert type(refused.value.__cause__) is RuntimeError
    assert not caplog.records


def test_training_of_a_plain_chain_on_inputs_that_do_not_fit_names_the_layer() -> None:
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024))
    with pytest.raises(ShapeError, match=r"\[plan_offload\] 0, a Linear .* cannot take \(3, 3\)"):
        plan_offload(model, torch.randn(3, 3), "72MiB", train=True)


@pytest.mark.parametrize(
    ("model", "inputs", "budget", "says"),
    [
        (5, torch.ones(1), "72MiB", "model is of type int: give a torch.nn.Module"),
        (nn.Linear(4, 4), None, "72MiB", "inputs=None: give a tensor"),
        (nn.Linear(4, 4), "72MiB", torch.ones(1), r"order is plan_offload\(model, inputs, budget\)"),
        (nn.Linear(4, 4), torch.ones(1), torch.ones(1), "budget is of type Tensor"),
        (nn.Linear(4, 4), (5,), "72MiB", "the model, a Linear .* must be Tensor, not int"),
    ],
)
def test_what_is_no_model_no_inputs_or_no_budget_is_refused(
    model: Any, inputs: Any, budget: Any, says: str
) -> None:
    with pytest.raises(TypeError, match=rf"^\[plan_offload\] .*{says}"):
        plan_offload(model, inputs, budget)


def test_an_error_of_the_models_own_code_is_its_own() -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x is None, "mine"
            return x

    with pytest.raises(AssertionError, match=r"^mine"):
        plan_offload(Own(), torch.ones(2), "72MiB", train=False)


@pytest.mark.parametrize("passes", [0, -1])
def test_no_passes_are_refused(passes: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        plan_offload(layers(1), rows(1), BUDGET, passes=passes)


def test_training_is_planned_the_same_where_gradients_are_off() -> None:
    def plan() -> OffloadPlan:
        return plan_offload(layers(2).train(), rows(4), budget=BUDGET, train=True, passes=2)

    with torch.no_grad():
        quietly = plan()
    assert predicted(quietly) == predicted(plan())
