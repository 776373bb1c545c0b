"""Methods and attributes of Tensor: conversions, printing, pickling, iteration, views."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts

X = np.arange(6.0).reshape(2, 3)


def tensor(**options: Any) -> Any:
    return ts.tensor(X, **options)


# --- conversions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [each.name for each in ts.dtype if each.name != "bfloat16"])
def test_numpy_shares_memory(dtype: str) -> None:
    x = ts.ones((2, 3), dtype=dtype).T
    array = x.numpy()
    assert array.dtype.name == dtype
    assert array.shape == (3, 2)
    x[0, 1] = 0
    assert array[0, 1] == 0
    assert np.asarray(x, dtype=np.complex128)[0, 0] == 1


def test_bfloat16_becomes_float32() -> None:
    assert ts.ones(2, dtype=ts.bfloat16).numpy().dtype == np.float32
    assert np.asarray(ts.ones(2, dtype=ts.bfloat16)).tolist() == [1, 1]


def test_numpy_would_lose_gradients() -> None:
    with pytest.raises(RuntimeError, match=r"detach\(\)\.numpy\(\)"):
        tensor(requires_grad=True).numpy()


def test_to() -> None:
    x = tensor()
    assert x.to(ts.float64) is x
    assert x.to("cpu", ts.float32).dtype == ts.float32
    assert x.to(dtype="int8", device="cpu").dtype == ts.int8
    assert not ts.core.native.shares_memory(x.to(copy=True), x)
    assert (x.float().dtype, x.double().dtype, x.long().dtype) == (ts.float32, ts.float64, ts.int64)
    with pytest.raises(ValueError, match=r"no CUDA device|no device 'cuda:77'"):
        x.to("cuda:77")
    with pytest.raises(TypeError, match="float33"):
        x.to("float33")


def test_device_and_namespace() -> None:
    x = tensor()
    assert x.to_device(x.device) is x
    assert x.__array_namespace__(api_version="2024.12") is ts
    with pytest.raises(ValueError, match=r"2020\.12"):
        x.__array_namespace__(api_version="2020.12")


def test_numbers_from_tensors() -> None:
    x = ts.asarray(2)
    assert (int(x), float(x), complex(x), bool(x), [5, 6, 7][x], f"{x:03d}") == (
        2,
        2.0,
        2 + 0j,
        True,
        7,
        "002",
    )
    with pytest.raises(ValueError, match="truth"):
        bool(tensor())
    with pytest.raises(TypeError, match="index"):
        _ = [1][ts.asarray(0.0)]


# --- printing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: ts.asarray([1.0, 2.5]), "tensor([1. , 2.5])"),
        (lambda: ts.asarray(3), "tensor(3, dtype=int64)"),
        (lambda: ts.asarray([True]), "tensor([ True])"),
        (lambda: ts.zeros((0, 2), dtype=ts.int8), "tensor([], dtype=int8, shape=(0, 2))"),
        (lambda: ts.ones(2, dtype=ts.bfloat16), "tensor([1., 1.], dtype=bfloat16)"),
        (lambda: ts.tensor([1.0], requires_grad=True), "tensor([1.], requires_grad=True)"),
        (lambda: ts.tensor([1.0], requires_grad=True) * 2, "tensor([2.], grad_fn=multiply)"),
        (lambda: ts.eye(2), "tensor([[1., 0.],\n        [0., 1.]])"),
    ],
)
def test_repr(made: Any, expected: str) -> None:
    assert repr(made()) == str(made()) == expected


def test_large_tensors_are_summarised() -> None:
    written = repr(ts.zeros((50, 50)))
    assert "..." in written
    assert written.endswith("shape=(50, 50))")
    assert len(written) < 600


# --- pickling and copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(ts.dtype), ids=lambda each: each.name)
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 2)])
def test_pickling(dtype: Any, shape: tuple[int, ...]) -> None:
    x = ts.ones(shape, dtype=dtype)
    if x.ndim == 2:
        x = x.T
    for again in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), copy.copy(x)):
        assert (again.dtype, again.shape) == (x.dtype, x.shape)
        assert again.tolist() == x.tolist()
        assert not again.requires_grad


def test_pickled_leaves_still_require_gradients() -> None:
    again = pickle.loads(pickle.dumps(tensor(requires_grad=True)))
    assert again.requires_grad
    assert again.is_leaf


# --- the rest ---------------------------------------------------------------------------------------------


def test_iteration_and_containment() -> None:
    x = tensor()
    rows = list(x)
    assert [row.tolist() for row in rows] == X.tolist()
    rows[0][0] = 9
    assert x[0, 0] == 9
    assert 9 in x
    assert -1 not in x
    with pytest.raises(TypeError, match="0-d"):
        iter(ts.asarray(1))


def test_views_and_orders() -> None:
    x = tensor()
    assert x.T.shape == x.mT.shape == x.transpose(0, 1).shape == x.permute(1, 0).shape == (3, 2)
    assert x.reshape(3, -1).shape == x.reshape((3, -1)).shape == x.view(3, 2).shape == (3, 2)
    assert x.flatten().shape == (6,)
    assert x.unsqueeze(1).shape == (2, 1, 3)
    assert x.unsqueeze(1).squeeze(1).expand(4, -1, -1).shape == (4, 2, 3)
    assert ts.zeros((2, 3, 4)).T.shape == ts.zeros((2, 3, 4)).transpose().shape == (4, 3, 2)
    with pytest.raises(ValueError, match="view"):
        x.T.view(6)


def test_reductions_take_axes_by_position() -> None:
    x = tensor()
    assert x.sum(0).tolist() == [3, 5, 7]
    assert x.sum(axis=1, keepdims=True, dtype=ts.int64).tolist() == [[3], [12]]
    assert (x.mean().item(), x.max().item(), x.argmax().item(), x.any().item()) == (2.5, 5, 5, True)
    assert x.std(0, correction=1).tolist() == pytest.approx(X.std(0, ddof=1).tolist())


def test_backward_hooks_and_grad_fn() -> None:
    x = tensor().requires_grad_()
    seen: list[Any] = []
    y = x * 2
    hook = y.register_hook(seen.append)
    y.sum().backward(retain_graph=True)
    assert seen[0].tolist() == [[1.0] * 3] * 2
    assert x.grad.tolist() == [[2.0] * 3] * 2
    hook.remove()
    y.backward(ts.ones((2, 3), dtype=ts.float64))
    assert len(seen) == 1
    assert x.grad.tolist() == [[4.0] * 3] * 2
    name, first, _ = y._grad_fn
    assert name == "multiply"
    assert first is x


def test_writing_in_place() -> None:
    x = tensor()
    assert x.fill_(2) is x
    x += 1
    x *= 2
    assert x.tolist() == [[6.0] * 3] * 2
    assert x.zero_().sum() == 0
