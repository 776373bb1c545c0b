"""Every entry of the op table in generated combinations of mode, layout, element type and values.

A result in any combination equals the result of an eager call on contiguous copies, and the inputs stay as
they were. Elements encode their tensor and index, so that an element read from another place or another
tensor differs; some inputs have special values instead.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts
from accelera.errors import StateError
from accelera.tensora.core import native
from tests.tensora.more_samples import MORE
from tests.tensora.op_samples import SAMPLES, Sample
from tests.tensora.test_op_table import OPS, accepts, numbers
from tests.tensora.window_samples import WINDOW_SAMPLES

TABLE = SAMPLES | WINDOW_SAMPLES | MORE
CASES = [
    pytest.param(name, sample, id=f"{name}-{i}")
    for name, samples in TABLE.items()
    for i, sample in enumerate(samples)
]
DTYPES = ["float64", "float32", "float16", "bfloat16", "complex64", "complex128"]
DTYPES += ["int64", "int32", "int8", "uint8", "bool"]
COMBINATIONS = 8
"""Combinations of each sample."""
SPECIAL = np.array(
    [0.0, -0.0, 0.1, -0.3, 0.7, 1.0, np.inf, -np.inf, np.nan, 5e-324, 1.5e-45, 2.2e-308, 1.8e308, 3.4e38]
)
ANY_VALUES = {"elementwise", "movement"}
"""Families that accept NaN, infinity and extremes wherever they accept numbers."""


def encoded(sample: Sample, shape: tuple[int, ...], dtype: str, place: int) -> Any:
    """Return an array of the sample's range whose elements are distinct functions of their index."""
    size = int(np.prod(shape))
    spread = (np.arange(size) + 0.5 + 0.11 * place) / (size + 1)
    values: Any = sample.low + (sample.high - sample.low) * spread
    if dtype.startswith("complex"):
        values = values + 1j * values[::-1]
    if dtype in ("bool", "uint8") or dtype.startswith("int"):
        values = (np.arange(size) * 7 + place) % 23
        if sample.low > -1:
            values = np.clip(values, max(0, np.ceil(sample.low)), max(1, np.floor(sample.high)))
    return values.reshape(shape)


def special(generator: random.Random, shape: tuple[int, ...]) -> Any:
    """Return an array of special values."""
    size = int(np.prod(shape))
    return np.array([SPECIAL[generator.randrange(len(SPECIAL))] for _ in range(size)]).reshape(shape)


# --- layouts: each returns a tensor of the elements of `x`, or of some of them for those that repeat elements


def strided(x: Any) -> Any:
    wide = ts.zeros(tuple(2 * n + 1 for n in x.shape), dtype=x.dtype)
    view = wide[tuple(slice(1, None, 2) for _ in x.shape)]
    view[...] = x
    return view


def reversed_(x: Any) -> Any:
    return ts.flip(x)[(slice(None, None, -1),) * x.ndim]


def transposed(x: Any) -> Any:
    axes = tuple(range(x.ndim))[::-1]
    return ts.permute_dims(native.copy(ts.permute_dims(x, axes)), axes)


def broadcast(x: Any) -> Any:
    return ts.broadcast_to(x[:1], x.shape) if x.ndim and x.shape[0] else x


def overlapping(x: Any) -> Any:
    """Return rows that share all but one of their elements with the next row."""
    if x.ndim < 2 or 0 in x.shape:
        return x
    flat = ts.reshape(x, (-1,))
    steps = (*(1 for _ in x.shape[:-1]), 1)
    return native.as_strided(flat, tuple(x.shape), steps, 0)


def shared(x: Any) -> Any:
    """Return a tensor over the memory of a NumPy array."""
    if x.dtype.name == "bfloat16":
        return x
    return ts.asarray(np.asarray(x).copy(), copy=False)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda x: x,
    "strided": strided,
    "reversed": reversed_,
    "transposed": transposed,
    "broadcast": broadcast,
    "overlapping": overlapping,
    "shared": shared,
}


# --- modes: each runs a function of tensors


@contextlib.contextmanager
def small_budget() -> Iterator[None]:
    """Open a step of 1 MiB, next to tensors of 1.4 MiB whose contents are checked at its end."""
    with ts.budget(ts.memory_stats().live_bytes + (1 << 20)):
        ballast = [ts.full((300, 100), float(number)) for number in range(12)]
        yield
        for number, tensor in enumerate(ballast):
            # Not through NumPy: a tensor whose memory another library has seen stays in memory.
            assert bool(ts.all(tensor == number)), f"ballast {number} has other contents"


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = ts.get_num_threads()
    ts.set_num_threads(count)
    try:
        yield
    finally:
        ts.set_num_threads(before)


def compiled(call: Callable[..., Any], inputs: list[Any]) -> Any:
    function = ts.jit(lambda *tensors: call(*tensors))
    function(*inputs)
    return function(*inputs)


def within(context: Callable[[], Any]) -> Callable[..., Any]:
    """Return the mode of a call inside a context, whose result is read inside as well."""

    def run(call: Callable[..., Any], inputs: list[Any]) -> Any:
        with context():
            return read(call(*inputs))

    return run


def jit_in_budget(call: Callable[..., Any], inputs: list[Any]) -> Any:
    with small_budget():
        return read(compiled(call, inputs))


def budget_with_fusion(call: Callable[..., Any], inputs: list[Any]) -> Any:
    with small_budget(), ts.fusion(True, least=1):
        return read(call(*inputs))


MODES: dict[str, Callable[[Callable[..., Any], list[Any]], Any]] = {
    "eager": lambda call, inputs: call(*inputs),
    "fusion": within(lambda: ts.fusion(True, least=1)),
    "no fusion": within(lambda: ts.fusion(False)),
    "three threads": within(lambda: threads(3)),
    "recording": within(ts.Recording),
    "no gradients": within(ts.no_grad),
    "jit": compiled,
    "budget": within(small_budget),
    "jit, budget": jit_in_budget,
    "budget, fusion": budget_with_fusion,
}


def read(result: Any) -> Any:
    """Return the elements of a tensor, which runs deferred operations; an array is returned as it is."""
    return result if isinstance(result, np.ndarray) else numbers(result)


def check_equal(result: Any, expected: Any, dtype: str, message: str) -> None:
    tolerance = {"float32": 2e-6, "complex64": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 1e-13)
    assert result.shape == expected.shape, message
    if result.dtype.kind in "fc":
        np.testing.assert_allclose(
            result, expected, rtol=tolerance, atol=tolerance, equal_nan=True, err_msg=message
        )
    else:
        np.testing.assert_array_equal(result, expected, err_msg=message)


def is_refused(error: StateError, mode: str) -> bool:
    """Return whether a captured function refuses computed elements, or a sample needs gradients."""
    return ("jit" in mode and "[jit]" in str(error)) or (
        mode == "no gradients" and "[backward]" in str(error)
    )


def inputs_of(
    name: str, sample: Sample, dtype: str, layout: str, generator: random.Random
) -> tuple[list[Any], bool]:
    """Return the tensors of a combination, and whether they have special values."""
    is_special = OPS[name]["family"] in ANY_VALUES and not sample.fixed and generator.random() < 0.3
    tensors = []
    for place, shape in enumerate(sample.shapes):
        if place in sample.fixed:
            tensors.append(ts.asarray(np.asarray(sample.fixed[place])))
            continue
        if is_special:
            values = special(generator, shape)
        elif sample.apart:
            values = sample.inputs("float64", place)[place]
        else:
            values = encoded(sample, shape, dtype, place)
        with np.errstate(all="ignore"):
            x = ts.astype(ts.asarray(np.asarray(values)), getattr(ts, dtype))
        tensors.append(LAYOUTS[layout](x))
    return tensors, is_special


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "sample"), CASES)
def test_combinations_equal_eager_calls_on_copies(name: str, sample: Sample) -> None:
    generator = random.Random(zlib.crc32(f"{name} {sample.shapes}".encode()))
    dtypes = [dtype for dtype in DTYPES if accepts(sample, dtype)]
    for number in range(COMBINATIONS):
        dtype = generator.choice(dtypes[:2] if number % 2 else dtypes)
        mode, layout = generator.choice(list(MODES)), generator.choice(list(LAYOUTS))
        tensors, is_special = inputs_of(name, sample, dtype, layout, generator)
        copies = [native.copy(x) for x in tensors]
        before = [numbers(x) for x in copies]
        try:
            expected = read(sample.call(*copies))
        except TypeError:
            continue  # not defined for this type
        message = f"{name}, {mode}, {layout}, {dtype}, special values: {is_special}"
        try:
            result = MODES[mode](sample.call, tensors)
        except StateError as error:
            if not is_refused(error, mode):
                raise
            continue
        check_equal(read(result), expected, dtype, message)
        for x, values in zip(tensors, before, strict=True):
            np.testing.assert_array_equal(numbers(x), values, err_msg=f"an input changed: {message}")


@pytest.mark.parametrize(("name", "sample"), [case for case in CASES if case.values[1].gradient])
def test_gradients_of_combinations_equal_those_of_copies(name: str, sample: Sample) -> None:
    generator = random.Random(zlib.crc32(f"gradient {name} {sample.shapes}".encode()))
    if not OPS[name]["differentiable"]:
        return
    for _ in range(COMBINATIONS // 2):
        mode = generator.choice([mode for mode in MODES if mode != "no gradients"])
        layout = generator.choice(list(LAYOUTS))
        arrays = sample.inputs("float64", generator.randrange(100))
        tensors = [
            ts.asarray(values) if place in sample.fixed else LAYOUTS[layout](ts.asarray(values))
            for place, values in enumerate(arrays)
        ]
        places = [place for place in range(len(tensors)) if place not in sample.fixed]

        def gradients(*inputs: Any, places: list[int] = places) -> Any:
            leaves = [x.detach() if place in places else x for place, x in enumerate(inputs)]
            for place in places:
                leaves[place].requires_grad = True
            result = sample.call(*leaves)
            weights = ts.reshape(ts.arange(result.size, dtype=ts.float64) * 0.25 - 1.0, tuple(result.shape))
            loss = ts.sum(ts.astype(result, ts.float64) * weights)
            gradients_of_leaves = ts.autograd.grad(
                loss, [leaves[place] for place in places], allow_unused=True
            )
            parts = [ts.reshape(g, (-1,)) for g in gradients_of_leaves if g is not None]
            return ts.concat([ts.reshape(loss, (1,)), *parts])

        try:
            expected = read(gradients(*[native.copy(x) for x in tensors]))
            result = MODES[mode](gradients, tensors)
        except TypeError:
            return  # not defined for this type
        except StateError as error:
            if not is_refused(error, mode):
                raise
            continue
        message = f"gradient of {name}, {mode}, {layout}"
        check_equal(read(result), expected, "float64", message)
