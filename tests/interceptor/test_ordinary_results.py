"""Results in memory are ordinary tensors: laid out as torch's, resized like torch's, no less accurate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tests.interceptor.forcing import forced
from tests.interceptor.samples import Sample, outputs, samples, significant_strides

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The distutils package:DeprecationWarning"),
]

OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": torch.add,
    "multiply": lambda a, b: (a * b, b * a),
    "divide by a number": lambda a, b: (a / 2, b / 2),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "softmax": lambda a, b: (a.softmax(-1), a.log_softmax(0)),
    "gelu": lambda a, b: (functional.gelu(a), b.exp()),
    "product": lambda a, b: a @ b.mT,
}


@st.composite
def operands(draw: st.DrawFn, shape: list[int]) -> torch.Tensor:
    """Draw a tensor of a shape: by rows, its axes permuted, with gaps, or expanded."""
    form = draw(st.sampled_from(["plain", "permuted", "gaps", "expanded"]))
    if form == "permuted":
        order = draw(st.permutations(range(len(shape))))
        back = [order.index(axis) for axis in range(len(shape))]
        return torch.randn([shape[axis] for axis in order]).permute(back)
    if form == "gaps":
        return torch.randn([2 * size for size in shape])[tuple(slice(0, None, 2) for _ in shape)]
    kept = [1 if form == "expanded" and draw(st.booleans()) else size for size in shape]
    return torch.randn(kept).expand(shape)


@given(st.data(), st.sampled_from(sorted(OPERATIONS)))
def test_strides_are_torchs(data: st.DataObject, name: str) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=2, max_size=4))
    kept = [size if data.draw(st.booleans()) else 1 for size in shape]
    other_shape = [*kept[:-1], shape[-1]] if name == "product" else kept
    a, b = (data.draw(operands(sizes)).requires_grad_() for sizes in (shape, other_shape))

    def computed() -> list[torch.Tensor]:
        results = outputs(OPERATIONS[name](a, b))
        ones = [torch.ones_like(each) for each in results]
        found = torch.autograd.grad(results, [a, b], ones, allow_unused=True)
        return [*results, *(each for each in found if each is not None)]

    expected = computed()
    for route in ("chunked", "spilled"):
        with forced(route, 64):
            found = computed()
        assert list(map(significant_strides, found)) == list(map(significant_strides, expected))


def test_results_and_operands_are_resized_as_sharded_training_does() -> None:
    a, b = torch.randn(30, 40), torch.randn(40, 20)
    with forced("chunked"):
        results = [a @ b, torch.addmm(torch.ones(20), a, b), a[None] @ b[None], a @ b[:, 0], a * 2]
    for each in [*results, a, b]:
        storage, size = each.untyped_storage(), each.untyped_storage().nbytes()
        storage.resize_(0)
        storage.resize_(size)
    results[0].resize_(7, 7)
    torch.mm(a.fill_(1), b.fill_(1), out=results[1].resize_(0))
    assert torch.equal(results[1], torch.full((30, 20), 40.0))


def test_one_tensor_takes_results_of_several_shapes() -> None:
    a, b, small = torch.randn(30, 40), torch.randn(40, 20), torch.empty(0)
    with forced("chunked"):
        torch.mm(a, b, out=small)
        torch.mm(b.T, a.T, out=small.resize_(0))
    torch.testing.assert_close(small, b.T @ a.T)


def test_spilled_result_can_be_resized() -> None:
    with forced("spilled"):
        spilled = torch.randn(30, 40) @ torch.randn(40, 20)
    values = spilled.clone()
    assert spilled.clone().resize_(50, 50).shape == (50, 50)
    spilled.resize_(50, 50)
    assert spilled.shape == (50, 50)
    assert torch.equal(spilled.flatten()[:600], values.flatten())
    assert spilled.set_(torch.empty(4).untyped_storage()).numel() == 4


# Functions that lose digits of their own: the order in which a product is summed shows in their results.
UNSTABLE = ("matrix_exp", "linalg.householder_product")
EXACT = {torch.float32: torch.float64, torch.complex64: torch.complex128}


@pytest.mark.parametrize("dtype", list(EXACT))
@pytest.mark.parametrize("name", UNSTABLE)
def test_no_further_from_the_exact_result_than_torch(name: str, dtype: torch.dtype) -> None:
    worst = {"torch": 0.0, "ours": 0.0}
    for seed in range(4):
        torch.manual_seed(seed)
        for sample in samples(name, dtype, gradients=True):
            exact = results_and_gradients(sample, [each.to(EXACT[dtype]) for each in sample.tensors])
            by_torch = results_and_gradients(sample, sample.tensors)
            with forced("chunked"):
                ours = results_and_gradients(sample, sample.tensors)
            worst["torch"] = max(worst["torch"], error(by_torch, exact))
            worst["ours"] = max(worst["ours"], error(ours, exact))
    assert worst["ours"] <= 2 * worst["torch"]


def results_and_gradients(sample: Sample, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [each.detach().requires_grad_() for each in tensors]
    out = sample.call(*leaves)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(out.dtype)
    found = torch.autograd.grad(out, leaves, weights, allow_unused=True) if out.numel() else ()
    return [out.detach(), *(each for each in found if each is not None)]


def error(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Return the largest difference beside the largest element, over all that is not empty."""
    pairs = [(one, other) for one, other in zip(found, exact, strict=True) if other.numel()]
    return max((float((one - other).abs().max() / other.abs().max()) for one, other in pairs), default=0.0)
