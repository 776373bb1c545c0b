"""``accelera evaluate`` and ``accelera plan evaluate``: expressions of files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.cli.expressions import parse_expression
from accelera.engine import MatrixEngine, lazy
from accelera.errors import ArgumentError, ShapeError, UnknownNameError
from tests.cli.conftest import Case

Run = Callable[..., Any]

VALUES = {name: np.random.default_rng(at).uniform(0.5, 2, (5, 5)) for at, name in enumerate("ABC")}
FUNCTIONS = {"sqrt": np.sqrt, "exp": np.exp, "maximum": np.maximum, "where": np.where, "sum": np.sum}
TEXTS = st.recursive(
    st.sampled_from(["A", "B", "C", "A.T", "2.5", "3"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda each: f"({' '.join(each)})"),
        inner.map(lambda each: f"-{each}"),
        inner.map(lambda each: f"sqrt(abs({each}))"),
        st.tuples(inner, inner).map(lambda each: f"maximum({each[0]}, {each[1]})"),
        st.tuples(inner, inner).map(lambda each: f"where(A < 1, {each[0]}, {each[1]})"),
    ),
    max_leaves=6,
)


@given(text=TEXTS)
def test_texts_mean_what_they_mean_to_python(text: str) -> None:
    text = f"A @ B + C * sum(C, axis=0) + ({text})"
    with np.errstate(all="ignore"):
        expected = eval(text, {"abs": np.abs, **FUNCTIONS}, VALUES)
        expression = parse_expression(text, {name: lazy(value) for name, value in VALUES.items()})
        found = np.asarray(MatrixEngine("cpu").evaluate(expression))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("reduction", ["sum", "mean", "var", "std", "min", "max", "prod", "argmin", "argmax"])
def test_reductions(reduction: str) -> None:
    expression = parse_expression(f"{reduction}(A, axis=1)", {"A": lazy(VALUES["A"])})
    found = np.asarray(MatrixEngine("cpu").evaluate(expression))
    np.testing.assert_allclose(found, getattr(np, reduction)(VALUES["A"], axis=1))


@pytest.mark.parametrize(
    ("text", "error", "word"),
    [
        ("A +", ArgumentError, "no expression"),
        ("", ArgumentError, "no expression"),
        ("A[0]", ArgumentError, "A[0]"),
        ("A.shape", ArgumentError, "A.shape"),
        ("A.T.__class__", ArgumentError, "__class__"),
        ("A < B < A", ArgumentError, "A < B < A"),
        ("'A'", ArgumentError, "'A'"),
        ("lambda: A", ArgumentError, "lambda"),
        ("sum(A, axes=0)", ArgumentError, "axes"),
        ("A + 1 / 0", ArgumentError, "division"),
        ("sqrt(3)", ArgumentError, "A=A.npy"),
        ("A", ArgumentError, "does not use B"),
        ("A @ B + D", UnknownNameError, "'D'"),
        ("sqr(A)", UnknownNameError, "'sqrt'"),
        ("__import__('os')", UnknownNameError, "__import__"),
        ("A @ B @ B[:, 0]", ArgumentError, "B[:, 0]"),
        ("A @ B @ A + sum(B)", ShapeError, ""),
    ],
)
def test_texts_that_are_refused(text: str, error: type[Exception], word: str) -> None:
    operands = {"A": lazy(np.ones((4, 3))), "B": lazy(np.ones((3, 2)))}
    with pytest.raises(error) as caught:
        parse_expression(text, operands)
    assert word in str(caught.value)


def test_a_file_is_written(case: Case, run: Run) -> None:
    np.save("D.npy", case.a @ case.b)
    words = ("A @ B - D", "A=A.npy", "B=B.npy", "D=D.npy")
    planned = json.loads(run("plan", "evaluate", *words, "--budget", "64MiB", "--json").stdout)
    ran = run("evaluate", *words, "-o", "C.npy", "--budget", "64MiB", "--json")
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert found["bytes_read"] == planned["bytes_read"]
    assert 0 <= found["process_peak_bytes"] <= planned["peak_bytes"]["ram"] <= 64 * 2**20
    np.testing.assert_allclose(np.load("C.npy"), 0, atol=1e-3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["A.npy"], "A=A.npy"),
        (["A="], "A=A.npy"),
        (["2=A.npy"], "A=A.npy"),
        (["A=A.npy", "A=B.npy"], "twice"),
    ],
)
def test_operands_that_are_refused(case: Case, run: Run, words: list[str], said: str) -> None:
    ran = run("evaluate", "A", *words, "-o", "C.npy")
    assert ran.exit_code == 2
    assert said in ran.output
    assert not (case.folder / "C.npy").exists()
