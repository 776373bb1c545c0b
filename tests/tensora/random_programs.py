"""Random programs of tensor operations, for tests of captured functions."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.tensora import functional


def values(shape, seed=0, dtype="float32"):
    return ts.asarray(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


UNARY = ["tanh", "exp", "sin", "relu", "abs", "sigmoid", "negative", "sqrt_abs", "cast", "copy", "gelu"]
BINARY = ["add", "multiply", "subtract", "maximum", "where", "divide"]
SHAPED = ["sum", "mean", "transpose", "slice", "matmul", "softmax", "reshape", "concat", "cumsum", "expand"]
WRITES = ["add_", "write_row", "multiply_", "fill_slice"]


def unary(name, x):
    if name == "sqrt_abs":
        return ts.sqrt(ts.abs(x) + 0.5)
    if name == "cast":
        return x.to(ts.float64).to(ts.float32) * 1.5
    if name == "copy":
        return x.clone() if hasattr(x, "clone") else x + 0
    if name in {"relu", "gelu", "sigmoid"}:
        return getattr(functional, name)(x)
    return getattr(ts, name)(x * 0.3)


def binary(name, x, y):
    if name == "where":
        return ts.where(x > 0, x, y)
    if name == "divide":
        return x / (ts.abs(y) + 1)
    return getattr(ts, name)(x, y)


def shaped(name, x):
    n = x.shape[0]
    if name == "sum":
        return x + x.sum(axis=0, keepdims=True)
    if name == "mean":
        return x * x.mean(axis=1, keepdims=True)
    if name == "transpose":
        return x + x.T
    if name == "slice":
        return ts.concat([x[:, n // 2 :], x[:, : n // 2]], axis=1)
    if name == "matmul":
        return ts.matmul(x, x) / n
    if name == "softmax":
        return functional.softmax(x, -1)
    if name == "reshape":
        return x.reshape((-1,)).reshape((n, n)) + 1
    if name == "concat":
        return ts.concat([x, x], axis=0)[:n]
    if name == "cumsum":
        return ts.cumulative_sum(x, axis=1) / n
    return x[:1] + ts.zeros((n, n))


def written(name, x, y):
    x = x * 1.0
    if name == "add_":
        x += y
    elif name == "multiply_":
        x[1:] *= y[:-1]
    elif name == "write_row":
        x[0] = y[1]
    else:
        x[:, 1:2] = 0.25
    return x


def run_program(program, inputs):
    """Values of a generated program: each instruction makes one more from earlier ones."""
    made = list(inputs)
    for name, i, j in program:
        x, y = made[i % len(made)], made[j % len(made)]
        if name in UNARY:
            made.append(unary(name, x))
        elif name in BINARY:
            made.append(binary(name, x, y))
        elif name in SHAPED:
            made.append(shaped(name, x))
        else:
            made.append(written(name, x, y))
    return made


programs = st.lists(
    st.tuples(
        st.sampled_from(UNARY * 2 + BINARY * 3 + SHAPED + WRITES), st.integers(0, 30), st.integers(0, 30)
    ),
    min_size=1,
    max_size=14,
)


def check_same(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
