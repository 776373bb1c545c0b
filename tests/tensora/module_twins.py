"""Modules beside PyTorch's of the same name: the same weights, inputs, results and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_modules import module_db

import accelera.tensora as ts
from accelera.tensora import functional as F  # noqa: N812
from accelera.tensora import nn

TYPE_NAMES = {torch.float64: "float64", torch.float32: "float32"}
FUNCTIONS = {torch.relu: F.relu, torch.nn.functional.relu: F.relu, torch.nn.functional.gelu: F.gelu}


def translated(value: Any, known: dict[int, Any] | None = None) -> Any:
    """Tensors, types and functions of PyTorch as those of tensora, in tuples, lists and dicts as well.

    A tensor that occurs twice becomes one tensor.
    """
    known = {} if known is None else known
    if isinstance(value, torch.Tensor):
        if id(value) not in known:
            known[id(value)] = ts.asarray(value.detach().numpy().copy())
            known[id(value)].requires_grad = value.requires_grad
        return known[id(value)]
    if isinstance(value, dict):
        return {key: translated(each, known) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(translated(each, known) for each in value)
    if callable(value) and value in FUNCTIONS:
        return FUNCTIONS[value]
    return TYPE_NAMES.get(value, value) if isinstance(value, torch.dtype) else value


def twins(name: str, *args: Any, **options: Any) -> tuple[Any, Any]:
    """Module of tensora and PyTorch's with the same weights, in float64."""
    torch_options = {"dtype": torch.float64, **options}
    theirs = getattr(torch.nn, name)(*args, **torch_options)
    ours = getattr(nn, name)(*translated(args), **translated(torch_options))
    copy_state(theirs, ours)
    return ours, theirs


def copy_state(theirs: Any, ours: Any) -> None:
    """Give a module the weights of PyTorch's, whose names and shapes must be the same."""
    state = {name: translated(tensor) for name, tensor in theirs.state_dict().items()}
    assert {name: tuple(x.shape) for name, x in ours.state_dict().items()} == {
        name: tuple(x.shape) for name, x in state.items()
    }
    ours.load_state_dict(state)


def leaves(value: Any) -> Iterator[Any]:
    """Tensors in nested tuples, lists and dicts."""
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from leaves(each)
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    elif isinstance(value, (torch.Tensor, ts.Tensor)):
        yield value


def floats(value: Any) -> list[Any]:
    """Those of floating-point types."""
    return [each for each in leaves(value) if "float" in str(each.dtype)]


def numbers(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy()


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-9) -> None:
    """Raise AssertionError if nested tensors differ in number, shape or values."""
    first, second = list(leaves(ours)), list(leaves(theirs))
    assert len(first) == len(second)
    for mine, wanted in zip(first, second, strict=True):
        np.testing.assert_allclose(numbers(mine), numbers(wanted), rtol=tolerance, atol=tolerance)


def assert_twins(ours: Any, theirs: Any, *args: Any, tolerance: float = 1e-9, **options: Any) -> None:
    """Raise AssertionError if results or gradients, of inputs and of weights, differ."""
    theirs.zero_grad()
    ours.zero_grad()
    for each in floats([args, options]):
        if each.is_leaf:
            each.grad = None
    mine, my_options = translated([list(args), options])
    results, wanted = ours(*mine, **my_options), theirs(*args, **options)
    assert_close(results, wanted, tolerance)
    generator = np.random.default_rng(1)
    total: Any = 0
    expected: Any = 0
    for x, y in zip(floats(results), floats(wanted), strict=True):
        weights = generator.normal(size=tuple(y.shape))
        total = total + (x * ts.asarray(weights, dtype=x.dtype)).sum()
        expected = expected + (y * torch.tensor(weights, dtype=y.dtype)).sum()
    total.backward()
    expected.backward()
    for x, y in zip(floats([mine, my_options]), floats([list(args), options]), strict=True):
        if y.requires_grad and y.is_leaf:
            assert (x.grad is None) == (y.grad is None)
            assert_close([x.grad], [y.grad], tolerance)
    gradients = {name: weight.grad for name, weight in ours.named_parameters()}
    for name, weight in theirs.named_parameters():
        assert (gradients[name] is None) == (weight.grad is None), name
        assert_close([gradients[name]], [weight.grad], tolerance)


def samples(name: str) -> list[Any]:
    """PyTorch's own samples for a module."""
    info = next(each for each in module_db if each.module_cls.__name__ == name)
    return list(
        info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=True, training=False)
    )


def assert_samples(name: str) -> int:
    """Compare a module with PyTorch's for all of its samples, and return their number."""
    found = samples(name)
    for sample in found:
        made, given = sample.constructor_input, sample.forward_input
        ours, theirs = twins(name, *made.args, **made.kwargs)
        assert_twins(ours.eval(), theirs.eval(), *given.args, **given.kwargs)
    return len(found)
