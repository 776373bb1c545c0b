"""Operations on tensors in several blocks against PyTorch on whole ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.errors import BudgetExceededError
from accelera.offload import OffloadedTensor
from accelera.offload.blockwise.autograd import PartitionedTensor
from accelera.offload.tensor import wrap
from tests.offload.simple_cache import SimpleCache

Tensor = torch.Tensor


@pytest.fixture
def cache():
    return SimpleCache(block_bytes=2048, least_bytes=64)


def values(result):
    return result.materialized() if isinstance(result, OffloadedTensor) else result


def parted(cache: Any, tensor: Tensor) -> OffloadedTensor:
    offloaded = wrap(cache, tensor)
    assert isinstance(offloaded, PartitionedTensor)
    return offloaded


def matrix(rows: int = 37, columns: int = 24, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, columns, dtype=dtype, generator=torch.Generator().manual_seed(rows * columns))


EXACT: dict[str, Callable[[Tensor], object]] = {
    "scaled": lambda w: w * 2 + 1,
    "transposed": lambda w: w.t() * 3,
    "broadcast": lambda w: w + torch.arange(24.0),
    "broadcast rows": lambda w: w * torch.arange(37.0, dtype=w.dtype)[:, None],
    "with its flat self": lambda w: w.view(-1) - w.view(-1),
    "where": lambda w: torch.where(w > 0, w, -w),
    "cast": lambda w: w.to(torch.float32),
    "clone": lambda w: w.clone(),
    "rows": lambda w: w[3:30],
    "one row": lambda w: w[5],
    "one column": lambda w: w[:, 5],
    "every third": lambda w: w[1::3] + 1,
    "zeros": torch.zeros_like,
    "ones": torch.ones_like,
    "full": lambda w: torch.full_like(w, 3),
    "new zeros": lambda w: w.new_zeros(50, 24),
    "max": lambda w: w.max(),
    "min of rows": lambda w: w.amin(1),
    "max of columns": lambda w: w.amax(0),
    "max and where": lambda w: w.max(1),
    "argmax": lambda w: w.argmax(1),
    "any": lambda w: (w > 2).any(),
    "all columns": lambda w: (w > -9).all(0),
    "count": lambda w: torch.count_nonzero(w > 0),
    "rows chosen": lambda w: F.embedding(torch.tensor([[1, 36, 5], [5, 20, 0]]), w),
    "index_select": lambda w: w.index_select(0, torch.tensor([36, 2])),
    "index_select of columns": lambda w: w.index_select(1, torch.tensor([20, 2])),
    "cat": lambda w: torch.cat([w, w[:3], torch.ones(2, 24, dtype=w.dtype)]),
    "cat of columns": lambda w: torch.cat([w, w[:, :3]], 1),
    "stack": lambda w: torch.stack([w, w + 1]),
    "softmax": lambda w: w.softmax(1),
    "log_softmax": lambda w: w.log_softmax(-1),
    "topk": lambda w: w.topk(3, 1),
    "equal": lambda w: torch.equal(w, w.clone()),
    "unequal": lambda w: torch.equal(w, w + 1),
    "reshaped": lambda w: w.reshape(37 * 2, 12) + 1,
    "split": lambda w: [part + 1 for part in w.split(10)],
    "gelu": F.gelu,
    "clamped": lambda w: w.clamp(-1, 1),
    "isfinite": lambda w: torch.isfinite(w).all(),
}

CLOSE: dict[str, Callable[[Tensor], object]] = {
    "mm": lambda w: torch.ones(3, 37, dtype=w.dtype) @ w,
    "mm transposed": lambda w: matrix(5, 24, w.dtype) @ w.t(),
    "linear": lambda w: F.linear(matrix(5, 24, w.dtype), w, torch.ones(37, dtype=w.dtype)),
    "linear 3-D": lambda w: F.linear(matrix(6, 24, w.dtype).view(2, 3, 24), w),
    "both parted": lambda w: w @ w.t(),
    "both parted, deep": lambda w: w.t() @ w,
    "addmm": lambda w: torch.addmm(w, matrix(37, 5, w.dtype), matrix(5, 24, w.dtype), beta=2, alpha=3),
    "baddbmm": lambda w: torch.baddbmm(
        torch.ones(1, 1, 6, dtype=w.dtype), w.view(37, 4, 6), w.view(37, 4, 6).mT @ w.view(37, 4, 6)
    ),
    "bmm": lambda w: w.view(37, 4, 6) @ w.view(37, 4, 6).mT,
    "mv": lambda w: w @ torch.ones(24, dtype=w.dtype),
    "mv transposed": lambda w: w.t() @ torch.ones(37, dtype=w.dtype),
    "einsum": lambda w: torch.einsum("oi,bi->bo", w, matrix(5, 24, w.dtype)),
    "sum": lambda w: w.sum(),
    "sum of columns": lambda w: w.sum(0),
    "mean": lambda w: w.mean(),
    "mean of rows": lambda w: w.mean(1, keepdim=True),
    "norm": lambda w: w.norm(),
    "norm 1 of columns": lambda w: torch.linalg.vector_norm(w, 1, 0),
    "norm inf": lambda w: torch.linalg.vector_norm(w, float("inf")),
    "norm 0": lambda w: torch.linalg.vector_norm(w, 0),
    "prod": lambda w: (w * 1e-2 + 1).prod(),
    "dot": lambda w: w.view(-1) @ w.view(-1),
    "lerp": lambda w: w.lerp(w * 2, 0.3),
    "singular values": torch.linalg.svdvals,
}


@pytest.mark.parametrize("function", EXACT.values(), ids=EXACT)
def test_what_needs_no_sum_is_equal_to_the_bit(cache, function):
    whole = matrix()
    torch.testing.assert_close(
        _plain(function(parted(cache, whole))), _plain(function(whole)), rtol=0, atol=0
    )
    assert cache.pinned == 0


@pytest.mark.parametrize("function", CLOSE.values(), ids=CLOSE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_products_and_sums(cache, function, dtype):
    if dtype == torch.bfloat16 and function is torch.linalg.svdvals:
        pytest.skip("PyTorch has no singular values of bfloat16")
    whole = matrix(dtype=torch.float64).to(dtype)
    if dtype == torch.bfloat16 and function is CLOSE["prod"]:
        pytest.skip("PyTorch rounds after every factor")
    if dtype == torch.bfloat16:
        cache.block_bytes = 512
    torch.testing.assert_close(_plain(function(parted(cache, whole))), _plain(function(whole)))
    assert cache.pinned == 0


def _plain(result: object) -> object:
    return [_plain(one) for one in result] if isinstance(result, (list, tuple)) else values(result)


IN_PLACE: dict[str, Callable[[Tensor], object]] = {
    "mul_": lambda w: w.mul_(0.9),
    "addcdiv_": lambda w: w.addcdiv_(w + 1, w * w + 1, value=-0.1),
    "lerp_": lambda w: w.lerp_(torch.ones(37, 24, dtype=w.dtype), 0.5),
    "copy_": lambda w: w.copy_(torch.arange(24.0)),
    "zero_": lambda w: w.zero_(),
    "fill_": lambda w: w.fill_(3),
    "part": lambda w: w[3:30].add_(1),
    "column": lambda w: w[:, 2].zero_(),
    "masked": lambda w: w.masked_fill_(w > 0, 7),
    "transposed": lambda w: w.t().mul_(torch.arange(37.0)),
    "addmm_": lambda w: w.addmm_(matrix(37, 5), matrix(5, 24), beta=0.5),
    "out": lambda w: torch.mm(matrix(37, 5), matrix(5, 24), out=w),
    "mul out": lambda w: torch.mul(matrix(), 2, out=w),
    "indexed": lambda w: w.__setitem__(slice(4, 9), 1.5),
    "foreach": lambda w: torch._foreach_mul_([w, w], 0.5),
    "foreach maximum": lambda w: torch._foreach_maximum_([w], 0.5),
    "cumsum of columns": lambda w: w.cumsum_(0),
    "foreach list": lambda w: torch._foreach_add_([w], [w * 2], alpha=3),
    "sorted rows": lambda w: w.copy_(w.sort(1)[0]),
}


@pytest.mark.parametrize("function", IN_PLACE.values(), ids=IN_PLACE)
def test_in_place(cache, function):
    whole = matrix()
    offloaded = parted(cache, whole)
    function(offloaded)
    function(whole)
    torch.testing.assert_close(offloaded.materialized(), whole)


def test_into_an_ordinary_tensor(cache):
    whole, target, other = matrix(), matrix() * 3, matrix() * 3
    target.add_(parted(cache, whole), alpha=2)
    torch.testing.assert_close(target, other.add_(whole, alpha=2), rtol=0, atol=0)


def test_random_fill_changes_all_and_repeats_with_the_seed(cache):
    one, other = parted(cache, matrix()), parted(cache, matrix())
    torch.manual_seed(3)
    one.normal_()
    torch.manual_seed(3)
    other.normal_()
    assert torch.equal(one, other)
    assert 0.8 < float(one.norm()) / (37 * 24) ** 0.5 < 1.2


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    block=st.integers(8, 200),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_any_view_is_read_and_written_where_it_lies(sizes, block, order):
    cache: Any = SimpleCache(block_bytes=block, least_bytes=8)
    whole = torch.arange(float(torch.Size(sizes).numel())).view(sizes)
    offloaded = wrap(cache, whole)
    axes = order.sample(range(len(sizes)), len(sizes))
    axis, start = axes[0], order.randrange(sizes[axes[0]])
    for tensor in (whole, offloaded):
        tensor.permute(axes).select(0, start).add_(100)
        tensor.narrow(axis, start, sizes[axis] - start).mul_(2)
    assert torch.equal(offloaded.materialized(), whole)
    assert torch.equal(values(offloaded.permute(axes) + 1), whole.permute(axes) + 1)


def test_what_must_be_whole_and_does_not_fit_is_refused(cache):
    cache.capacity_bytes = 6000
    with pytest.raises(BudgetExceededError, match=r"linalg.*\(37, 24\) of .*must be whole") as caught:
        torch.linalg.svdvals(parted(cache, matrix()))
    assert caught.value.needed_bytes == 37 * 24 * 8 + 1920
    assert caught.value.budget_bytes == 6000


def test_bad_operands_get_torchs_own_errors(cache):
    offloaded = parted(cache, matrix())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.ones(2, 3, dtype=torch.float64) @ offloaded
    with pytest.raises(IndexError):
        F.embedding(torch.tensor([37]), offloaded)
    with pytest.raises(RuntimeError, match="broadcast"):
        offloaded + torch.ones(5, 5)


def test_rows_are_taken_only_from_their_blocks(cache):
    offloaded = parted(cache, matrix())
    cache.uses.clear()
    F.embedding(torch.tensor([0, 1, 0]), offloaded)
    assert len(cache.uses) == 1
