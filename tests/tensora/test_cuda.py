"""Tensors on a CUDA device: a real one, or the emulator's."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts
from accelera.tensora import cuda
from accelera.tensora.core import native
from tests.tensora.test_op_table import CASES, TOLERANCE, accepts, numbers, tensors

F = ts.functional
ON_CPU = {"avg_pool_back"}
"""Samples whose result is the gradient of a leaf that they make on the CPU."""


@pytest.fixture(autouse=True)
def fusion() -> None:
    """Once, as users have it."""


def sampled() -> list[Any]:
    """All samples in float32, the first of each operation in other types as well."""
    chosen = []
    for case in CASES:
        values: Any = case.values
        name, sample = values
        types = ("float32", "float16", "complex64", "int32") if case.id.endswith("-0") else ("float32",)
        chosen += [
            pytest.param(name, sample, dtype, id=f"{case.id}-{dtype}")
            for dtype in types
            if accepts(sample, dtype)
        ]
    return chosen


@pytest.mark.parametrize(("name", "sample", "dtype"), sampled())
def test_values_are_those_of_the_cpu(
    name: str, sample: Any, dtype: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tensors(sample.inputs(dtype), dtype, sample)
    try:
        wanted = sample.call(*given)
    except TypeError as error:
        if "not defined for" in str(error):
            return
        raise
    asarray = native.asarray
    monkeypatch.setattr(native, "asarray", lambda *args: asarray(*args).to(device))  # indices in samples
    found = sample.call(*(x.to(device) for x in given))
    assert found.device == device or name in ON_CPU
    assert found.dtype == wanted.dtype
    tolerance = TOLERANCE.get(dtype, 0)
    np.testing.assert_allclose(numbers(found), numbers(wanted), rtol=tolerance, atol=tolerance)


# --- layouts and sizes --------------------------------------------------------------------------------------


def on(device: str, x: Any) -> Any:
    return ts.asarray(x).to(device)


def same(found: Any, wanted: Any, rtol: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(found.cpu()), wanted, rtol=rtol, atol=rtol)


RNG = np.random.default_rng(0)
VIEWS: list[Callable[[Any], Any]] = [
    lambda x: x,
    lambda x: x.T,
    lambda x: x[::2, ::-1],
    lambda x: x[3],
    lambda x: x[:, 1:4],
    lambda x: x[:, None, :, None],
]


@pytest.mark.parametrize("view", range(len(VIEWS)))
def test_views(view: int, device: str) -> None:
    array = RNG.standard_normal((6, 8))
    x = VIEWS[view](array) if view != 2 else array[::2, ::-1]
    found = VIEWS[view](on(device, array)) if view != 2 else ts.flip(on(device, array)[::2], axis=1)
    same(found * 2 + 1, x * 2 + 1)
    same(ts.sum(found, axis=0), x.sum(0))
    same(ts.max(found), x.max())
    same(ts.concat([found, found], axis=0), np.concatenate([x, x]))


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((5000, 3), 0),
        ((3, 5000), 1),
        ((40, 50, 60), 1),
        ((40, 50, 60), (0, 2)),
        ((70000,), 0),
        ((2, 0, 3), 1),
    ],
)
def test_reductions_of_many_elements(shape: tuple[int, ...], axis: Any, device: str) -> None:
    array = RNG.standard_normal(shape)
    x = on(device, array)
    same(ts.sum(x, axis=axis), array.sum(axis), 1e-10)
    if array.size:
        same(ts.min(x, axis=axis), array.min(axis))
    same(ts.any(x > 3.5, axis=axis), (array > 3.5).any(axis))


def test_reductions_do_not_depend_on_the_run(device: str) -> None:
    x = on(device, RNG.standard_normal(50000).astype(np.float32))
    assert ts.sum(x).item() == ts.sum(x).item()


@pytest.mark.parametrize("n", [1, 255, 256, 257, 1000])
def test_scans_and_extremes_of_lines(n: int, device: str) -> None:
    array = RNG.integers(0, 5, (3, n)).astype(np.float64)
    x = on(device, array)
    same(ts.cumulative_sum(x, axis=1), array.cumsum(1))
    same(ts.argmax(x, axis=1), array.argmax(1))
    same(ts.argmin(x, axis=1), array.argmin(1))


def test_more_lines_than_blocks(device: str) -> None:
    array = RNG.standard_normal((200, 40))
    x = on(device, array)
    same(ts.cumulative_sum(x, axis=1), array.cumsum(1), 1e-10)
    same(ts.argmax(x, axis=1), array.argmax(1))
    same(F.softmax(x, -1), np.exp(array) / np.exp(array).sum(1, keepdims=True), 1e-10)


@pytest.mark.parametrize("n", [1, 2, 37, 256, 1000])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "complex64", "bool"])
def test_sorting_is_that_of_the_cpu(n: int, descending: bool, dtype: str, device: str) -> None:
    """Of equal elements, too, and NaN."""
    array = RNG.integers(0, 9, (3, n)).astype(dtype)
    if np.issubdtype(array.dtype, np.inexact):
        array[:, ::7] = np.nan
    x, y = ts.asarray(array), on(device, array)
    wanted = ts.argsort(x, axis=1, descending=descending)
    assert ts.argsort(y, axis=1, descending=descending).tolist() == wanted.tolist()
    across = ts.argsort(x, axis=0, descending=descending).tolist()
    assert ts.argsort(y, axis=0, descending=descending).tolist() == across
    if dtype != "complex64":
        k = min(n, 5)
        positions = [np.asarray(ts.topk(each, k)[1].cpu()) for each in (x, y)]
        np.testing.assert_array_equal(positions[0], positions[1])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_places_among_sorted_elements(side: Any, dtype: str, device: str) -> None:
    line, values = (
        np.sort(RNG.integers(0, 30, 300)).astype(dtype),
        RNG.integers(-2, 33, (7, 11)).astype(dtype),
    )
    found = ts.searchsorted(on(device, line), on(device, values), side=side)
    same(found, np.searchsorted(line, values, side=side))
    lines = np.sort(RNG.integers(0, 9, (7, 40)), axis=1).astype(dtype)
    wanted = ts.searchsorted(ts.asarray(lines), ts.asarray(values), side=side)
    assert ts.searchsorted(on(device, lines), on(device, values), side=side).tolist() == wanted.tolist()


@pytest.mark.parametrize("shape", [(3, 1), (3, 257), (200, 40), (2, 1000)])
@pytest.mark.parametrize("axis", [0, 1])
def test_running_extremes_and_sums_of_powers(shape: tuple[int, int], axis: int, device: str) -> None:
    array = RNG.integers(0, 50, shape).astype(np.float64)
    for special in (None, np.nan, np.inf, -np.inf):
        if special is not None:
            array[RNG.random(shape) < 0.02] = special
        x, y = ts.asarray(array), on(device, array)
        for function in (ts.cummax, ts.cummin):
            assert function(y, axis=axis)[1].tolist() == function(x, axis=axis)[1].tolist()
        same(ts.logcumsumexp(y, axis=axis), np.asarray(ts.logcumsumexp(x, axis=axis)), 1e-12)


@pytest.mark.parametrize("reduce", ["prod", "amin", "amax"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_values_are_joined_at_places(reduce: str, dtype: str, device: str) -> None:
    x, values = (RNG.integers(1, 3, (5, 9)).astype(dtype) for _ in range(2))
    if dtype == "float32":
        values[2, 3] = np.nan
    index = RNG.integers(0, 5, (5, 9))
    arguments = [
        [make(each) for each in (x, index, values)] for make in (ts.asarray, lambda a: on(device, a))
    ]
    wanted, found = (ts.scatter_reduce(*each, axis=0, reduce=reduce) for each in arguments)
    same(found, np.asarray(wanted))


def test_nan_goes_through_extremes(device: str) -> None:
    array = np.array([[1.0, np.nan, 3.0], [0.0, -1.0, np.inf]])
    x = on(device, array)
    assert np.isnan(ts.max(x, axis=1).tolist()[0])
    assert ts.argmax(x, axis=1).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("a", "b"),
    [((4, 5), (5, 6)), ((3, 4, 5), (5, 6)), ((2, 1, 4, 5), (3, 5, 6)), ((5,), (5, 6)), ((4, 0), (0, 3))],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int64"])
def test_products(a: tuple[int, ...], b: tuple[int, ...], dtype: str, device: str) -> None:
    x, y = (RNG.integers(-3, 4, shape).astype(dtype) for shape in (a, b))
    same(on(device, x) @ on(device, y), x @ y)


def test_products_of_transposed_and_sliced_matrices(device: str) -> None:
    x, y = RNG.standard_normal((6, 9)), RNG.standard_normal((6, 8))
    same(on(device, x).T @ on(device, y), x.T @ y, 1e-10)
    same(on(device, x)[:, ::2].T @ on(device, y)[:, 2:5], x[:, ::2].T @ y[:, 2:5], 1e-10)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
@pytest.mark.parametrize("source", ["float16", "float32", "float64"])
def test_special_numbers_become_the_integers_of_the_cpu(source: str, dtype: str, device: str) -> None:
    array = np.array([np.nan, np.inf, -np.inf, 6e4, -300.7, 255.9, -1.0, 0.5], source)
    if source != "float16":
        array = np.concatenate([array, np.array([1e20, -1e20, 3e9, -3e9, 9.3e18, 2.0**63], source)])
    expected = ts.astype(ts.asarray(array), getattr(ts, dtype)).tolist()
    assert ts.astype(on(device, array), getattr(ts, dtype)).tolist() == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_product_and_sum_are_not_contracted(dtype: str, device: str) -> None:
    """A fused chain has the bits of its operations one by one."""
    x, y, z = (on(device, each) for each in RNG.standard_normal((3, 1000)).astype(dtype))
    results = []
    for enabled in (True, False):
        with ts.fusion(enabled, least=1):
            results.append(np.asarray((x * y + z - y * z).cpu()))
    np.testing.assert_array_equal(results[0], results[1])


# --- writing, indexing --------------------------------------------------------------------------------------


def test_writing_in_place(device: str) -> None:
    array = RNG.standard_normal((4, 6))
    x, wanted = on(device, array), array.copy()
    x[1] = 7
    x[:, 2:4] += on(device, np.ones((4, 2)))
    x[ts.asarray([0, 3])] = ts.asarray(np.zeros((2, 6)))  # from the CPU
    x[x > 6] = -1
    x *= 2
    wanted[1] = 7
    wanted[:, 2:4] += 1
    wanted[[0, 3]] = 0
    wanted[wanted > 6] = -1
    same(x, wanted * 2)
    host = ts.zeros(3, dtype=ts.float64)
    host[:] = on(device, np.arange(3.0))
    assert host.tolist() == [0, 1, 2]
    assert host.device == "cpu"


def test_gradients_of_repeated_indices(device: str) -> None:
    index = np.array([2, 0, 2, 2, 5])
    x = on(device, RNG.standard_normal((6, 3)))
    x.requires_grad = True
    weights = RNG.standard_normal((5, 3))
    ts.sum(x[on(device, index)] * on(device, weights)).backward()
    wanted = np.zeros((6, 3))
    np.add.at(wanted, index, weights)
    same(x.grad, wanted, 1e-12)


def test_an_index_out_of_range(device: str) -> None:
    with pytest.raises(IndexError, match="index 9 of an axis with 4"):
        ts.take(on(device, np.arange(4)), on(device, np.array([9])), axis=0)


# --- programs -----------------------------------------------------------------------------------------------


def program(x: Any, y: Any) -> Any:
    z = ts.where(x > y, ts.exp(-x) * y, ts.tanh(y) + 0.5)
    return ts.astype(z[:, None] * z, ts.float32) + ts.sum(x)


def test_a_chain_is_one_kernel(device: str) -> None:
    x, y = RNG.standard_normal((2, 40))
    with ts.fusion(least=1):
        given = on(device, x), on(device, y)
        first = ts.exp(given[0]) * given[1] + 3 - ts.sin(given[0] * given[1])
        before = sum(cuda.kernel_counts().values())
        found = np.asarray(first.cpu())
        assert sum(cuda.kernel_counts().values()) - before == 1
        np.testing.assert_allclose(found, np.exp(x) * y + 3 - np.sin(x * y), rtol=1e-12)
        same(program(*given), np.asarray(program(ts.asarray(x), ts.asarray(y))), 1e-6)


def test_deferred_programs_give_the_same_bits(device: str) -> None:
    x, y = (on(device, each) for each in RNG.standard_normal((2, 300)))
    found = []
    for enabled in (True, False):
        with ts.fusion(enabled, least=1):
            found.append(np.asarray(program(x, y).cpu()))
    np.testing.assert_array_equal(found[0], found[1])


def network(device: str, dtype: Any) -> tuple[list[Any], Callable[[], Any]]:
    """Parameters of a small network with all that has kernels of its own, and its loss."""
    rng = np.random.default_rng(1)

    def leaf(*shape: int) -> Any:
        made = ts.astype(on(device, rng.standard_normal(shape) * 0.3), dtype)
        made.requires_grad = True
        return made

    table, weight, bias, scale, shift, last = (
        leaf(7, 6), leaf(8, 6), leaf(8), leaf(8), leaf(8), leaf(5, 8),
    )  # fmt: skip
    words, classes = on(device, rng.integers(0, 7, (4, 3))), on(device, rng.integers(0, 5, 12))

    def loss() -> Any:
        x = F.gelu(F.linear(table[words], weight, bias))
        x = F.layer_norm(x, (8,), scale, shift)
        attention = F.softmax(x @ ts.matrix_transpose(x), -1)
        logits = F.linear(attention @ x, last)
        return F.cross_entropy(ts.reshape(logits, (12, 5)), classes, label_smoothing=0.1)

    return [table, weight, bias, scale, shift, last], loss


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_training_is_that_of_the_cpu(name: str, device: str) -> None:
    curves = []
    for place in ("cpu", device):
        parameters, loss = network(place, ts.float64)
        options = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(ts.optim, name)(parameters, lr=0.05, weight_decay=0.01, **options)
        curve = []
        for _ in range(4):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            optimizer.step()
            curve.append(value.item())
        assert all(each.device == place and each.grad.device == place for each in parameters)
        curves.append(curve)
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-9)
    assert curves[0][-1] < curves[0][0]


def test_second_gradients(device: str) -> None:
    array = RNG.standard_normal((3, 4))
    found = []
    for place in ("cpu", device):
        x = on(place, array)
        x.requires_grad = True
        (first,) = ts.grad(ts.sum(ts.tanh(x) * F.softmax(x, -1)), [x], create_graph=True)
        (second,) = ts.grad(ts.sum(first * first), [x])
        found.append(np.asarray(second.cpu()))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-10)


POOLS = {
    "max": lambda x: F.max_pool2d(x, 3, stride=2, padding=1),
    "max dilated": lambda x: F.max_pool2d(x, 2, stride=1, dilation=2),
    "mean": lambda x: F.avg_pool2d(x, (3, 2), stride=(1, 2), padding=1),
    "mean of what is there": lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (2, 3)),
    "mean in 1d": lambda x: F.avg_pool1d(x[:, :, 0], 3, stride=2),
    "group norm": lambda x: F.group_norm(x[:, :2], 1) * x[:, 1:],
    "batch norm": lambda x: F.batch_norm(x, None, None, x[0, :, 0, 0], x[0, :, 1, 1], training=True),
    "convolution": lambda x: F.conv2d(x, x[:, :, :3, :2], stride=(2, 1), padding=1, dilation=(1, 2)),
    "transposed": lambda x: F.conv_transpose2d(x, x[:3, :, :3, :2].swapaxes(0, 1)[:, :2], stride=2),
}


@pytest.mark.parametrize("name", POOLS)
def test_windows_and_their_gradients(name: str, device: str) -> None:
    array = RNG.standard_normal((3, 3, 7, 9))
    found = []
    for place in ("cpu", device):
        x = on(place, array)
        x.requires_grad = True
        y = POOLS[name](x)
        assert y.device == place
        (slope,) = ts.grad(ts.sum(y * y), [x])
        found.append((np.asarray(y.detach().cpu()), np.asarray(slope.cpu())))
    for here, there in zip(*found, strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("function", [ts.linalg.det, ts.linalg.inv, ts.linalg.svdvals, ts.prod])
def test_gradients_of_what_is_computed_on_the_cpu(function: Callable[[Any], Any], device: str) -> None:
    found, array = [], RNG.standard_normal((3, 3))
    for place in ("cpu", device):
        x = on(place, array)
        x.requires_grad = True
        y = function(x)
        assert y.device == place
        ts.sum(y * 2.5).backward()
        assert x.grad.device == place
        found.append(np.asarray(x.grad.cpu()))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9)


def test_numbers_of_the_cpu_take_part_in_gradients(device: str) -> None:
    scale = ts.asarray(3.0, dtype=ts.float64)
    scale.requires_grad = True
    x = on(device, np.arange(4.0))
    x.requires_grad = True
    ts.sum((x * scale) ** 2 / (scale + 1)).backward()
    assert x.grad.device == device
    assert scale.grad.device == "cpu"
    # s^2 / (s + 1) has the slope (s^2 + 2 s) / (s + 1)^2
    assert scale.grad is not None
    np.testing.assert_allclose(float(scale.grad), 14 * (9 + 6) / 16, rtol=1e-12)


# --- devices ------------------------------------------------------------------------------------------------


def test_moving_is_differentiable(device: str) -> None:
    x = ts.asarray([1.0, 2.0])
    x.requires_grad = True
    y = x.to(device)
    assert y.device == device
    assert y.to(device) is y
    ts.sum(y * y).backward()
    assert x.grad.tolist() == [2, 4]
    assert x.grad.device == "cpu"
    assert x.cuda().cpu().device == "cpu"
    assert x.to(device, ts.float64).dtype == ts.float64


def test_what_lies_on_the_cpu_comes_to_the_device(device: str) -> None:
    x = on(device, np.arange(3.0))
    for made in (x + ts.asarray([1.0, 1.0, 1.0]), ts.asarray([1.0, 1.0, 1.0]) + x, x + 1):
        assert made.device == device
        assert made.tolist() == [1, 2, 3]


def test_two_devices_do_not_mix(device: str) -> None:
    if cuda.device_count() < 2:
        pytest.skip("one CUDA device only")
    x = ts.ones(3, device="cuda:0")
    other = x.to("cuda:1")
    assert other.device == "cuda:1"
    assert other.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match=r"\[add\] tensors on cuda:0 and cuda:1; bring them to one device"):
        x + other


@pytest.mark.parametrize("make", [ts.zeros, ts.ones, ts.empty])
def test_new_tensors(make: Callable[..., Any], device: str) -> None:
    made = make((2, 3), dtype=ts.int16, device="cuda")
    assert (made.device, made.shape, made.dtype) == (device, (2, 3), ts.int16)
    assert ts.zeros_like(made).device == device
    assert ts.full((2,), 3.5, device=device).tolist() == [3.5, 3.5]
    assert ts.arange(3, device=device).tolist() == [0, 1, 2]
    assert ts.linspace(0, 1, 3, device=device).tolist() == [0, 0.5, 1]
    assert ts.eye(2, device=device).tolist() == [[1, 0], [0, 1]]
    assert ts.asarray([1, 2], device=device).device == device
    assert ts.tensor([1.0], device=device, requires_grad=True).is_leaf
    assert device in ts.__array_namespace_info__().devices()


@pytest.mark.parametrize("name", ["cuda:77", "cuda:x", "gpu", "cuda:-1", "cuda:", ""])
def test_devices_that_do_not_exist(name: str, device: str) -> None:
    with pytest.raises(ValueError, match="no device"):
        ts.zeros(2, device=name)
    with pytest.raises(ValueError, match="no device"):
        ts.zeros(2).to_device(name)


def test_text_copies_and_pickles(device: str) -> None:
    x = on(device, np.array([1.0, 2.5], np.float32))
    assert repr(x) == f"tensor([1. , 2.5], device='{device}')"
    for made in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert made.device == device
        assert made.tolist() == [1, 2.5]
    assert float(x[1]) == 2.5
    assert bool(x[0] == 1)


def test_the_cpu_does_not_touch_its_memory(device: str) -> None:
    x = ts.ones(3, device=device)
    with pytest.raises(BufferError, match=r"on a CUDA device; copy it with .to\('cpu'\)"):
        memoryview(x)  # type: ignore[arg-type]  # Buffer is a protocol from Python 3.12 on
    with pytest.raises((BufferError, RuntimeError, TypeError, ValueError)):
        np.from_dlpack(x)
    assert np.from_dlpack(x, device="cpu").tolist() == [1, 1, 1]


def test_dlpack_round_trip(device: str) -> None:
    x = on(device, np.arange(6.0).reshape(2, 3))
    assert x.__dlpack_device__() == (2, 0)
    y = ts.from_dlpack(x)
    assert y.device == device
    y[0, 0] = 5
    assert x.tolist() == [[5, 1, 2], [3, 4, 5]]
    assert ts.from_dlpack(x, copy=True).tolist() == x.tolist()
    with pytest.raises(BufferError, match="another device"):
        x.__dlpack__(dl_device=(1, 0), copy=False)


# --- memory -------------------------------------------------------------------------------------------------


def test_what_tensors_hold_is_counted_by_device(device: str) -> None:
    before, on_cpu = ts.memory_stats(device).live_bytes, ts.memory_stats().live_bytes
    ts.reset_peak(device)
    x = ts.empty((1000,), device=device)
    assert ts.memory_stats(device).live_bytes - before == 4096
    assert ts.memory_stats().live_bytes == on_cpu
    del x
    stats = ts.memory_stats(device)
    assert stats.live_bytes == before
    assert stats.peak_bytes == before + 4096
    ts.empty_cache(device)


def test_a_limit_and_a_full_device(device: str) -> None:
    held = ts.memory_stats(device).live_bytes
    ts.set_memory_limit(held + 10000, device)
    try:
        with pytest.raises(MemoryError, match="the smallest limit that would do here is"):
            ts.empty((5000,), device=device)
    finally:
        ts.set_memory_limit(None, device)
    with pytest.raises(MemoryError, match=r"cuda:0 has no \d+ bytes; tensors hold"):
        ts.empty((1 << 45,), device=device)
    assert ts.memory_stats(device).live_bytes == held
    assert ts.sum(ts.ones(10, device=device)).item() == 10


def test_properties_and_streams(device: str) -> None:
    properties = cuda.get_device_properties(device)
    assert properties.name
    assert properties.total_memory >= cuda.memory_free(device) > 0
    stream = cuda.Stream(device)
    usual = cuda.current_stream(device)
    x = ts.ones(5, device=device)
    with cuda.stream(stream):
        assert cuda.current_stream(device).handle == stream.handle
        y = x + 1
    assert cuda.current_stream(device).handle == usual.handle
    assert (y + x).tolist() == [3] * 5
    usual.wait_stream(stream)
    stream.synchronize()
    cuda.synchronize(device)


def test_without_a_driver() -> None:
    code = (
        "import accelera.tensora as ts\n"
        "assert not ts.cuda.is_available()\n"
        "assert ts.__array_namespace_info__().devices() == ['cpu']\n"
        "print(ts.cuda.absence())\n"
        "ts.zeros(2).to('cuda')\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if found.returncode and "AssertionError" in found.stderr:
        pytest.skip("this machine has a CUDA device")
    assert "libcuda.so.1" in found.stdout
    assert "accelera.errors.ArgumentError: [tensora] no CUDA device: no CUDA driver" in found.stderr
