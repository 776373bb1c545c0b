"""Fourier transforms beside NumPy and PyTorch, and gradients by finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from accelera.tensora import autograd, fft
from accelera.tensora.core import native
from tests.tensora.test_linalg import numbers, tensor

NORMS = ("backward", "ortho", "forward")


def same(found: Any, expected: Any) -> None:
    assert tuple(found.shape) == expected.shape
    assert found.dtype.name == expected.dtype.name
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
@pytest.mark.parametrize("n", [None, 1, 3, 4, 5, 9])
def test_transforms_of_an_axis_are_those_of_numpy(name: str, n: int | None, norm: str) -> None:
    real = name in ("rfft", "ihfft")
    for dtype in ("float32", "float64") if real else ("float32", "float64", "complex64", "complex128"):
        x = numbers((3, 5, 2), dtype)
        for axis in (1, -3):
            found = getattr(fft, name)(tensor(x), n=n, axis=axis, norm=norm)
            same(found, getattr(np.fft, name)(x, n=n, axis=axis, norm=norm))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
@pytest.mark.parametrize(
    ("s", "axes"), [(None, None), (None, (0, 2)), ((2, 7), (1, 0)), ((4, 3, 3), (0, 1, 2)), (None, (-1,))]
)
def test_transforms_of_several_axes_are_those_of_numpy(name: str, s: Any, axes: Any, norm: str) -> None:
    for dtype in ("float32", "float64") if name == "rfftn" else ("float64", "complex64", "complex128"):
        x = numbers((3, 4, 5), dtype)
        found = getattr(fft, name)(tensor(x), s=s, axes=axes, norm=norm)
        same(found, getattr(np.fft, name)(x, s=s, axes=axes, norm=norm))


def test_views_and_large_tensors() -> None:
    x = numbers((70, 1000))
    same(fft.rfftn(tensor(x)), np.fft.rfftn(x))
    view = native.permute(tensor(x), (1, 0))[::3, ::-1]
    same(fft.fft(view), np.fft.fft(x.T[::3, ::-1]))


def test_the_input_is_not_written() -> None:
    x = numbers((8,), "complex128")
    given = tensor(x)
    fft.fft(given)
    fft.irfft(given)
    np.testing.assert_array_equal(np.asarray(given), x)


def test_other_types_are_converted() -> None:
    assert fft.fft(native.asarray([1, 2, 3])).dtype.name == "complex64"
    half = native.cast(native.asarray([1.0, 2.0, 3.0]), native.dtype.bfloat16)
    assert fft.rfft(half).dtype.name == "complex64"
    assert fft.irfft(half).dtype.name == "float32"


def test_empty_batches() -> None:
    x = tensor(np.zeros((0, 4), np.float32))
    assert fft.fft(x, n=6).shape == (0, 6)
    assert fft.rfft(x).shape == (0, 3)
    assert fft.rfft(x).dtype.name == "complex64"
    assert fft.irfft(x).shape == (0, 6)
    assert fft.irfft(x).dtype.name == "float32"


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_and_shifts_are_those_of_numpy(n: int) -> None:
    same(fft.fftfreq(n, d=0.3), np.fft.fftfreq(n, d=0.3).astype(np.float32))
    same(fft.rfftfreq(n, d=2, dtype="float64"), np.fft.rfftfreq(n, d=2))
    x = numbers((n, 4, 3))
    for axes in (None, 0, (1, -1), (-3,)):
        same(fft.fftshift(tensor(x), axes=axes), np.fft.fftshift(x, axes=axes))
        same(fft.ifftshift(tensor(x), axes=axes), np.fft.ifftshift(x, axes=axes))


def test_arguments_that_do_not_fit_are_named() -> None:
    x = tensor(numbers((3, 4)))
    for call, words in (
        (lambda: fft.fft(x, norm="both"), r"\[fft\] norm='both'"),
        (lambda: fft.fft(x, n=0), r"\[fft\] .* 0 elements on axis 1"),
        (lambda: fft.irfft(x[:, :1]), r"\[irfft\] 0 elements"),
        (lambda: fft.fftn(x, s=(2,), axes=(0, 1)), "1 extents in s for 2 axes"),
        (lambda: fft.fftn(x, axes=(1, -1)), "an axis stands twice"),
        (lambda: fft.rfftn(x, axes=()), r"\[rfftn\] no axes"),
        (lambda: fft.fftfreq(0), r"\[fftfreq\] n=0"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(IndexError, match="axis 2 of a tensor with 2 dimensions"):
        fft.fft(x, axis=2)
    with pytest.raises(TypeError, match=r"\[rfft\] a tensor of complex128"):
        fft.rfft(tensor(numbers((3,), "complex128")))
    with pytest.raises(TypeError, match=r"\[fftfreq\] frequencies of type int64"):
        fft.fftfreq(3, dtype="int64")


# --- gradients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [None, 2, 4, 5])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_gradients_and_their_gradients(name: str, n: int | None, norm: str) -> None:
    for dtype in ("float64",) if name in ("rfft", "ihfft") else ("float64", "complex128"):
        x = tensor(numbers((3, 2), dtype), requires_grad=True)

        def transform(x: Any) -> Any:
            return getattr(fft, name)(x, n=n, axis=0, norm=norm)

        assert autograd.gradcheck(transform, x)
        assert autograd.gradgradcheck(transform, x)


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
@pytest.mark.parametrize("s", [None, (3, 5), (4, 2)])
def test_gradients_are_those_of_pytorch(name: str, s: Any) -> None:
    array = numbers((2, 3, 4), "float64" if name == "rfftn" else "complex128")
    x, y = tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)
    found = getattr(fft, name)(x, s=s, axes=(1, 2), norm="ortho")
    expected = getattr(torch.fft, name)(y, s=s, dim=(1, 2), norm="ortho")
    weight = numbers(tuple(expected.shape), str(expected.dtype).removeprefix("torch."), 1)
    (gradient,) = autograd.grad(found, x, tensor(weight))
    (reference,) = torch.autograd.grad(expected, y, torch.tensor(weight))
    np.testing.assert_allclose(np.asarray(gradient), reference.numpy(), atol=1e-12)


def test_gradients_of_shifts() -> None:
    x = tensor(numbers((3, 2)), requires_grad=True)
    assert autograd.gradcheck(fft.fftshift, x)
    assert autograd.gradcheck(lambda x: fft.ifftshift(x, axes=0), x)
