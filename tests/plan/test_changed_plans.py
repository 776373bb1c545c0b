"""A saved plan with a changed value is refused, or its result is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelera import MatrixEngine
from accelera.errors import AcceleraError, StoreFormatError
from accelera.plan.saved_choices import require_exact_cover

RUNS: dict[str, tuple[str, Callable[..., Any]]] = {
    "matmul": ("plan", lambda engine, a, b, **options: engine.matmul(a, b, **options)),
    "gram": ("plan_gram", lambda engine, a, b, **options: engine.gram(a, **options)),
}
VALUES = [-8, -1, 0, 1, 3, 1 << 80, 0.5, float("nan"), True, None, "2", [], [[0, 0]], {}]


@pytest.mark.parametrize("kind", RUNS)
def test_changed_choices_never_give_a_wrong_result(tmp_path: Path, kind: str) -> None:
    numbers = np.random.default_rng(3)
    a, b = numbers.standard_normal((300, 200)), numbers.standard_normal((200, 250))
    engine, path = MatrixEngine("cpu", enable_progress=False), tmp_path / "plan.json"
    planner, run = RUNS[kind]
    operands = (a, b) if kind == "matmul" else (a,)
    getattr(engine, planner)(*operands, budget="64MiB").save(path)
    expected, saved = (a @ b if kind == "matmul" else a.T @ a), json.loads(path.read_text())
    for name in saved["spec"]:
        for value in VALUES:
            path.write_text(json.dumps({**saved, "spec": {**saved["spec"], name: value}}))
            try:
                result = run(engine, a, b, plan=path, budget="64MiB")
            except AcceleraError:
                continue
            np.testing.assert_allclose(np.asarray(result.numpy()), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "boxes",
    [
        [],
        [((0, 4), (0, 2))],
        [((0, 4), (0, 3)), ((0, 4), (2, 3))],
        [((0, 2), (0, 3)), ((2, 5), (0, 3))],
        [((-1, 4), (0, 3))],
        [((0, 2), (0, 3)), ((0, 2), (0, 3))],
        [((0, 4),)],
        [((4, 0), (0, 3))],
    ],
)
def test_blocks_that_do_not_cover_are_refused(boxes: Any) -> None:
    with pytest.raises(StoreFormatError, match="plan again"):
        require_exact_cover(boxes, (4, 3))


def test_blocks_that_cover_are_accepted() -> None:
    require_exact_cover([((0, 4), (0, 3))], (4, 3))
    require_exact_cover([((0, 1), (0, 2)), ((1, 4), (0, 1)), ((1, 4), (1, 2)), ((0, 4), (2, 3))], (4, 3))
