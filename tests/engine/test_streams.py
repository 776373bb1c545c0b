"""Operands and results on an accelerator while the caller's stream still works on them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import accelera as acc
from accelera.stores import open_store
from accelera.stores.tensor import TorchStore
from accelera.testing import FakeCuda
from tests.gpus import BOTH, gpu_of, own_stream

RNG = np.random.default_rng(0)
A = RNG.integers(-4, 5, (400, 300)).astype(np.float32)
B = RNG.integers(-4, 5, (300, 500)).astype(np.float32)


@pytest.fixture(params=BOTH)
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    with gpu_of(request.param, memory="512MiB"):
        yield request.param


def engine() -> acc.MatrixEngine:
    return acc.MatrixEngine(device="cuda", enable_progress=False)


def made(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a tensor that the current stream has yet to compute."""
    return torch.from_numpy(array / 2).to("cuda") * 2


def numbers(result: Any) -> Any:
    return result.tensor().cpu().numpy()


@pytest.mark.parametrize("usual", [True, False], ids=["usual stream", "stream of its own"])
def test_operands_are_read_when_they_are_computed(gpu: str, usual: bool) -> None:
    with contextlib.nullcontext() if usual else own_stream():
        found = engine().matmul(made(A), made(B), budget="1MiB")
        np.testing.assert_array_equal(numbers(found), A @ B)
        np.testing.assert_array_equal(numbers(engine().gram(made(A), budget="1MiB")), A.T @ A)
        np.testing.assert_array_equal(np.asarray(engine().sum(made(A), axis=0).numpy()), A.sum(0))


def test_a_result_is_written_when_its_memory_is_free(gpu: str) -> None:
    """And before the caller goes on."""
    with own_stream():
        out = torch.ones(400, 500, device="cuda")
        kept = out.clone()
        engine().matmul(made(A), made(B), out=out, budget="1MiB")
        np.testing.assert_array_equal((out + kept).cpu().numpy(), A @ B + 1)


def test_operands_in_memory_that_do_not_fit_together() -> None:
    with FakeCuda("64MiB") as cuda, own_stream():
        cuda.memories[0].taken_by_others_bytes = 60 << 20
        a, b = torch.from_numpy(A), torch.from_numpy(B)
        np.testing.assert_array_equal(engine().matmul(a, b).numpy(), A @ B)


def test_a_device_that_dies_ends_the_run_and_leaves_no_result() -> None:
    with FakeCuda("1GiB") as cuda, pytest.raises(acc.AcceleraError, match="illegal memory access"):
        engine().plan(A, B, budget="1MiB")
        cuda.dies_at = cuda.launches + 5
        engine().matmul(A, B, budget="1MiB")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_types_are_held_as_they_are_and_summed_in_float32(dtype: Any) -> None:
    """On tensor cores where there are any: half the bytes on the link, and 2049 ones add up to 2049."""
    ones = np.ones((300, 2049), dtype)
    with gpu_of("fake", memory="512MiB"):
        there = engine()
        out = there.matmul(ones, ones.T, budget="1MiB").numpy()
        report = there.last_report
        gram = there.gram(ones.T, budget="1MiB").numpy()
    assert report is not None
    assert (report.device, report.fallbacks) == ("cuda:0", ())
    assert [str(each.held_dtype) for each in report.plan.operands] == [*2 * [str(np.dtype(dtype))], "float32"]
    assert next(iter(report.plan.steps()))
    for found in (out, gram):
        assert (found.astype(np.float32) == np.float32(2049).astype(dtype).astype(np.float32)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
@pytest.mark.parametrize(
    "look",
    [
        lambda x: x,
        lambda x: x.mT.contiguous().mT,
        lambda x: x[3:, ::2],
        lambda x: x.expand(2, *x.shape),
    ],
    ids=["rows", "columns", "part", "repeated"],
)
def test_what_lies_on_the_device_does_not_pass_through_the_host(
    gpu: str, look: Callable[[Any], Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operands and the result: blocks are copied where they are, and converted if need be."""

    def refuse(self: TorchStore, *_: Any) -> int:
        raise AssertionError("elements were copied to or from the host")

    for name in ("read", "write"):
        monkeypatch.setattr(TorchStore, name, refuse)
    with own_stream():
        a, b = (look(made(each.astype(dtype)).to(getattr(torch, dtype))) for each in (A.T, A))
        b = b[..., : a.shape[-1], :]
        out = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=a.dtype, device="cuda")
        engine().matmul(a, b, out=out, budget="1MiB")
        found = (out * 1).cpu().numpy()
    left, right = (each.cpu().numpy().astype("complex128") for each in (a, b))
    np.testing.assert_allclose(found, left @ right, rtol=2e-3)


def test_vectors_on_the_device_are_views_of_it(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchStore, "read", None)
    a, b = made(A), made(B[:, 0])
    np.testing.assert_array_equal(numbers(engine().matmul(a, b, budget="1MiB")), A @ B[:, 0])
    backwards = open_store(a)[::-1]
    assert open_store(a)[5:9].held() is not None
    assert backwards.held() is None, "torch has no such view"
