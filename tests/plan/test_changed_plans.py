"""A saved plan with a changed value is refused, or its result is right."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelera import MatrixEngine
from accelera.errors import AcceleraError, StoreFormatError
from accelera.plan.saved_choices import require_exact_cover

Engine = MatrixEngine
VALUES = [-8, -1, 0, 1, 3, 1 << 80, 0.5, float("nan"), True, None, "2", [], [[0, 0]], {}]
NUMBERS = np.random.default_rng(3)
A, B = NUMBERS.standard_normal((300, 200)), NUMBERS.standard_normal((200, 250))


def scaled(engine: Engine) -> Any:
    return engine.array(A) * 2 + 1


def staged(engine: Engine) -> Any:
    return (engine.array(A) @ engine.array(B)).sum(axis=0) * 3


RUNS: dict[str, tuple[Callable[..., Any], Callable[..., Any], np.ndarray[Any, Any]]] = {
    "matmul": (
        lambda engine, **options: engine.plan(A, B, **options),
        lambda engine, **options: engine.matmul(A, B, **options),
        A @ B,
    ),
    "gram": (
        lambda engine, **options: engine.plan_gram(A, **options),
        lambda engine, **options: engine.gram(A, **options),
        A.T @ A,
    ),
    "expression": (
        lambda engine, **options: engine.plan_evaluate(scaled(engine), **options),
        lambda engine, **options: engine.evaluate(scaled(engine), **options),
        A * 2 + 1,
    ),
    "sum": (
        lambda engine, **options: engine.plan_evaluate(engine.array(A).sum(axis=1), **options),
        lambda engine, **options: engine.evaluate(engine.array(A).sum(axis=1), **options),
        A.sum(axis=1),
    ),
    "stages": (
        lambda engine, **options: engine.plan_evaluate(staged(engine), **options),
        lambda engine, **options: engine.evaluate(staged(engine), **options),
        (A @ B).sum(axis=0) * 3,
    ),
}


def places_of(document: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value in a JSON document but the document itself."""
    if place:
        yield place
    if isinstance(document, (dict, list)):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield from places_of(value, (*place, key))


def with_value(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a JSON document with another value at one place."""
    changed = json.loads(json.dumps(document))
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


@pytest.mark.parametrize("kind", RUNS)
def test_a_changed_value_never_gives_a_wrong_result(tmp_path: Path, kind: str) -> None:
    engine, path = MatrixEngine("cpu", enable_progress=False), tmp_path / "plan.json"
    planner, run, expected = RUNS[kind]
    planner(engine, budget="64MiB").save(path)
    saved = json.loads(path.read_text())
    assert np.allclose(np.asarray(run(engine, plan=path, budget="64MiB")), expected)
    for place in places_of(saved):
        for value in VALUES:
            path.write_text(json.dumps(with_value(saved, place, value)))
            try:
                result = run(engine, plan=path, budget="64MiB")
            except AcceleraError:
                continue
            np.testing.assert_allclose(
                np.asarray(result), expected, rtol=1e-9, atol=1e-9, err_msg=f"{place} = {value!r}"
            )


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
