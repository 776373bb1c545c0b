"""Backward passes: nodes of the model count against its budget, nodes of the program do not."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import checkpoint as checkpointing
from torch.utils.checkpoint import checkpoint

from accelera import offload, offloaded
from accelera.offload.memory_guard import arenas_in_torch
from tests.threads import run_in_threads

MIB = 1 << 20
WIDTH = 192
X = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(1))

pytestmark = pytest.mark.skipif(not arenas_in_torch(), reason="the library for this torch is not built")


def is_charged(arena: Any) -> bool:
    """Whether a tensor that this thread creates now counts against the budget of ``arena``."""
    before = arena.ordinary_bytes
    tensor = torch.empty(MIB, dtype=torch.uint8)
    assert tensor.numel() == MIB
    return arena.ordinary_bytes - before == MIB


class Probe(torch.autograd.Function):
    """Identity that calls a function in the forward and in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, note: Callable[[str], None]) -> torch.Tensor:
        ctx.note = note
        note("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.note("backward")
        return gradient * 1, None


class Notes:
    """Whether the model was charged, each time that a probe ran."""

    def __init__(self) -> None:
        self.arena: Any = None
        self.seen: list[tuple[str, str, bool]] = []

    def probe(self, place: str, x: torch.Tensor) -> torch.Tensor:
        def note(direction: str) -> None:
            self.seen.append((place, direction, is_charged(self.arena)))

        return Probe.apply(x, note)

    def check(self, *, times: int = 1) -> None:
        """Check that all probes of the model were charged, and no other."""
        assert self.seen
        assert {(place, charged) for place, _, charged in self.seen} <= {("model", True), ("program", False)}
        backwards = [place for place, direction, _ in self.seen if direction == "backward"]
        assert backwards.count("model") >= times
        assert not is_charged(self.arena)
        self.seen.clear()


class Block(nn.Module):
    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.notes = [notes]
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.notes[0].probe("model", self.down(self.up(x).relu()))


def _selective(function: Any, *args: Any) -> Any:
    keep = [torch.ops.aten.addmm.default]
    contexts = functools.partial(checkpointing.create_selective_checkpoint_contexts, keep)
    return checkpoint(function, *args, use_reentrant=False, context_fn=contexts)


def _nested(function: Any, *args: Any, reentrant: bool) -> Any:
    inner = functools.partial(checkpoint, function, use_reentrant=reentrant)
    return checkpoint(inner, *args, use_reentrant=reentrant)


RECOMPUTATIONS: dict[str, Callable[..., Any]] = {
    "none": lambda function, *args: function(*args),
    "reentrant": functools.partial(checkpoint, use_reentrant=True),
    "not_reentrant": functools.partial(checkpoint, use_reentrant=False),
    "selective": _selective,
    "nested_reentrant": functools.partial(_nested, reentrant=True),
    "nested_not_reentrant": functools.partial(_nested, reentrant=False),
}


class Net(nn.Module):
    def __init__(self, notes: Notes, recomputation: str) -> None:
        super().__init__()
        self.recomputation = recomputation
        self.blocks = nn.ModuleList(Block(notes) for _ in range(3))

    def forward(self, x: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        for block in self.blocks:
            x = RECOMPUTATIONS[self.recomputation](block, x)
        return {"hidden": [x]}


def offloaded_net(recomputation: str = "none", activations: str = "auto") -> tuple[nn.Module, Notes]:
    torch.manual_seed(0)
    notes = Notes()
    model = offload(Net(notes, recomputation).train(), "64MiB", activations=activations)
    notes.arena = offloaded(model).cache.scope.arena
    return model, notes


def loss_of(model: nn.Module, notes: Notes, x: torch.Tensor = X) -> torch.Tensor:
    """Return a loss with probes of the program before and after the model."""
    x = notes.probe("program", x.clone().requires_grad_())
    y = model(x)["hidden"][0]
    assert not is_charged(notes.arena)
    return notes.probe("program", notes.probe("program", y).square()).mean()


@pytest.mark.parametrize("activations", ["auto", "offload", "keep", "recompute"])
@pytest.mark.parametrize("recomputation", RECOMPUTATIONS)
def test_model_nodes_are_charged_and_no_others(recomputation: str, activations: str) -> None:
    model, notes = offloaded_net(recomputation, activations)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, notes).backward()
        optimizer.step()
        notes.check(times=3)


@pytest.mark.parametrize("recomputation", RECOMPUTATIONS)
def test_several_forwards_before_the_backward(recomputation: str) -> None:
    model, notes = offloaded_net(recomputation)
    losses = [loss_of(model, notes, X * scale) for scale in (1, 2, 3)]
    losses[1].backward()
    notes.check(times=3)
    torch.stack([losses[0], losses[2]]).sum().backward()
    notes.check(times=6)


@pytest.mark.parametrize("recomputation", RECOMPUTATIONS)
def test_backward_in_another_thread(recomputation: str) -> None:
    model, notes = offloaded_net(recomputation)
    loss = loss_of(model, notes)
    run_in_threads(loss.backward)
    notes.check(times=3)
    loss_of(model, notes).backward()
    notes.check(times=3)


@pytest.mark.parametrize("recomputation", ["none", "not_reentrant", "nested_not_reentrant"])
def test_double_backward(recomputation: str) -> None:
    model, notes = offloaded_net(recomputation)
    loss = loss_of(model, notes)
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    notes.check(times=3)
    sum(gradient.square().sum() for gradient in gradients).backward()
    assert not is_charged(notes.arena)


@pytest.mark.parametrize("recomputation", RECOMPUTATIONS)
def test_errors_in_a_backward_end_the_charge(recomputation: str) -> None:
    model, notes = offloaded_net(recomputation)

    def fail(*_: Any) -> None:
        raise ValueError("mine")

    calls = itertools.count()
    counted = model.blocks[1].register_forward_pre_hook(
        lambda *_: fail() if recomputation != "none" and next(calls) == 1 else None
    )
    hook = model.blocks[0].up.weight.register_hook(fail)
    with pytest.raises(ValueError, match="mine"):
        loss_of(model, notes).backward()
    assert not is_charged(notes.arena)
    hook.remove()
    counted.remove()
    notes.seen.clear()
    loss_of(model, notes).backward()
    notes.check(times=3)


def test_hooks_of_the_model_are_charged() -> None:
    model, notes = offloaded_net("reentrant")
    seen: list[bool] = []
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda _: seen.append(is_charged(notes.arena)))
    loss_of(model, notes).backward()
    assert len(seen) == 12
    assert all(seen)


def test_loss_of_a_captured_value_is_charged() -> None:
    """The backward pass enters the model by a value that the model did not return."""
    model, notes = offloaded_net("not_reentrant", "keep")
    captured: list[torch.Tensor] = []
    model.blocks[1].register_forward_hook(lambda _, __, output: captured.append(output))
    with torch.enable_grad():
        model(X.clone().requires_grad_())
    captured[0].square().mean().backward()
    assert [charged for _, direction, charged in notes.seen if direction == "backward"][-1]
    assert not is_charged(notes.arena)


def test_outputs_that_are_inputs_belong_to_the_program() -> None:
    class Passing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, self.linear(x)

    notes = Notes()
    model = offload(Passing().train(), "64MiB")
    notes.arena = offloaded(model).cache.scope.arena
    same, _ = model(notes.probe("program", X.clone().requires_grad_()))
    same.sum().backward()
    notes.check(times=0)


def test_two_models_in_a_chain_have_their_own_nodes() -> None:
    first, first_notes = offloaded_net("reentrant")
    second, second_notes = offloaded_net("not_reentrant")
    y = first(X.clone().requires_grad_())["hidden"][0]
    loss_of(second, second_notes, y).backward()
    second_notes.check(times=3)
    first_notes.seen.clear()
    y = first_notes.probe("program", first(X.clone().requires_grad_())["hidden"][0])
    second(y)["hidden"][0].sum().backward()
    first_notes.check(times=3)


@pytest.mark.parametrize("tensors", [1, 40])
def test_tensors_of_the_program_fit_while_a_graph_is_alive(tensors: int) -> None:
    model, notes = offloaded_net()
    loss = loss_of(model, notes)
    own = [torch.zeros(160 * MIB // tensors, dtype=torch.uint8) for _ in range(tensors)]
    loss.backward()
    loss_of(model, notes).backward()
    assert len(own) == tensors
