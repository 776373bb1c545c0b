"""PyTorch's own samples give what they give without interception: values, strides, derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from accelera.interceptor.config import Route
from tests.interceptor.forcing import forced
from tests.interceptor.samples import OPERATORS, Sample, outputs, samples, significant_strides

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Casting complex values to real:UserWarning"),
]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int64)
TOLERANCES: dict[torch.dtype, dict[str, Any]] = {
    torch.float64: {"rtol": 1e-7, "atol": 1e-7},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.complex64: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 5e-2, "atol": 5e-2},
    torch.float16: {"rtol": 1e-2, "atol": 1e-2},
}


def assert_same(
    sample: Sample, computed: Callable[[Sample], Any], *routes: Route, ordinary: bool = True
) -> None:
    expected = outputs(computed(sample))
    for route in routes:
        with forced(route):
            found = outputs(computed(sample))
        for one, other in zip(found, expected, strict=True):
            if ordinary:
                assert_ordinary(one, other, route, sample.text)
            torch.testing.assert_close(
                one,
                other,
                **TOLERANCES.get(other.dtype, {}),
                equal_nan=True,
                msg=lambda text: f"{sample.text}: {text}",
            )


def assert_ordinary(one: torch.Tensor, other: torch.Tensor, route: Route, text: str) -> None:
    """Assert that ``one`` lies in memory as ``other`` does, and is resized like it unless it is in a file."""
    assert significant_strides(one) == significant_strides(other), text
    if route != "spilled":
        assert one.untyped_storage().resizable() == other.untyped_storage().resizable(), text


@pytest.mark.parametrize("name", OPERATORS)
def test_values(name: str) -> None:
    for dtype in DTYPES:
        for sample in samples(name, dtype):
            assert_same(sample, lambda sample: sample.call(*sample.tensors), "chunked", "spilled")
            assert all(each.untyped_storage().resizable() for each in sample.tensors), sample.text


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients(name: str) -> None:
    for dtype in (torch.float64, torch.complex128):
        for sample in samples(name, dtype, gradients=True, most=6):
            assert_same(sample, gradients, "chunked")


@pytest.mark.parametrize("name", OPERATORS)
def test_second_gradients(name: str) -> None:
    for sample in samples(name, torch.float64, gradients=True, most=4):
        assert_same(sample, second_gradients, "chunked", ordinary=False)


@pytest.mark.parametrize("name", OPERATORS)
def test_forward_derivatives(name: str) -> None:
    for sample in samples(name, torch.float64, most=4):
        assert_same(sample, tangents, "chunked")


def gradients(sample: Sample) -> list[Any]:
    results, wanted = differentiable(sample)
    return list(torch.autograd.grad(results, wanted, weights(results), allow_unused=True)) if results else []


def second_gradients(sample: Sample) -> list[Any]:
    results, wanted = differentiable(sample)
    if not results:
        return []
    directions = [each.requires_grad_() for each in weights(results)]
    first = torch.autograd.grad(results, wanted, directions, create_graph=True, allow_unused=True)
    again = [each for each in first if each is not None and each.requires_grad]
    if not again:
        return []
    return list(torch.autograd.grad(again, [*wanted, *directions], weights(again), allow_unused=True))


def tangents(sample: Sample) -> list[Any]:
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(each.detach(), weights([each])[0]) if each.is_floating_point() else each
            for each in sample.tensors
        ]
        results = outputs(sample.call(*duals))
        return [forward_ad.unpack_dual(each).tangent for each in results if each.is_floating_point()]


def differentiable(sample: Sample) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    wanted = [each for each in sample.tensors if each.requires_grad]
    results = [each for each in outputs(sample.call(*sample.tensors)) if each.requires_grad]
    return results, wanted


def weights(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(each.shape, dtype=each.dtype, generator=generator) for each in tensors]
