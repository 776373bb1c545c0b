"""Products over broadcast batch axes: PyTorch's values and derivatives, without the copies of operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accelera.errors import BudgetExceededError
from accelera.interceptor import intercepted
from accelera.interceptor.batched_matmul import broadcast_matmul
from accelera.interceptor.contraction import choose_call, contract, sort_axes
from tests.interceptor.forcing import counted, forced
from tests.interceptor.taking import taken

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

DTYPES = (torch.float64, torch.complex128)


@st.composite
def operand(draw: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Draw a tensor of ``shape`` with any kind of strides."""
    order = draw(st.permutations(range(len(shape))))
    step = draw(st.integers(1, 2))
    sizes = [shape[axis] for axis in order]
    sizes[-1] *= step
    values = torch.randn(sizes, dtype=dtype)[..., ::step]
    values = values.permute([order.index(axis) for axis in range(len(shape))])
    return values.conj() if dtype.is_complex and draw(st.booleans()) else values


@st.composite
def pairs(draw: Any) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from(DTYPES))
    batch = draw(st.lists(st.integers(1, 3), max_size=3))
    lacking = [draw(st.lists(st.booleans(), min_size=len(batch), max_size=len(batch))) for _ in range(2)]
    one, other = (
        tuple(1 if lacks else size for size, lacks in zip(batch, each, strict=True)) for each in lacking
    )
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))
    dropped = draw(st.integers(0, len(batch)))
    return draw(operand((*one[dropped:], m, k), dtype)), draw(operand((*other, k, n), dtype))


@given(pairs())
def test_values_and_gradients(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = (each.requires_grad_() for each in pair)
    expected, found = torch.matmul(x, y), broadcast_matmul(x, y)
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected)
    grad = torch.randn((), dtype=x.dtype).expand(expected.shape)
    for one, other in zip(
        torch.autograd.grad(found, (x, y), grad), torch.autograd.grad(expected, (x, y), grad), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
def test_derivatives_of_any_order(dtype: torch.dtype) -> None:
    x = torch.randn(2, 1, 3, 2, dtype=dtype, requires_grad=True)
    y = torch.randn(3, 2, 2, dtype=dtype, requires_grad=True)
    assert torch.autograd.gradcheck(broadcast_matmul, (x, y), check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(broadcast_matmul, (x, y), check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_short_types_are_taken_in_single_precision(dtype: torch.dtype) -> None:
    x, y = torch.randn(400, 1, 8, 4, dtype=dtype), torch.randn(400, 2, 4, 8, dtype=dtype)
    out = torch.empty(1, 2, 8, 8, dtype=dtype)
    contract(x, y, out, scratch_bytes=1)
    exact = (x.double() @ y.double()).sum(0, keepdim=True)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=64 * torch.finfo(dtype).eps)


def test_whole_numbers_are_exact() -> None:
    x, y = torch.randint(-9, 9, (5, 1, 3, 4)), torch.randint(-9, 9, (2, 4, 3))
    assert torch.equal(broadcast_matmul(x, y), torch.matmul(x, y))


def test_what_is_added_to_and_scaled() -> None:
    x, y, out = torch.randn(4, 1, 3, 5), torch.randn(6, 5, 2), torch.randn(4, 6, 3, 2)
    expected = out + 2 * (x @ y)
    torch.testing.assert_close(contract(x, y[None], out, alpha=2, accumulate=True), expected)


@pytest.mark.parametrize(
    ("x", "y", "calls"),
    [((64, 16, 1, 10), (1, 16, 10, 10), 1), ((64, 16, 2, 10), (1, 16, 10, 10), 2), ((7, 3, 4), (1, 4, 5), 1)],
)
def test_few_calls_of_the_library(x: tuple[int, ...], y: tuple[int, ...], calls: int) -> None:
    out = torch.empty(*x[:-1], y[-1])
    axes = sort_axes(torch.empty(x), torch.empty(y), out)
    call = choose_call(axes, copies_x=False, copies_y=False, copies_repeated=False)
    assert torch.Size(axis.size for axis in call.loops).numel() == calls
    assert call.copied_elements == 0


@pytest.mark.parametrize("route", ["chunked", "spilled"])
def test_matmul_is_intercepted_forward_and_backward(route: Any) -> None:
    x, y = torch.randn(4, 1, 3, 5, requires_grad=True), torch.randn(6, 5, 2, requires_grad=True)
    expected = torch.autograd.grad((x @ y).sum(), (x, y))
    with counted() as seen, forced(route):
        found = torch.autograd.grad((x @ y).sum(), (x, y))
    assert getattr(seen[0].by_op["matmul"], route) == 1
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: x @ y[..., :0],
        lambda x, y: x[..., 0] @ y,
        lambda x, y: x.bool() @ y.bool(),
        lambda x, y: x @ y.double(),
        lambda x, y: x @ y.mT,
        lambda x, y: x.repeat(1, 5, 1, 1) @ y,
    ],
    ids=["empty", "vector", "bool", "two types", "inner size", "batch"],
)
def test_what_torch_alone_answers(call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    x, y = torch.randn(4, 1, 3, 5), torch.randn(6, 5, 2)
    expected = _outcome(call, x, y)
    with forced("chunked"):
        found = _outcome(call, x, y)
    assert str(found) == str(expected)


def _outcome(call: Callable[..., torch.Tensor], *operands: torch.Tensor) -> Any:
    try:
        return call(*operands)
    except (RuntimeError, IndexError) as error:
        return error


def test_a_result_beyond_the_budget_is_refused_when_it_may_not_spill() -> None:
    x, y = torch.randn(64, 1, 8, 8), torch.randn(64, 8, 8)
    with intercepted(1 << 19, 0, 0, spill_dir=False), pytest.raises(BudgetExceededError, match=r"\[matmul\]"):
        x.mT @ y


def test_peak_stays_within_the_budget() -> None:
    setting = (
        "x = randn(512 // shrink, 32, 1, 64, requires_grad=True); y = randn(32, 64, 64, requires_grad=True)"
    )
    call = "torch.autograd.grad((x @ y).sum(), (x, y))"
    ours = taken(setting, call, "16MiB")
    assert ours["chunked"]
    expanded_bytes = 512 * 32 * 64 * 64 * 4
    assert ours["peak"] <= 16 << 20 < expanded_bytes
