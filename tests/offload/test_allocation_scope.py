"""Whose memory a tensor is: the model's while it runs, trains or is updated, and nobody's else."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import accelera
from accelera import BudgetExceededError, offload, offloaded
from accelera.offload.memory_guard import arenas_in_torch
from tests.children import answer_of
from tests.threads import run_in_threads

MIB = 1 << 20
SMALL = 8 << 10
"""Gradients too small for the pool stay in memory, and count."""

pytestmark = pytest.mark.skipif(not arenas_in_torch(), reason="the library for this torch is not built")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))


def model_in(budget: str = "64MiB", **options: Any) -> nn.Module:
    return offload(net(), budget, **options)


def charged(model: nn.Module) -> int:
    """Bytes that count against the budget and are no blocks."""
    gc.collect()
    arena = offloaded(model).cache.scope.arena
    assert arena is not None
    return arena.ordinary_bytes


def is_charged(model: nn.Module) -> bool:
    """Whether a tensor that is made now counts."""
    before = charged(model)
    tensor = torch.empty(MIB, dtype=torch.uint8)
    after = charged(model)
    del tensor
    return after - before == MIB


X = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))


def test_inference_is_charged_and_what_follows_is_not() -> None:
    model = model_in().eval()
    with torch.no_grad():
        result = model(X)
        assert charged(model) == result.nbytes
        assert not is_charged(model)
        del result
    assert charged(model) == 0


def test_a_graph_that_is_used_twice() -> None:
    model = model_in()
    loss = model(X).square().mean()
    seen: list[bool] = []
    model[0].weight.register_post_accumulate_grad_hook(lambda _: seen.append(is_charged(model)))
    loss.backward(retain_graph=True)
    assert not is_charged(model)
    loss.backward()
    assert seen == [True, True]
    assert not is_charged(model)


def test_an_error_in_the_forward_pass_ends_it() -> None:
    model = model_in()
    with pytest.raises(RuntimeError):
        model(torch.randn(3, 3))
    assert not is_charged(model)


def test_an_error_in_the_backward_pass_ends_it() -> None:
    model = model_in()

    def fail(_: torch.Tensor) -> None:
        raise ValueError("mine")

    model[0].weight.register_hook(fail)
    loss = model(X).square().mean()
    with pytest.raises(ValueError, match="mine"):
        loss.backward()
    del loss
    assert not is_charged(model)


def test_the_optimizers_step_is_charged_also_when_it_fails() -> None:
    model = model_in()
    seen: list[bool] = []

    class Watched(torch.optim.SGD):
        fails = False

        def step(self, closure: Any = None) -> Any:
            seen.append(is_charged(model))
            if self.fails:
                raise ValueError("mine")
            return super().step(closure)

    optimizer = Watched(model.parameters(), 0.1)
    model(X).square().mean().backward()
    optimizer.step()
    assert not is_charged(model)
    optimizer.fails = True
    with pytest.raises(ValueError, match="mine"):
        optimizer.step()
    model(X).square().mean().backward()
    assert not is_charged(model)
    assert seen == [True, True]


def test_single_operations_on_weights_are_charged() -> None:
    model = model_in()
    with torch.no_grad():
        result = X @ model[0].weight.t()
    assert charged(model) == result.nbytes
    assert not is_charged(model)


def test_other_threads_are_not_charged() -> None:
    model = model_in()
    result = model(X)
    seen: list[bool] = []
    run_in_threads(lambda: seen.append(is_charged(model)))
    assert seen == [False]
    run_in_threads(result.sum().backward)
    del result
    torch.empty(0)
    model.eval()
    with torch.no_grad():
        model(X)
    assert not is_charged(model)


def test_two_offloaded_models_have_their_own() -> None:
    one, other = model_in(), model_in()
    first = one(X)
    second = other(first)
    second.square().mean().backward()
    assert 0 <= charged(one) - first.nbytes < SMALL
    assert 0 <= charged(other) - second.nbytes < SMALL
    assert not is_charged(one)
    assert not is_charged(other)


def test_a_model_inside_another_that_is_offloaded_as_well() -> None:
    class Outer(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = [inner]
            self.layer = nn.Linear(256, 256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inner = self.inner[0](x)
            assert not is_charged(self.inner[0])
            assert is_charged(self)
            return self.layer(inner)

    inner = model_in()
    outer = offload(Outer(inner), "64MiB")
    for _ in range(3):
        outer(X).square().mean().backward()
        assert not is_charged(outer)
        assert not is_charged(inner)


def test_a_restored_model_is_charged_no_more() -> None:
    model = model_in()
    handle = offloaded(model)
    model(X).square().mean().backward()
    handle.restore()
    result = model(X)
    arena = handle.cache.scope.arena
    before = arena.ordinary_bytes
    result.square().mean().backward()
    del result
    gc.collect()
    assert arena.ordinary_bytes <= before


def test_a_refused_budget_names_one_that_does() -> None:
    torch.manual_seed(0)
    rows = torch.randn(6000, 256)

    def trained(budget: int) -> None:
        model = offload(net(), budget, activations="keep")
        model(rows).square().mean().backward()

    budget, refusals = 30 * MIB, 0
    while budget < 70 * MIB:
        named = refused_budget(trained, budget)
        if named is None:
            break
        assert named > budget, "the budget that a refusal names takes the step beyond that point"
        budget, refusals = named, refusals + 1
    assert 1 <= refusals <= 20
    assert budget < 70 * MIB


def test_after_a_refusal_a_thread_takes_from_no_arena() -> None:
    """Also not from that of a model that is gone, which the refused operation was using."""
    for _ in range(3):
        model = offload(net(), 30 * MIB, activations="keep")
        result = model(X)
        with pytest.raises(BudgetExceededError):
            model(torch.randn(20_000, 256))
        assert not is_charged(model)
        del model, result
        gc.collect()
        torch.empty(MIB, dtype=torch.uint8).fill_(1)


def refused_budget(trained: Callable[[int], None], budget: int) -> int | None:
    """Return the budget that the refused operation needs; None when ``budget`` does."""
    try:
        trained(budget)
    except BudgetExceededError as refused:
        if "this operation needs at least" in str(refused):
            return refused.needed_bytes
        raise
    return None


PROGRAM = """
import gc, json, sys, torch
import accelera
from accelera.memory import process_memory
if "process" in sys.argv:
    from accelera.offload import block_cache as keeping
    keeping.arenas_in_torch = lambda: False
from tests.offload.language_model import language_model, WORDS

torch.set_num_threads(2)
tokens = torch.randint(0, WORDS, (2, 12), generator=torch.Generator().manual_seed(1))

def made():
    return language_model(width=512, blocks=3).train()

def trained(model, steps=2):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(tokens).logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
    return loss.item(), optimizer

plain = made()
weights = sum(each.nbytes for each in plain.parameters())
expected, theirs = trained(plain)
if "drop" in sys.argv:
    del plain, theirs
    gc.collect()
model = accelera.offload(made(), weights)
before, peak = process_memory().anon_bytes, 0
found, ours = trained(model)
if "beside" in sys.argv:
    for _ in range(3):
        for each, optimizer in ((plain, theirs), (model, ours)):
            optimizer.zero_grad()
            each(tokens).logsumexp(-1).mean().backward()
            optimizer.step()
print(json.dumps({"expected": expected, "found": found, "weights": weights}))
"""


@pytest.mark.parametrize("counted", ["arena", "process"])
@pytest.mark.parametrize("situation", ["drop", "beside"])
def test_a_plain_model_that_was_or_is_there_takes_nothing_of_the_budget(situation: str, counted: str) -> None:
    """A baseline first and the offloaded model then, in one process, as in a notebook."""
    found = answer_of("-c", PROGRAM, situation, counted)
    assert found["weights"] > 30 * MIB
    assert found["found"] == pytest.approx(found["expected"], rel=1e-5)


def test_a_process_that_cannot_count_says_what_is_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelera.offload.block_cache.arenas_in_torch", lambda: False)
    monkeypatch.setattr("accelera.offload.block_cache.free_heap_bytes", lambda: 3 * MIB)
    held = {"bytes": 200 * MIB}
    monkeypatch.setattr("accelera.offload.block_cache.held_on", lambda _: lambda: held["bytes"])
    model = accelera.offload(net(), "26MiB", activations="keep")
    entry = offloaded(model).cache.scope.open("training")
    held["bytes"] += 64 * MIB
    with pytest.raises(BudgetExceededError, match=r"of it 3.0 MiB free heap that the C library keeps"):
        model(X)
    entry.close()
