"""Layers and losses against PyTorch's own samples of its modules (`module_db`)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.common_modules import module_db

import accelera.tensora as ts
from accelera.tensora import nn

EXCUSED = {
    "FractionalMaxPool2d": "not there",
    "FractionalMaxPool3d": "not there",
    "LinearCrossEntropyLoss": "not there",
    "NLLLoss2d": "a deprecated name",
    "LSTM": "test_nn_recurrent.py",
    "RNN": "test_nn_recurrent.py",
    "GRU": "test_nn_recurrent.py",
    "MultiheadAttention": "test_nn_attention.py",
    "Transformer": "test_nn_attention.py",
    "TransformerEncoder": "test_nn_attention.py",
    "TransformerEncoderLayer": "test_nn_attention.py",
    "TransformerDecoderLayer": "test_nn_attention.py",
}
DRAWN = ("Dropout", "RReLU")
"""In training their results are random numbers: compared in evaluation."""


def classes() -> list[Any]:
    seen = {}
    for info in module_db:
        name = info.module_cls.__name__
        if (
            name not in EXCUSED
            and not name.startswith("Lazy")  # test_nn_lazy.py
            and info.module_cls.__module__.startswith("torch.nn.modules")
        ):
            seen[name] = info
    return [pytest.param(info, id=name) for name, info in sorted(seen.items())]


def ours(value: Any) -> Any:
    """The same argument for Tensora."""
    if isinstance(value, torch.Tensor):
        made = ts.tensor(value.detach().numpy().copy())
        return made.requires_grad_() if value.requires_grad else made
    if isinstance(value, torch.dtype):
        return getattr(ts, str(value).removeprefix("torch."))
    if isinstance(value, list | tuple):
        return type(value)(ours(each) for each in value)
    return value


def leaf(value: Any) -> Any:
    """A tensor that collects its own gradient, with the same elements."""
    if isinstance(value, list | tuple):
        return type(value)(leaf(each) for each in value)
    return (
        value.detach().clone().requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor)
        else value
    )


def tensors(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [each for some in value for each in tensors(some)]
    return [value] if hasattr(value, "shape") else []


def array(value: Any) -> Any:
    return value.detach().numpy()


def compare(found: Any, expected: Any) -> None:
    for a, b in zip(tensors(found), tensors(expected), strict=True):
        np.testing.assert_allclose(array(a), array(b), rtol=1e-7, atol=1e-9)


def check(info: Any, sample: Any, training: bool) -> None:
    """Outputs, gradients of inputs and parameters, and buffers after one call."""
    arguments, keywords = sample.constructor_input.args, sample.constructor_input.kwargs
    theirs = info.module_cls(*arguments, **keywords).to(torch.float64).train(training)
    mine = getattr(nn, info.module_cls.__name__)(
        *ours(arguments), **{k: ours(v) for k, v in keywords.items()}
    )
    mine.to(ts.float64).train(training)
    mine.load_state_dict({name: each.numpy() for name, each in theirs.state_dict().items()})
    assert list(mine.state_dict()) == list(theirs.state_dict())
    given = tuple(leaf(each) for each in sample.forward_input.args)
    mirrored = ours(given)
    options = sample.forward_input.kwargs
    expected = theirs(*given, **options)
    found = mine(*mirrored, **{k: ours(v) for k, v in options.items()})
    compare(found, expected)
    if any(each.requires_grad for each in tensors(expected)):
        torch.autograd.backward([each.sum() for each in tensors(expected) if each.requires_grad])
        ts.backward([each.sum() for each in tensors(found) if each.requires_grad])
        for a, b in zip(tensors(mirrored), tensors(given), strict=True):
            if b.grad is not None:
                np.testing.assert_allclose(array(a.grad), array(b.grad), rtol=1e-6, atol=1e-8)
        for (name, a), (other, b) in zip(mine.named_parameters(), theirs.named_parameters(), strict=True):
            assert name == other
            assert (a.grad is None) == (b.grad is None), name
            if b.grad is not None:
                np.testing.assert_allclose(array(a.grad), array(b.grad), rtol=1e-6, atol=1e-8, err_msg=name)
    for (name, a), (other, b) in zip(mine.named_buffers(), theirs.named_buffers(), strict=True):
        assert name == other
        np.testing.assert_allclose(array(a), array(b), rtol=1e-7, err_msg=name)


@pytest.mark.parametrize("info", classes())
def test_a_module_is_pytorchs(info: Any) -> None:
    name = info.module_cls.__name__
    count = 0
    for training in (True, False):
        if training and any(word in name for word in DRAWN):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            samples = info.module_inputs_func(
                info, device="cpu", dtype=torch.float64, requires_grad=True, training=training
            )
            for sample in samples:
                check(info, sample, training)
                count += 1
    assert count


def test_as_many_classes_as_ever_are_compared() -> None:
    assert len(classes()) >= 95
