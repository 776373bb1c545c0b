"""Writing to tensors and views of them, with gradients: against PyTorch, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.tensora import autograd
from accelera.tensora.core import native

F64 = native.dtype.float64


def leaf(values: Any) -> Any:
    x = native.asarray(values, F64)
    x.requires_grad = True
    return x


def gradients_of_both(program: Any, *arrays: Any) -> None:
    """Run a program with Tensora's tensors and PyTorch's; compare values and gradients."""
    ours = [leaf(each) for each in arrays]
    theirs = [torch.tensor(np.asarray(each, np.float64), requires_grad=True) for each in arrays]
    own, other = program(*ours), program(*theirs)
    np.testing.assert_allclose(np.asarray(own.detach().tolist()), other.detach().numpy())
    weight = np.arange(1.0, own.size + 1).reshape(tuple(own.shape))
    autograd.backward(own, native.asarray(weight))
    other.backward(torch.tensor(weight))
    for a, b in zip(ours, theirs, strict=True):
        expected = np.zeros(b.shape) if b.grad is None else b.grad.numpy()
        np.testing.assert_allclose(
            np.asarray(a.grad.tolist() if a.grad is not None else 0 * expected), expected
        )


def test_an_operation_in_place() -> None:
    def program(x: Any, y: Any) -> Any:
        z = x * 2
        z += y
        z *= 3
        return z

    gradients_of_both(program, [1.0, 2.0], [3.0, 4.0])


def test_a_row_is_assigned() -> None:
    def program(x: Any, y: Any) -> Any:
        z = x * 1
        z[1] = y * y
        return z * z

    gradients_of_both(program, np.arange(6.0).reshape(3, 2), [3.0, 4.0])


def test_a_view_of_a_view_is_written() -> None:
    def program(x: Any, y: Any) -> Any:
        z = x * 1
        row = z[0]
        part = row[1:]
        part *= y
        return z * row[0] + part[0]

    gradients_of_both(program, np.arange(6.0).reshape(2, 3) + 1, [3.0, 4.0])


def test_a_view_taken_before_sees_what_is_written_to_its_base() -> None:
    def program(x: Any) -> Any:
        z = x * 2
        view = z[1:]
        z *= 3
        return view * view

    gradients_of_both(program, [1.0, 2.0, 3.0])


def test_a_tensor_without_gradient_gets_one_by_assignment() -> None:
    w = native.full((2, 3), 0, F64)
    v = leaf([1.0, 2.0, 3.0])
    w[0] = v * 2
    w[:, 1] = v[2]
    autograd.backward(native.sum(w * w))
    t, u = (
        torch.zeros(2, 3, dtype=torch.float64),
        torch.tensor([1.0, 2, 3], dtype=torch.float64, requires_grad=True),
    )
    t[0] = u * 2
    t[:, 1] = u[2]
    (t * t).sum().backward()
    np.testing.assert_allclose(v.grad.tolist(), u.grad.numpy())


@pytest.mark.parametrize("index", ["tensor", "mask", "apart"])
def test_assignment_by_tensors(index: str) -> None:
    def program(x: Any, y: Any) -> Any:
        z = x * 1
        if index == "tensor":
            z[[2, 0]] = y
        elif index == "mask":
            z[[True, False, True]] = y
        else:
            z[[0, 2], :, [1, 0]] = y
        return z * z

    shape = (3, 2, 2) if index == "apart" else (3, 2)
    gradients_of_both(program, np.arange(np.prod(shape)).reshape(shape), np.arange(4.0).reshape(2, 2) + 10)


@st.composite
def memory_of_others(draw: st.DrawFn) -> Any:
    """Draw an array of NumPy, of 2 or 3 axes, whose elements lie in any order, with gaps or backwards."""
    shape = draw(st.lists(st.integers(1, 4), min_size=2, max_size=3))
    steps = [draw(st.sampled_from([1, 2, 3, -1, -2])) for _ in shape]
    room = np.arange(1.0, 1 + np.prod([n * abs(step) for n, step in zip(shape, steps, strict=True)]))
    room = room.reshape([n * abs(step) for n, step in zip(shape, steps, strict=True)])
    part = room[tuple(slice(None, None, step) for step in steps)]
    return part.transpose(draw(st.permutations(range(len(shape)))))


@settings(max_examples=150, deadline=None)
@given(memory_of_others(), st.data())
def test_views_of_memory_in_any_order_are_written(array: Any, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, array.shape[0] - 1))
    last = data.draw(st.integers(1, array.shape[-1]))

    def program(base: Any, y: Any) -> Any:
        view = base[first:]
        part = view[..., :last]
        part *= y[:last]
        view[0] = y[0]
        return view * view + base[-1] * y[-1]

    ours, theirs = leaf(np.arange(1.0, 1 + array.shape[-1])), torch.arange(1.0, 1 + array.shape[-1]).double()
    theirs.requires_grad = True
    other = program(torch.tensor(array.copy(order="C")), theirs)
    own = program(native.from_dlpack(array), ours)
    np.testing.assert_allclose(np.asarray(own.detach()), other.detach().numpy())
    autograd.backward(native.sum(own * own))
    (other * other).sum().backward()
    np.testing.assert_allclose(np.asarray(ours.grad), theirs.grad.numpy())


def test_second_derivatives_through_an_assignment_to_memory_in_another_order() -> None:
    def function(x: Any, y: Any) -> Any:
        z = native.from_dlpack(np.arange(24.0).reshape(6, 4)[::2, ::-1].T)
        z[1:] = x * y[1:]
        z[:, 1] *= y[:, 0]
        return z * z

    inputs = [leaf(np.arange(3.0)), leaf(np.arange(1.0, 5.0).reshape(4, 1))]
    assert autograd.gradcheck(function, inputs)
    assert autograd.gradgradcheck(function, inputs)


def test_second_derivatives_through_an_assignment() -> None:
    def function(x: Any, y: Any) -> Any:
        z = x * x
        z[1:] = y * x[0]
        return z * z

    inputs = [leaf([1.0, 2.0, 3.0]), leaf([4.0, 5.0])]
    assert autograd.gradcheck(function, inputs)
    assert autograd.gradgradcheck(function, inputs)


def test_overlapping_assignment_reads_before_it_writes() -> None:
    x = native.asarray(np.arange(6.0))
    x[1:] = x[:-1]
    assert x.tolist() == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    y = native.asarray(np.arange(6.0))
    tail = y[1:]
    tail += y[:-1]
    assert y.tolist() == [0.0, 1.0, 3.0, 5.0, 7.0, 9.0]


def test_what_is_refused() -> None:
    x = leaf([1.0, 2.0])
    with pytest.raises(RuntimeError, match="a leaf that requires gradients is written in place"):
        x += 1
    with pytest.raises(RuntimeError, match="a leaf that requires gradients"):
        x[0] = 1.0
    with autograd.no_grad():
        x += 1
    assert x.tolist() == [2.0, 3.0]
    wide = native.expand(native.asarray([[1.0], [2.0]]), (2, 3))
    with pytest.raises(ValueError, match="lie at one place"):
        wide += 1
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        native.from_dlpack(frozen)[0] = 1.0
    counts = native.asarray([1, 2])
    with pytest.raises(TypeError, match="float32 does not fit elements of type int64"):
        counts += 0.5
    with pytest.raises(ValueError, match=r"do not broadcast|does not broadcast|cannot be written"):
        counts += native.asarray([[1, 2], [3, 4]])
    with pytest.raises(IndexError, match="index 5 of axis 0, which has 2 elements"):
        counts[5] = 1
