"""Interception of calls on CUDA tensors: the same values, within the budget, by every route there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import accelera as acc
from accelera.errors import BudgetExceededError
from accelera.interceptor.api import within
from accelera.interceptor.config import RouteOverride, config_of
from tests.interceptor.forcing import counted

pytestmark = pytest.mark.cuda

MIB = 1 << 20
GPU = "cuda"
EDGE = 3000
"""A square of 34 MiB in float32."""


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """End with nothing in torch's cache."""
    yield
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def square(seed: int, dtype: torch.dtype = torch.float32, *, grad: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(EDGE, EDGE, generator=generator).to(GPU, dtype)
    return made.requires_grad_(grad)


def by(route: Any, budget: str = "4GiB", tile_bytes: int | None = None) -> Any:
    """Look at every call, which takes at least this route."""
    return within(config_of(budget, 0, 0, override=RouteOverride(route, tile_bytes)))


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "product": lambda a, b: a @ b,
    "product of views": lambda a, b: a.mT[:, ::2] @ b[::2],
    "sum": lambda a, b: a + b,
    "broadcast": lambda a, b: a * b[:1],
    "softmax": lambda a, b: torch.softmax(a, -1),
    "exponential": lambda a, b: torch.exp(a.mT),
    "linear": lambda a, b: F.linear(a, b, b[0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("route", ["direct", "chunked"])
def test_values_are_torchs(call: str, dtype: torch.dtype, route: str) -> None:
    a, b = square(1, dtype), square(2, dtype)
    expected = CALLS[call](a, b)
    with by(route, tile_bytes=5 * MIB), counted() as seen:
        found = CALLS[call](a, b)
    assert (found.device, found.dtype, found.shape) == (expected.device, expected.dtype, expected.shape)
    torch.testing.assert_close(found, expected, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-2)
    assert sum(getattr(each, route) for each in seen[0].by_op.values()) >= 1, seen[0]


def test_calls_in_pieces_add_no_more_than_the_budget() -> None:
    """Beside the result there is room for a tile or two, and what cuBLAS keeps was there before."""
    a, b = square(1), square(2)
    torch.exp(a @ b / EDGE)
    with by("chunked", "60MiB"), counted() as seen:
        for call in (lambda: a @ b, lambda: a + b, lambda: torch.softmax(a, -1)):
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            result = call()
            torch.cuda.synchronize()
            assert torch.cuda.max_memory_allocated() - before <= 60 * MIB + 2 * MIB
            del result
    assert sum(each.chunked for each in seen[0].by_op.values()) == 3


def test_what_cannot_fit_is_refused_and_files_are_for_the_cpu() -> None:
    """Results on an accelerator go to no file."""
    a = square(1)
    with by("direct", "8MiB"), pytest.raises(BudgetExceededError, match="move the operands to the CPU"):
        torch.exp(a)
    with by("spilled", "4GiB"), pytest.raises(BudgetExceededError):
        torch.exp(a)


@pytest.mark.parametrize("route", ["direct", "chunked"])
def test_backward_passes_are_calls_too(route: str) -> None:
    def gradients() -> list[torch.Tensor]:
        a, b = square(1, grad=True), square(2, grad=True)
        torch.tanh(a @ b / EDGE).square().mean().backward()
        assert a.grad is not None
        assert b.grad is not None
        return [a.grad, b.grad]

    expected = gradients()
    with by(route, tile_bytes=5 * MIB):
        found = gradients()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-9)


def test_attention_in_tiles() -> None:
    generator = torch.Generator().manual_seed(5)
    query, key, value = (torch.randn(1, 4, 2048, 64, generator=generator).to(GPU) for _ in range(3))
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    with by("chunked"):
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_products_of_the_cpu_go_to_the_device() -> None:
    a = np.random.default_rng(1).standard_normal((1500, 1500)).astype(np.float32)
    numbers = np.random.default_rng(2).integers(-99, 99, (700, 700))
    with acc.intercepted(budget="64MiB", min_size=256, memory_threshold=0, device="cuda:0"):
        found = torch.from_numpy(a) @ torch.from_numpy(a)
        integers = torch.from_numpy(numbers) @ torch.from_numpy(numbers)
    np.testing.assert_allclose(found.numpy(), a.astype(float) @ a, atol=2e-2)
    np.testing.assert_array_equal(integers.numpy(), numbers @ numbers)


def test_a_graph_captures_torchs_own_kernels() -> None:
    a, b = square(1), square(2)
    expected = torch.exp(a @ b / EDGE)
    with by("chunked", tile_bytes=5 * MIB):
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            torch.exp(a @ b / EDGE)
        torch.cuda.current_stream().wait_stream(warm)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = torch.exp(a @ b / EDGE)
        graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_integers_fail_as_without_interception() -> None:
    """torch multiplies none on CUDA, and a program that asks for torch's product hears so."""
    a = torch.ones(600, 600, dtype=torch.int64, device=GPU)
    with pytest.raises(RuntimeError) as expected:
        a @ a
    with by("direct"), pytest.raises(RuntimeError) as found:
        a @ a
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]
