"""Memory that runs out, rung by rung: half the tile, the CPU at last; nothing silent, nothing kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from accelera.devices import SimulatedDevice
from accelera.engine import MatrixEngine
from accelera.interceptor import batched_matmul, contraction, elementwise, gemm, hooks, intercepted, router
from accelera.interceptor.api import within
from accelera.interceptor.attention import kernels
from accelera.interceptor.config import RouteOverride, config_of
from accelera.interceptor.hooks import dispatch
from tests.interceptor.bounded import bounded_attention
from tests.interceptor.forcing import counted, forced
from tests.stores.descriptors import open_files

HALF = "in half the tile after running out of memory"
CPU = "on the CPU after running out of memory"
PIECES = "in pieces after running out of memory"
ALWAYS = 1 << 30


def shortage() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 bytes.")


class Failing:
    """A function that has no memory the first ``times`` it is asked."""

    def __init__(self, function: Callable[..., Any], times: int) -> None:
        self.function, self.times, self.calls = function, times, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls <= self.times:
            raise shortage()
        return self.function(*args, **kwargs)


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the place where operands are for an accelerator, so that the CPU is another one."""
    for module in (router, kernels, batched_matmul):
        monkeypatch.setattr(module, "is_accelerator", lambda device: True)


def without_memory(monkeypatch: pytest.MonkeyPatch, module: Any, times: int) -> None:
    """Let kernels that fill a given result, or change one, run out of memory ``times`` in all."""
    known, left = module.original, [times]

    def original(name: str) -> Callable[..., Any]:
        kernel = known(name)

        def called(*args: Any, **kwargs: Any) -> Any:
            fills = name.endswith(("out", "_", "_.Tensor"))
            if fills and left[0] > 0:
                left[0] -= 1
                raise shortage()
            return kernel(*args, **kwargs)

        return called

    monkeypatch.setattr(module, "original", original)


ELEMENTWISE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add.Tensor": lambda x: x + x.mT.mT,
    "add_.Tensor": lambda x: x.clone().add_(x, alpha=2),
    "exp": lambda x: x.T.exp(),
    "exp.out": lambda x: torch.exp(x, out=torch.empty_like(x)),
    "_softmax": lambda x: x.softmax(0),
    "where.self": lambda x: torch.where(x > 0, x, 0.5),
    "mul.Tensor": lambda x: x * torch.arange(len(x), dtype=torch.int32)[:, None],
}


@pytest.mark.parametrize("times", [1, 3, ALWAYS])
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_elementwise(
    op: str, times: int, accelerator: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(30, 40)
    expected = ELEMENTWISE[op](x)
    without_memory(monkeypatch, elementwise, times)
    with forced("chunked", 1024), counted() as seen:
        found = ELEMENTWISE[op](x)
    torch.testing.assert_close(found, expected)
    assert (found.device, found.dtype, found.stride()) == (expected.device, expected.dtype, expected.stride())
    fallbacks = seen[0].by_op[op].fallbacks
    assert fallbacks.total() == sum("after running out of memory" in each.message for each in caplog.records)
    if times < ALWAYS:
        assert fallbacks == {HALF: times}
    else:
        assert fallbacks[CPU] == 1
        assert 0 < fallbacks[HALF] < 10


def test_a_softmax_that_converts_goes_to_the_cpu(accelerator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only accelerators convert 16-bit operands on the way: the CPU is given what it takes."""
    x = torch.randn(3, 5).half()
    args = elementwise._of_one_type("_softmax", [x, 1, True])
    assert torch.equal(torch._softmax(*args), torch.softmax(x.float(), 1))
    grad, output = torch.randn(3, 5), torch.rand(3, 5)
    args = elementwise._of_one_type("_softmax_backward_data", [grad, output, 1, torch.half])
    assert torch._softmax_backward_data(*args).dtype == torch.float32


PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": lambda a, b: a @ b,
    "bmm": lambda a, b: torch.bmm(a.expand(3, *a.shape), b.expand(3, *b.shape)),
    "addmm": lambda a, b: torch.addmm(a[:, :1], a, b, beta=2, alpha=0.5),
    "addmm_": lambda a, b: torch.ones(len(a), b.shape[1], dtype=a.dtype).addmm_(a, b, alpha=3),
    "mv": lambda a, b: torch.mv(a, b[:, 0]),
    "mm.out": lambda a, b: torch.mm(a, b, out=torch.empty(len(a), b.shape[1], dtype=a.dtype)),
}


@pytest.mark.parametrize("times", [1, ALWAYS])
@pytest.mark.parametrize("op", PRODUCTS)
def test_products_by_torchs_kernel(
    op: str, times: int, accelerator: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = torch.randn(60, 50).bfloat16(), torch.randn(50, 70).bfloat16()
    expected = PRODUCTS[op](a, b)
    without_memory(monkeypatch, gemm, times)
    with forced("chunked", 1024), counted() as seen:
        found = PRODUCTS[op](a, b)
    torch.testing.assert_close(found, expected)
    assert (found.device, found.dtype) == (expected.device, expected.dtype)
    fallbacks = seen[0].by_op[op].fallbacks
    assert fallbacks == {HALF: 1} if times == 1 else fallbacks[CPU] == 1


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_products_streamed_through_an_accelerator(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.randn(600, 400).double(), torch.randn(400, 800).double()
    device = SimulatedDevice("8MiB", oom_at=1, oom_probability=share)
    engine = MatrixEngine(device=device, enable_progress=False)
    monkeypatch.setattr(gemm, "_engine", lambda name: engine)
    with intercepted("64MiB", 0, 0, device="sim:8MiB"), counted() as seen:
        found = a @ b
    torch.testing.assert_close(found, a @ b)
    took = " ".join(seen[0].by_op["mm"].fallbacks)
    assert ("continued on the CPU" if share else "planned again in half the room") in took
    assert device.allocated_bytes == 0


def attention(x: torch.Tensor, dropout: float = 0.0) -> list[torch.Tensor]:
    torch.manual_seed(5)
    out = bounded_attention(x, x, x[..., :5], dropout=dropout, scratch_bytes=30_000)
    return [out, *torch.autograd.grad(out.square().sum(), x)]


@pytest.mark.parametrize("name", ["forward", "backward"])
@pytest.mark.parametrize("times", [1, 3])
def test_attention_in_smaller_tiles(name: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 60, 8, dtype=torch.float64, requires_grad=True)
    expected = attention(x)
    compute, rooms = getattr(kernels, name), []

    def failing(operands: Any, options: Any, *more: Any) -> Any:
        rooms.append(options.scratch_bytes)
        if len(rooms) <= times:
            raise shortage()
        return compute(operands, options, *more)

    monkeypatch.setattr(kernels, name, failing)
    with counted() as seen:
        found = attention(x)
    torch.testing.assert_close(found, expected)
    assert rooms == [30_000 >> turn for turn in range(times + 1)]
    assert seen[0].by_op["scaled_dot_product_attention"].fallbacks == {HALF: times}


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("names", [["forward", "backward"], ["backward"]])
def test_attention_on_the_cpu_at_last(
    names: list[str],
    dropout: float,
    accelerator: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = torch.randn(2, 60, 8, dtype=torch.float64, requires_grad=True)
    expected = attention(x, dropout)
    for name in names:
        monkeypatch.setattr(kernels, name, on_cpu_only(getattr(kernels, name)))
    if dropout and names == ["backward"]:
        with pytest.raises(torch.OutOfMemoryError):
            attention(x, dropout)
        return
    with counted() as seen:
        found = attention(x, dropout)
    torch.testing.assert_close(found, expected)
    fallbacks = seen[0].by_op["scaled_dot_product_attention"].fallbacks
    assert fallbacks[CPU] == 1 if "forward" in names else fallbacks[CPU] > 0
    assert "scaled_dot_product_attention goes on on the CPU after running out of memory" in caplog.text


def on_cpu_only(compute: Callable[..., Any]) -> Callable[..., Any]:
    def failing(operands: Any, options: Any, *more: Any) -> Any:
        if not options.on_cpu:
            raise shortage()
        return compute(operands, options, *more)

    return failing


def test_second_derivatives_of_what_the_cpu_computed(
    accelerator: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "forward", on_cpu_only(kernels.forward))
    x = torch.randn(1, 4, 3, dtype=torch.float64, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        return bounded_attention(x, x, x, dropout=0.3, scratch_bytes=200)

    assert torch.autograd.gradcheck(function, (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (x,), fast_mode=True)


@pytest.mark.parametrize("times", [1, 2, ALWAYS])
def test_broadcast_products(times: int, accelerator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(5, 1, 6, 7), torch.randn(4, 7, 3)
    inner, asked = contraction.contract, []

    def failing(*args: torch.Tensor, **how: Any) -> torch.Tensor:
        asked.append(how.get("scratch_bytes"))
        if len(asked) <= times and how:
            raise shortage()
        return inner(*args, **how)

    monkeypatch.setattr(batched_matmul, "contract", failing)
    with forced("chunked"), counted() as seen:
        found = x @ y
    torch.testing.assert_close(found, x @ y)
    fallbacks = seen[0].by_op["matmul"].fallbacks
    if times < ALWAYS:
        assert fallbacks == {HALF: times}
        assert asked == [(64 << 20) >> turn for turn in range(times + 1)]
    else:
        assert fallbacks == {HALF: 6, CPU: 1}


@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("scaled_dot_product_attention", lambda x: functional.scaled_dot_product_attention(x, x, x)),
        ("matmul", lambda x: x[:, None] @ x.mT[None, :, :, :5]),
    ],
)
def test_what_torch_composes_goes_on_in_pieces(op: str, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 40, 40)
    expected = call(x)
    with intercepted("64MiB", 0, 0), counted() as seen:
        monkeypatch.setitem(dispatch.replaced, op, Failing(lambda: None, ALWAYS))
        found = call(x)
    torch.testing.assert_close(found, expected)
    assert seen[0].by_op[op].fallbacks == {PIECES: 1}
    assert seen[0].by_op[op].chunked == 1
    assert seen[0].by_op[op].direct == 0


@pytest.mark.parametrize("error", [RuntimeError("a kernel's own"), KeyboardInterrupt(), ValueError("x")])
def test_other_exceptions_pass_untouched(
    error: BaseException, accelerator: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    x = torch.randn(30, 40, requires_grad=True)
    for module, name in ((elementwise, "original"), (gemm, "original")):
        monkeypatch.setattr(module, name, lambda _: broken)
    monkeypatch.setattr(kernels, "forward", broken)
    monkeypatch.setattr(batched_matmul, "contract", broken)
    half = x.detach().bfloat16()
    ways: list[Callable[[], Any]] = [
        lambda: x.detach() + 1,
        lambda: half @ half.T,
        lambda: functional.scaled_dot_product_attention(x[None], x[None], x[None]),
        lambda: torch.randn(3, 1, 6, 7) @ torch.randn(5, 7, 4),
    ]
    with forced("chunked"), counted() as seen:
        for way in ways:
            with pytest.raises(type(error)) as raised:
                way()
            assert raised.value is error
    assert not seen[0].total.fallbacks


def test_no_memory_for_the_result_is_torchs_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no file may take it the budget is not to blame: it is not named."""
    x = torch.randn(200, 300)
    monkeypatch.setattr(torch, "empty_strided", Failing(torch.empty_strided, ALWAYS))
    config = config_of("256MiB", 0, 0, spill_dir=False, override=RouteOverride("chunked", 1024))
    with within(config), counted() as seen, pytest.raises(torch.OutOfMemoryError, match="Tried"):
        x + 1
    assert not seen[0].total.fallbacks


def test_a_failed_attempt_is_freed_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(30, 40)
    known = hooks.original
    failed: list[weakref.ref[Any]] = []

    def original(name: str) -> Callable[..., Any]:
        kernel = known(name)

        def called(*args: Any, out: torch.Tensor) -> Any:
            if len(failed) < 3:
                assert all(each() is None for each in failed)
                failed.append(weakref.ref(out.untyped_storage()))
                held = torch.empty(10)
                failed.append(weakref.ref(held))
                raise shortage()
            return kernel(*args, out=out)

        return called

    monkeypatch.setattr(elementwise, "original", original)
    gc.disable()
    try:
        with forced("chunked", 1024):
            found = x.exp()
    finally:
        gc.enable()
    assert torch.equal(found, x.exp())
    assert len(failed) == 4


def test_a_call_that_fails_keeps_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERA_SPILL", str(tmp_path))
    x = torch.randn(30, 40)
    without_memory(monkeypatch, elementwise, ALWAYS)
    with counted() as seen:
        with forced("spilled"), pytest.raises(torch.OutOfMemoryError):
            x + 1
        gc.collect()
    assert open_files(tmp_path) == []
    assert seen[0].spilled_now_bytes == 0
