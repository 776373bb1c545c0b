"""The exact sequence of accesses of small programs, worked out by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accelera import capture
from tests.capture.reading import check_conserved, told


class Runs(nn.Module):
    """Whatever a test wants to run."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def of(function: Any, *inputs: torch.Tensor) -> list[str]:
    """What inference by ``function`` does, without the frees at its end."""
    trace = capture(Runs(function), inputs, train=False)
    check_conserved(trace)
    return told(trace)


def test_linear_with_sgd() -> None:
    trace = capture(nn.Linear(4, 3), torch.ones(2, 4), optimizer="sgd", loss=lambda y: y.sum())
    assert told(trace) == [
        "addmm READ bias",
        "addmm READ input.0",
        "addmm READ weight",
        "addmm WRITE addmm",
        "sum READ addmm",
        "sum WRITE sum",
        "ones_like READ sum",
        "ones_like WRITE ones_like",
        # d(sum)/dy is a view of one 1: expanded, no memory of its own.
        "mm READ ones_like",
        "mm READ input.0",
        "mm WRITE weight.grad",
        "sum READ ones_like",
        "sum WRITE bias.grad",
        "sum FREE ones_like",
        "add_ READ weight",
        "add_ READ weight.grad",
        "add_ WRITE weight",
        "add_ READ bias",
        "add_ READ bias.grad",
        "add_ WRITE bias",
        # The loss goes first, then what the model returned.
        "add_ FREE sum",
        "add_ FREE addmm",
    ]
    sizes = dict(zip(trace.names, trace.size_bytes.tolist(), strict=True))
    assert sizes["weight"] == sizes["weight.grad"] == 48
    assert sizes["addmm"] == 24
    assert sizes["input.0"] == 32
    roles = dict(zip(trace.names, trace.roles, strict=True))
    assert roles == {
        "bias": "weight",
        "input.0": "input",
        "weight": "weight",
        "addmm": "activation",
        "sum": "activation",
        "ones_like": "activation",
        "weight.grad": "gradient",
        "bias.grad": "gradient",
    }
    assert set(trace.dtypes) == {"float32"}
    # Forward 2·m·n·k with m=2, k=4, n=3, and so is the weight's gradient.
    assert trace.flops[0] == trace.flops[3] == 2 * 2 * 4 * 3


def test_two_iterations_free_the_old_gradients_first() -> None:
    trace = capture(nn.Linear(4, 3, bias=False), torch.ones(2, 4), optimizer="sgd", steps=2)
    begin = trace.meta["iterations"]
    assert begin[0] == 0
    assert trace.ops[begin[1]] == "mm"
    between = [word for word in told(trace) if word.endswith("FREE weight.grad")]
    assert between == ["add_ FREE weight.grad"]


def test_an_update_in_place_is_read_and_then_written() -> None:
    assert of(lambda x: x.clone().add_(1), torch.ones(3)) == [
        "clone READ input.0",
        "clone WRITE clone",
        "add_ READ clone",
        "add_ WRITE clone",
        "add_ FREE clone",
    ]


def test_a_fill_of_everything_reads_nothing_and_of_a_part_does() -> None:
    def fill(x: torch.Tensor) -> None:
        y = x.clone()
        y.zero_()
        y[1:].fill_(2)
        y.copy_(x)

    assert of(fill, torch.ones(4))[2:] == [
        "zero_ WRITE clone",
        "fill_ READ clone",
        "fill_ WRITE clone",
        "copy_ READ input.0",
        "copy_ WRITE clone",
        "copy_ FREE clone",
    ]


def test_views_stand_for_their_storage_and_are_no_steps() -> None:
    def views(x: torch.Tensor) -> torch.Tensor:
        first, second = x.view(2, 6).t().chunk(2)
        return first.transpose(0, 1)[:, :1].unsqueeze(0) * second.expand(3, 2).sum()

    assert of(views, torch.ones(12))[:5] == [
        "sum READ input.0",
        "sum WRITE sum",
        "mul READ input.0",
        "mul READ sum",
        "mul WRITE mul",
    ]
    trace = capture(Runs(lambda x: x.view(3, 4).t() + 1), (torch.ones(12),), train=False)
    assert told(trace)[:2] == ["add READ input.0", "add WRITE add"]
    assert trace.stride.tolist()[:1] == [4]
    assert trace.step_count == 1


def test_an_operand_named_twice_is_read_once() -> None:
    assert of(lambda x: x * x, torch.ones(3))[:2] == ["mul READ input.0", "mul WRITE mul"]


def test_out_is_written_and_not_read() -> None:
    def out(x: torch.Tensor) -> None:
        torch.add(x, 1, out=torch.empty(3))

    assert of(out, torch.ones(3)) == [
        "empty WRITE empty",
        "add READ input.0",
        "add WRITE empty",
        "add FREE empty",
    ]


def test_a_resized_buffer_is_another_one() -> None:
    def grow(x: torch.Tensor) -> None:
        y = torch.empty(0)
        torch.add(x, 1, out=y)
        y.resize_(6).fill_(2)

    assert of(grow, torch.ones(3)) == [
        "add READ input.0",
        "add WRITE add",
        "add FREE add",
        "fill_ WRITE fill_",
        "fill_ FREE fill_",
    ]


def test_temporaries_die_where_python_lets_them_go() -> None:
    assert of(lambda x: (x + 1) * 2, torch.ones(3)) == [
        "add READ input.0",
        "add WRITE add",
        "mul READ add",
        "mul WRITE mul",
        "mul FREE add",
        "mul FREE mul",
    ]


def test_batch_norm_updates_its_running_figures_in_training_only() -> None:
    norm, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    training = told(capture(norm, x, optimizer=None))
    assert {
        f"native_batch_norm {k} {n}" for k in ("READ", "WRITE") for n in ("running_mean", "running_var")
    } <= {*training}
    inference = told(capture(norm, x, train=False))
    assert "native_batch_norm READ running_mean" in inference
    assert "native_batch_norm WRITE running_mean" not in inference


def test_reading_a_number_is_a_read() -> None:
    assert of(lambda x: x.sum().item(), torch.ones(3))[2:] == [
        "_local_scalar_dense READ sum",
        "_local_scalar_dense FREE sum",
    ]


def test_lists_of_tensors_are_taken_apart() -> None:
    assert of(lambda x, y: torch.cat([x, y]), torch.ones(3), torch.ones(2))[:3] == [
        "cat READ input.0",
        "cat READ input.1",
        "cat WRITE cat",
    ]
    optimizer = capture(
        nn.Linear(2, 2), torch.ones(1, 2), optimizer=lambda p: torch.optim.SGD(p, lr=0.1, foreach=True)
    )
    assert told(optimizer)[-8:-2] == [
        "_foreach_add_ READ weight",
        "_foreach_add_ READ bias",
        "_foreach_add_ READ weight.grad",
        "_foreach_add_ READ bias.grad",
        "_foreach_add_ WRITE weight",
        "_foreach_add_ WRITE bias",
    ]


def test_adamw_keeps_two_states_per_weight() -> None:
    trace = capture(nn.Linear(4, 3), torch.ones(2, 4))
    state = {name for name, role in zip(trace.names, trace.roles, strict=True) if role == "optimizer_state"}
    assert state == {f"{w}.{s}" for w in ("weight", "bias") for s in ("step", "exp_avg", "exp_avg_sq")}
    assert "workspace" in trace.roles


def test_empty_tensors_are_left_out() -> None:
    trace = capture(Runs(lambda x, y: torch.cat([x, y])), (torch.ones(0), torch.ones(2)), train=False)
    assert 0 not in trace.size_bytes
