"""Bool tensors over foreign memory whose bytes are neither 0 nor 1: any byte but 0 is true, as in NumPy."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts


def _flags(shape: tuple[int, ...] = (6, 37)) -> np.ndarray:
    """Return bools of the bytes 0, 1, 2, 3, 128, 254 and 255."""
    random = np.random.default_rng(7)
    return random.choice(np.array([0, 0, 1, 2, 3, 128, 254, 255], np.uint8), shape).view(bool)


def _from_file(flags: np.ndarray) -> Any:
    file = io.BytesIO()
    np.save(file, flags)
    file.seek(0)
    return ts.asarray(np.load(file))


SOURCES: dict[str, Callable[[np.ndarray], Any]] = {
    "dlpack": ts.from_dlpack,
    "view": lambda flags: ts.asarray(flags),
    "copy": lambda flags: ts.tensor(flags),
    "npy": _from_file,
    "transposed": lambda flags: ts.asarray(np.ascontiguousarray(flags.T)).T,
    "reversed": lambda flags: ts.asarray(np.ascontiguousarray(flags[:, ::-1]))[:, ::-1],
    "strided": lambda flags: ts.asarray(np.repeat(flags, 2, 1))[:, ::2],
    "clone": lambda flags: ts.asarray(flags).clone(),
}

NUMBERS = np.arange(222).reshape(6, 37)
MOVED = ("concat", "masked", "where of bools", "sort", "maximum", "unique_values")
"""Operations whose results are elements of their operand."""
FIVE, SIX = np.full((6, 37), 5), np.full((6, 37), 6)
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (ts.sum, np.sum),
    "sum of rows": (lambda t: ts.sum(t, axis=1), lambda a: a.sum(1)),
    "sum of columns": (lambda t: ts.sum(t, axis=0), lambda a: a.sum(0)),
    "prod": (lambda t: ts.prod(t, axis=0), lambda a: a.prod(0)),
    "mean": (lambda t: ts.mean(t.to(ts.float64)), np.mean),
    "max": (lambda t: ts.max(t, axis=1), lambda a: a.max(1)),
    "min": (lambda t: ts.min(t, axis=0), lambda a: a.min(0)),
    "any": (lambda t: ts.any(t, axis=0), lambda a: a.any(0)),
    "all": (lambda t: ts.all(t, axis=0), lambda a: a.all(0)),
    "argmax": (lambda t: ts.argmax(t, axis=1), lambda a: a.argmax(1)),
    "argmin": (lambda t: ts.argmin(t, axis=1), lambda a: a.argmin(1)),
    "count_nonzero": (ts.count_nonzero, np.count_nonzero),
    "cumulative_sum": (lambda t: ts.cumulative_sum(t, axis=1), lambda a: a.cumsum(1)),
    "cumulative_prod": (lambda t: ts.cumulative_prod(t, axis=0), lambda a: a.cumprod(0)),
    "sort": (lambda t: ts.sort(t, axis=1), lambda a: np.sort(a, 1)),
    "argsort": (lambda t: ts.argsort(t, axis=1), lambda a: np.argsort(a, 1, kind="stable")),
    "unique_values": (ts.unique_values, np.unique),
    "nonzero": (lambda t: ts.nonzero(t)[1], lambda a: np.nonzero(a)[1]),
    "~": (lambda t: ~t, lambda a: ~a),
    "logical_not": (ts.logical_not, np.logical_not),
    "== true": (lambda t: t == ts.ones((), dtype=ts.bool), lambda a: a == np.True_),
    "!= itself turned": (lambda t: t != ts.flip(t, axis=1), lambda a: a != a[:, ::-1]),
    "<": (lambda t: t < ts.flip(t, axis=1), lambda a: a < a[:, ::-1]),
    "&": (lambda t: t & ts.flip(t, axis=0), lambda a: a & a[::-1]),
    "|": (lambda t: t | ts.flip(t, axis=0), lambda a: a | a[::-1]),
    "^": (lambda t: t ^ ts.flip(t, axis=0), lambda a: a ^ a[::-1]),
    "logical_xor": (
        lambda t: ts.logical_xor(t, ts.flip(t, axis=0)),
        lambda a: np.logical_xor(a, a[::-1]),
    ),
    "maximum": (lambda t: ts.maximum(t, ts.flip(t, axis=0)), lambda a: np.maximum(a, a[::-1])),
    "+": (lambda t: t + t, lambda a: a + a),
    "*": (lambda t: t * ts.flip(t, axis=1), lambda a: a * a[:, ::-1]),
    "+ 1": (lambda t: t + 1, lambda a: a + 1),
    "to uint8": (lambda t: t.to(ts.uint8), lambda a: a.astype(np.uint8)),
    "to float16": (lambda t: t.to(ts.float16), lambda a: a.astype(np.float16)),
    "to complex64": (lambda t: t.to(ts.complex64), lambda a: a.astype(np.complex64)),
    "exp": (lambda t: ts.exp(t.to(ts.float64)), lambda a: np.exp(a.astype(np.float64))),
    "where": (lambda t: ts.where(t, ts.asarray(FIVE), ts.asarray(SIX)), lambda a: np.where(a, 5, 6)),
    "where with numbers": (lambda t: ts.where(t, 5, 6), lambda a: np.where(a, 5, 6)),
    "where of bools": (lambda t: ts.where(t, t, ~t), lambda a: np.where(a, a, ~a)),
    "mask": (lambda t: ts.asarray(NUMBERS)[t], lambda a: NUMBERS[a]),
    "masked": (lambda t: t[t], lambda a: a[a]),
    "matmul": (lambda t: t @ t.T, lambda a: a @ a.T),
    "concat": (lambda t: ts.concat([t, ~t], axis=0), lambda a: np.concatenate([a, ~a])),
    "take": (lambda t: ts.sum(ts.take(t, ts.asarray([3, 1, 3]), axis=1)), lambda a: a[:, [3, 1, 3]].sum()),
    "diff by xor": (lambda t: t[:, 1:] ^ t[:, :-1], lambda a: a[:, 1:] ^ a[:, :-1]),
    "tolist": (lambda t: ts.asarray(t.tolist()), lambda a: np.array(a.tolist())),
    "items": (
        lambda t: ts.asarray([bool(t[i, j]) + t[i, j].item() for i in range(6) for j in range(5)]),
        lambda a: np.array([int(x) * 2 for x in a[:, :5].ravel()]),
    ),
    "0-d mask": (lambda t: ts.asarray([7])[t[0, 1]], lambda a: np.array([7])[a[0, 1]]),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_on_bools_of_any_byte(name, source):
    flags = _flags()
    truth = flags.view(np.uint8) != 0
    ours, reference = OPERATIONS[name]
    got, expected = np.asarray(ours(SOURCES[source](flags))), np.asarray(reference(truth))
    if got.dtype == bool and name not in MOVED:
        assert got.view(np.uint8).max(initial=0) <= 1  # computed bools are 0 or 1
    got = got.view(np.uint8) != 0 if expected.dtype == bool else got
    np.testing.assert_allclose(got, expected, rtol=1e-15)


@pytest.mark.parametrize("fused", [False, True])
def test_fused_chain_reads_any_byte_as_true(fused):
    flags = _flags()
    truth = flags.view(np.uint8) != 0
    numbers = np.linspace(-1, 1, flags.size).reshape(flags.shape)
    with ts.fusion(fused):
        t, x = ts.from_dlpack(flags), ts.asarray(numbers)
        got = np.asarray(ts.where(t & (x > 0), x * t.to(ts.float64), -x) + 1)
    np.testing.assert_allclose(got, np.where(truth & (numbers > 0), numbers * truth, -numbers) + 1)


def test_writes_by_a_mask_of_any_byte():
    flags = _flags()
    truth = flags.view(np.uint8) != 0
    x, reference = ts.zeros((6, 37)), np.zeros((6, 37))
    x[ts.from_dlpack(flags)] = 3.0
    reference[truth] = 3.0
    np.testing.assert_array_equal(np.asarray(x), reference)


def test_bytes_written_later_by_numpy_are_true():
    memory = np.zeros(300, np.uint8)
    t = ts.from_dlpack(memory.view(bool))
    memory[::3] = 200
    assert ts.sum(t).item() == 100
    assert ts.sum(~t).item() == 200


def test_gradient_of_where_reads_any_byte_as_true():
    flags = _flags()
    x = ts.ones((6, 37), dtype=ts.float64).requires_grad_()
    ts.where(ts.from_dlpack(flags), x * 2, x * 3).sum().backward()
    np.testing.assert_array_equal(np.asarray(x.grad), np.where(flags.view(np.uint8) != 0, 2.0, 3.0))


def test_attention_mask_of_any_byte():
    flags = _flags((4, 4))
    flags.view(np.uint8)[:, 0] = 77
    truth = flags.view(np.uint8) != 0
    q = ts.asarray(np.random.default_rng(1).random((1, 4, 8)))
    attention = ts.functional.scaled_dot_product_attention
    got = attention(q, q, q, attn_mask=ts.from_dlpack(flags))
    np.testing.assert_allclose(np.asarray(got), np.asarray(attention(q, q, q, attn_mask=ts.tensor(truth))))
