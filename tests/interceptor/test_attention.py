"""Attention tile by tile: PyTorch's values and derivatives, without holding the scores."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from accelera.errors import BudgetExceededError
from accelera.interceptor import intercepted
from accelera.interceptor.attention.operands import align
from accelera.interceptor.config import MemoryLimit
from accelera.interceptor.spill import empty
from accelera.memory._internal import Budget
from tests.interceptor.bounded import bounded_attention
from tests.interceptor.forcing import counted, forced
from tests.interceptor.samples import significant_strides
from tests.interceptor.taking import taken

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

OP = "scaled_dot_product_attention"


class Case(NamedTuple):
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    options: dict[str, Any]
    scratch_bytes: int

    @property
    def differentiable(self) -> list[torch.Tensor]:
        return [each for each in self[:4] if each is not None and each.requires_grad]


@st.composite
def cases(draw: Any) -> Case:
    torch.manual_seed(draw(st.integers(0, 99)))
    batch = draw(st.lists(st.integers(1, 3), max_size=3))
    rows, keys, width, value_width = (draw(st.integers(1, 6)) for _ in range(4))
    shared = bool(batch) and draw(st.booleans())
    of_query = [*batch[:-1], batch[-1] * draw(st.integers(1, 3))] if shared else batch
    of_key, of_value = (_some_axes(draw, batch, keep_last=shared) for _ in range(2))
    kind = draw(st.sampled_from(["none", "causal", "bool", "float", "learned"]))
    query, key, value = (
        _operand(draw, (*axes, length, size))
        for axes, length, size in (
            (of_query, rows, width),
            (of_key, keys, width),
            (of_value, keys, value_width),
        )
    )
    options = {
        "is_causal": kind == "causal",
        "scale": draw(st.sampled_from([None, 0.3, -0.7, 0.0])),
        "enable_gqa": shared,
    }
    mask = None
    if kind not in ("none", "causal"):
        mask = _mask(draw, kind, [*_some_axes(draw, of_query), *_some_axes(draw, [rows, keys])])
    return Case(query, key, value, mask, options, draw(st.sampled_from([1, 200, 1000, 100_000])))


def _some_axes(draw: Any, sizes: list[int], keep_last: bool = False) -> list[int]:
    kept = [size if draw(st.booleans()) else 1 for size in sizes]
    return [*kept[:-1], sizes[-1]] if keep_last else kept


def _operand(draw: Any, shape: tuple[int, ...]) -> torch.Tensor:
    *batch, rows, columns = shape
    form = draw(st.sampled_from(["plain", "turned", "strided"]))
    if form == "turned":
        return torch.randn(*batch, columns, rows, dtype=torch.float64).mT.requires_grad_()
    step = 2 if form == "strided" else 1
    return torch.randn(*batch, rows, columns * step, dtype=torch.float64)[..., ::step].requires_grad_()


def _mask(draw: Any, kind: str, shape: list[int]) -> torch.Tensor:
    shape = shape[draw(st.integers(0, len(shape) - 2)) :]
    hidden = torch.rand(shape) < draw(st.sampled_from([0.0, 0.4, 1.0]))
    if kind == "bool":
        return ~hidden
    mask = torch.randn(shape, dtype=torch.float64).masked_fill(hidden, -math.inf)
    return mask.requires_grad_(kind == "learned")


def composed(case: Case) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(*case[:4], **case.options)


@given(cases())
def test_values_and_gradients(case: Case) -> None:
    expected = composed(case)
    found = bounded_attention(*case[:4], **case.options, scratch_bytes=case.scratch_bytes)
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected)
    grad = torch.randn((), dtype=found.dtype).expand(found.shape)
    for one, other in zip(
        torch.autograd.grad(found, case.differentiable, grad),
        torch.autograd.grad(expected, case.differentiable, grad),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@given(cases())
def test_gradients_lie_as_torch_has_them(case: Case) -> None:
    def gradients() -> list[torch.Tensor]:
        out = composed(case)
        weights = torch.arange(out.numel(), dtype=out.dtype).view(out.shape)
        return [out, *torch.autograd.grad(out, case.differentiable, weights)]

    expected = gradients()
    with counted() as seen, forced("chunked"):
        found = gradients()
    assert seen[0].by_op[OP].chunked == 1
    for one, other in zip(found, expected, strict=True):
        assert significant_strides(one) == significant_strides(other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_types_are_computed_in_single_precision(dtype: torch.dtype) -> None:
    query, key, value = operands(dtype=dtype)
    exact: Any = [each.detach().double().requires_grad_() for each in (query, key, value)]
    grad = torch.randn(query.shape, dtype=dtype)
    found = bounded_attention(query, key, value, scratch_bytes=2000)
    expected = functional.scaled_dot_product_attention(*exact)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=eps, atol=eps)
    for one, other in zip(
        torch.autograd.grad(found, (query, key, value), grad),
        torch.autograd.grad(expected, exact, grad.double()),
        strict=True,
    ):
        torch.testing.assert_close(one.double(), other, rtol=2 * eps, atol=2 * eps)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_derivatives_of_any_order(dropout: float) -> None:
    def attention(*tensors: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return bounded_attention(*tensors, dropout=dropout, scratch_bytes=150)

    query, key, value = (torch.randn(1, 2, n, 3, dtype=torch.float64, requires_grad=True) for n in (3, 4, 4))
    mask = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(attention, (query, key, value, mask), fast_mode=True)
    assert torch.autograd.gradgradcheck(attention, (query, key, value, mask), fast_mode=True)


def test_one_tensor_as_query_key_and_value() -> None:
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda x: bounded_attention(x, x, x, is_causal=True, scratch_bytes=9), (x,)
    )


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    query, key = torch.zeros(1, 200, 4), torch.zeros(1, 300, 4)
    value = torch.eye(300)[None]
    weights = bounded_attention(query, key, value, dropout=0.25, scratch_bytes=50_000)
    dropped = (weights == 0).double().mean()
    assert abs(dropped - 0.25) < 0.01
    torch.testing.assert_close(
        weights[weights != 0], torch.tensor(1 / 300 / 0.75).expand(int((weights != 0).sum()))
    )


def test_dropout_follows_the_generator() -> None:
    query, key, value = operands()
    torch.manual_seed(1)
    one = bounded_attention(query, key, value, dropout=0.5, scratch_bytes=2000)
    torch.manual_seed(1)
    other = bounded_attention(query, key, value, dropout=0.5, scratch_bytes=2000)
    third = bounded_attention(query, key, value, dropout=0.5, scratch_bytes=2000)
    assert torch.equal(one, other)
    assert not torch.equal(one, third)


@pytest.mark.parametrize(
    "change",
    [
        {"mask": torch.ones(7, 7)},
        {"key": torch.randn(2, 3, 9, 5)},
        {"value": torch.randn(2, 3, 8, 4)},
        {"query": torch.randn(2, 3, 0, 4)},
        {"enable_gqa": True, "key": torch.randn(2, 2, 9, 4), "value": torch.randn(2, 2, 9, 4)},
    ],
)
def test_what_does_not_fit_is_left_to_torch(change: dict[str, Any]) -> None:
    given = {name: torch.randn(2, 3, 9, 4) for name in ("query", "key", "value")}
    fits: dict[str, Any] = {**given, "mask": None, "enable_gqa": False}
    assert align(**fits) is not None
    assert align(**{**fits, **change}) is None


def operands(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    return [torch.randn(2, 40, 8, dtype=dtype, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("route", ["chunked", "spilled"])
def test_intercepted_where_torch_would_hold_the_scores(route: Any) -> None:
    tensors = operands()
    expected = functional.scaled_dot_product_attention(*tensors)
    with counted() as seen, forced(route):
        found = functional.scaled_dot_product_attention(*tensors)
        gradients = torch.autograd.grad(found.sum(), tensors)
    assert getattr(seen[0].by_op[OP], route) == 1
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.sum(), tensors))


def test_gradients_are_right_after_interception_ended() -> None:
    tensors = operands()
    with forced("chunked"):
        found = functional.scaled_dot_product_attention(*tensors)
    expected = functional.scaled_dot_product_attention(*tensors)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), tensors), torch.autograd.grad(expected.sum(), tensors)
    )


def test_fused_kernels_are_left_alone() -> None:
    x = torch.randn(1, 2, 40, 8)
    with counted() as seen, forced("chunked"):
        functional.scaled_dot_product_attention(x, x, x)
    assert dict(seen[0].by_op[OP].passed) == {"a fused kernel of torch keeps no scores": 1}


def test_what_fits_is_left_to_torch() -> None:
    x = torch.randn(2, 40, 8)
    expected = functional.scaled_dot_product_attention(x, x, x)
    with counted() as seen, intercepted("64MiB", 0, 0):
        found = functional.scaled_dot_product_attention(x, x, x)
    assert seen[0].by_op[OP].direct == 1
    assert torch.equal(found, expected)


def test_forward_derivatives_are_torchs() -> None:
    query, key, value = (each.detach() for each in operands())

    def tangent() -> torch.Tensor:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(query, torch.ones_like(query))
            result = functional.scaled_dot_product_attention(dual, key, value)
            return forward_ad.unpack_dual(result).tangent

    expected = tangent()
    with counted() as seen, forced("chunked"):
        found = tangent()
    assert "forward derivatives are torch's" in seen[0].by_op[OP].passed
    torch.testing.assert_close(found, expected)


def test_a_row_beyond_the_budget_is_refused() -> None:
    x, told = torch.randn(3, 500, 2), r"one row of 500 scores.*budget allows"
    with intercepted(2000, 0, 0), pytest.raises(BudgetExceededError, match=told):
        functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("what", ["a row of scores", "a result"])
def test_without_a_budget_a_refusal_tells_what_is_free(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    free = Budget(1000, "ACCELERA_MEMORY_THRESHOLD")
    monkeypatch.setattr(MemoryLimit, "budget", lambda limit: free)
    monkeypatch.setattr(MemoryLimit, "allows", lambda room, needed_bytes: needed_bytes <= 1000)
    x, told = torch.randn(3, 500, 2), r"1,000 bytes\) that are free now .*free memory, or set a budget"
    with intercepted(None, 0, 0, spill_dir=False), pytest.raises(BudgetExceededError, match=told):
        if what == "a result":
            empty("mm", (40, 40), torch.float32, torch.device("cpu"))
        else:
            functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("arguments", [{"attn_mask": torch.ones(3, 3)}, {"dropout_p": 1.5}, {"scale": 1}])
def test_what_torch_refuses_it_refuses_itself(arguments: dict[str, Any]) -> None:
    x, y = torch.randn(2, 40, 8), torch.randn(2, 40, 7)
    with pytest.raises(RuntimeError) as expected:
        functional.scaled_dot_product_attention(x, y, x, **arguments)
    with forced("chunked"), pytest.raises(RuntimeError) as found:
        functional.scaled_dot_product_attention(x, y, x, **arguments)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_multi_head_attention(need_weights: bool, training: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=True).train(training)
    x = torch.randn(3, 20, 16, requires_grad=training)

    def results() -> list[torch.Tensor]:
        if training:
            out, weights = module(x, x, x, need_weights=need_weights)
            return [out, *([] if weights is None else [weights]), *torch.autograd.grad(out.sum(), [x])]
        with torch.inference_mode():
            return [each for each in module(x, x, x, need_weights=need_weights) if each is not None]

    expected = results()
    for route in ("chunked", "spilled"):
        with counted() as seen, forced(route):
            found = results()
        assert getattr(seen[0].total, route)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "call",
    [
        "functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1)",
        "functional.scaled_dot_product_attention(x[0], x[0], x[0], mask)",
    ],
)
def test_peak_stays_within_the_budget(call: str) -> None:
    setting = (
        "n = 2048 // shrink; x = randn(1, 4, n, 64, requires_grad=True); mask = randn(n, requires_grad=True)"
    )
    ours = taken(setting, f"out = {call}\ntorch.autograd.grad(out.sum(), x)", "24MiB")
    assert ours["chunked"]
    scores_bytes, result_bytes = 4 * 2048 * 2048 * 4, 4 * 2048 * 64 * 4
    # The result lives on while the backward pass, a call of its own, takes place, and x has three gradients.
    assert ours["peak"] <= (24 << 20) + 3 * result_bytes < scores_bytes
