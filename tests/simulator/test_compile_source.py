"""What ``predict_compile`` reads in source texts: facts, levels, errors; nothing is run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera import predict_compile
from accelera.errors import UnknownNameError
from accelera.simulator.compiling import SourcePrediction

PROGRAM = """
import torch

def train(x, w, n):
    total = 0
    for i in range(100):
        for j in range(8):
            total += x[i] * (n * n) + 2 * 3
    if total > 3:
        total = 0
    y = torch.relu(x @ w).exp() + 1
    return y.softmax(-1)

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(self.up(x)).sum()
"""


def counts(text: str) -> dict[str, float | None]:
    return {what: figure.value for what, figure in predict_compile(text).counts.items()}


def test_functions_loops_branches_and_tensor_operations() -> None:
    found = predict_compile(PROGRAM)
    assert counts(PROGRAM) == {"functions": 2, "loops": 2, "deepest loops": 2, "branches": 1, "calls": 8}
    assert [(each.name, each.line) for each in found.functions] == [("train", 4), ("Model.forward", 15)]
    assert {op: figure.value for op, figure in found.tensor_ops.items()} == dict.fromkeys(
        ("exp", "gelu", "matmul", "relu", "softmax", "sum"), 1
    )


def operations(text: str, level: str) -> float:
    found = predict_compile(text, opt_level=level).level
    assert found is not None
    return found.operations.value or 0.0


def test_iterations_and_operations_are_multiplied_out() -> None:
    assert operations("for i in range(10):\n    x = a + i", "O0") == 1 + 10 + 10  # range(), iterations, sums
    assert operations("for i in range(3):\n  for j in (1, 2):\n    x = i * j", "O0") == 1 + 3 + 6 + 6


@pytest.mark.parametrize(
    ("text", "level", "before", "after"),
    [
        ("x = 2 * 3 + 1", "O1", 2, 0),
        ("if False:\n    x = a * b", "O1", 1, 0),
        ("def f(a):\n    return a\n    a * a", "O1", 1, 0),
        ("for i in range(10):\n    x = a * b", "O2", 21, 12),
        ("for i in range(10):\n    a = a * b", "O2", 21, 21),
        ("x = a * b\ny = a * b", "O2", 2, 1),
        ("x = a * b\na = 1\ny = a * b", "O2", 2, 2),
        ("x = a[0]\nf()\ny = a[0]", "O2", 3, 3),
        ("for i in range(8):\n    x[i] = y[i] + z[i]", "O3", 41, 11),
        ("for i in range(8):\n    x = f(i)", "O3", 17, 17),
    ],
)
def test_what_a_level_removes(text: str, level: str, before: float, after: float) -> None:
    assert operations(text, "O0") == before
    assert operations(text, level) == after


def test_runs_of_tensor_operations_become_one_loop_from_o2() -> None:
    loops = [each.tensor_loops.value for each in predict_compile("y = x.relu().exp().tanh() @ w").levels]
    assert loops == [4, 4, 2, 2]


def test_levels_never_add_work() -> None:
    shares = [each.relative_time.value or 0.0 for each in predict_compile(PROGRAM).levels]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1


def test_the_level_is_checked() -> None:
    assert predict_compile(PROGRAM, opt_level="-o3").opt_level == "O3"
    with pytest.raises(UnknownNameError, match="O9"):
        predict_compile(PROGRAM, opt_level="O9")


@pytest.mark.parametrize(
    ("text", "line"), [("x = 1\ndef f(:\n  pass", 2), ("a = (", 1), ("x = 1\n\n  y = 2", 3), ("x = '\0'", 1)]
)
def test_what_is_no_python_names_its_line(text: str, line: int) -> None:
    with pytest.raises(SyntaxError, match=rf"\[predict_compile\] (line {line}|no Python)"):
        predict_compile(text)


@pytest.mark.parametrize("text", ["(" * 500, "[" * 300 + "]" * 300, "x = " + "-" * 100_000 + "1"])
def test_too_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(SyntaxError, match=r"\[predict_compile\]"):
        predict_compile(text)


def test_nothing_is_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    predict_compile(f"open({str(target)!r}, 'w').write('x')\nraise SystemExit")
    assert not target.exists()


def test_same_text_same_figures() -> None:
    assert predict_compile(PROGRAM).to_dict() == predict_compile(PROGRAM).to_dict()
    json.dumps(predict_compile(PROGRAM).to_dict())


def test_every_number_is_analytic() -> None:
    found = predict_compile(PROGRAM)
    assert {each.source for each in (*found.counts.values(), *found.tensor_ops.values(), found.lines)} == {
        "analytic"
    }


def test_other_languages_are_counted_and_say_so() -> None:
    text = 'for (int i = 0; i < n; i++) { if (a[i]) s += a[i]; } // for each\nchar *t = "while";'
    found = predict_compile(text, language="C")
    assert (found.counts["loops"].value, found.counts["branches"].value) == (1, 1)
    assert found.level is None
    assert "not parsed" in found.explain()


def test_tables_and_sentences() -> None:
    found = predict_compile(PROGRAM, opt_level="O3")
    assert "O3 *" in found.table()
    for word in (
        "Tensor operations: 1 exp",
        "At O3",
        "do not say" if "while" in PROGRAM else "depend on the machine",
    ):
        assert word in found.explain()
    assert "16 is assumed" in predict_compile("while x:\n    x = f(x)").explain()


NESTED = st.recursive(
    st.sampled_from(
        ["x = a * b", "a = a + 1", "y = x.relu().sum()", "f(a)", "z = [i for i in a]", "x[a] = 2 * 3"]
    ),
    lambda inner: st.builds(
        lambda head, body: (
            f"{head}\n" + "\n".join(f"    {line}" for part in body for line in part.splitlines())
        ),
        st.sampled_from(
            ["for i in range(4):", "while a:", "if a:", "def f(a):", "with a:", "try:", "class A:"]
        ),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=8,
)


@given(NESTED)
@settings(max_examples=150, deadline=None)
def test_any_program_has_falling_levels(text: str) -> None:
    text = text if "try:" not in text else f"import a\n{text.replace('try:', 'with b:')}"
    found = predict_compile(text)
    assert isinstance(found, SourcePrediction)
    shares = [each.operations.value or 0.0 for each in found.levels]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] >= 0
