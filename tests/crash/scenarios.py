"""Small runs that write files, each done again and again with a kill after every change of the disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from accelera.engine import MatrixEngine
from accelera.errors import BudgetExceededError
from accelera.stores import open_store

ROWS, DEPTH, COLUMNS = 600, 24, 300
"""Large enough for several blocks in the smallest budget."""


@dataclass(frozen=True)
class Scenario:
    """One operation into one kind of file."""

    out: str
    run: Callable[[MatrixEngine, Path, Any], Any]
    """Given the engine, the folder and the keywords ``out``, ``budget`` and ``resume``."""
    verb: tuple[str, ...] | None = None
    """The same on the command line, without ``--out``."""
    positional_out: bool = False
    replaces: bool = False
    """Whether an older result lies where the new one goes."""

    def target(self, folder: Path) -> Path:
        return folder / self.out

    def options(self, folder: Path) -> dict[str, Any]:
        return {"out": self.target(folder), "budget": smallest_budget(self)}

    def command(self, folder: Path) -> list[str] | None:
        """Return the command line that does the same, ``--resume`` included."""
        if self.verb is None:
            return None
        verb, *operands = self.verb
        out = [str(self.target(folder))] if self.positional_out else ["--out", str(self.target(folder))]
        budget = ["--budget", str(smallest_budget(self))]
        return [verb, *(str(folder / each) for each in operands), *out, *budget, "--resume", "--quiet"]

    def written(self, folder: Path) -> np.ndarray[Any, Any]:
        """Return what lies in the result's file."""
        raw: dict[str, Any] = (
            {"shape": (ROWS, COLUMNS), "dtype": "float32"} if self.out.endswith(".bin") else {}
        )
        with open_store(self.target(folder), **raw) as store:
            return store.to_numpy()

    def older(self) -> np.ndarray[Any, Any]:
        """Return the older result."""
        return np.arange(36, dtype=np.float32).reshape(6, 6)


def _product(engine: MatrixEngine, folder: Path, options: Any) -> Any:
    return engine.matmul(folder / "a.npy", folder / "b.npy", **options)


def _gram(engine: MatrixEngine, folder: Path, options: Any) -> Any:
    return engine.gram(folder / "g.npy", **options)


def _expression(engine: MatrixEngine, folder: Path, options: Any) -> Any:
    x = engine.array(folder / "w.npy")
    return engine.evaluate(x * 2 + x, **options)


def _reduction(engine: MatrixEngine, folder: Path, options: Any) -> Any:
    return engine.sum(folder / "w.npy", axis=1, **options)


def _stages(engine: MatrixEngine, folder: Path, options: Any) -> Any:
    product = engine.array(folder / "a.npy") @ engine.array(folder / "b.npy")
    return engine.evaluate(product - product.mean(axis=0), **options)


def _compressed(engine: MatrixEngine, folder: Path, options: Any) -> Any:
    return _stages(engine, folder, {**options, "chunks": (200, 150), "codec": "zstd"})


def _transpose(engine: MatrixEngine, folder: Path, options: Any) -> Any:
    return engine.transpose(folder / "w.npy", **options)


def _copy(engine: MatrixEngine, folder: Path, options: Any) -> Any:
    return engine.copy(folder / "w.npy", **options)


PRODUCT = ("matmul", "a.npy", "b.npy")

SCENARIOS = {
    "npy": Scenario("c.npy", _product, PRODUCT),
    "npy replaced": Scenario("c.npy", _product, PRODUCT, replaces=True),
    "raw": Scenario("c.bin", _product, PRODUCT),
    "safetensors replaced": Scenario("c.safetensors", _product, PRODUCT, replaces=True),
    "zarr": Scenario("c.zarr", _product, PRODUCT),
    "zarr replaced": Scenario("c.zarr", _product, PRODUCT, replaces=True),
    "gram": Scenario("c.npy", _gram, ("gram", "g.npy")),
    "expression": Scenario("c.npy", _expression),
    "expression in zarr": Scenario("c.zarr", _expression, replaces=True),
    "hdf5 replaced": Scenario("c.h5", _product, PRODUCT, replaces=True),
    "stages": Scenario("c.npy", _stages, replaces=True),
    "stages in compressed zarr": Scenario("c.zarr", _compressed, replaces=True),
    "reduction": Scenario("c.npy", _reduction),
    "transpose": Scenario("c.npy", _transpose, ("transpose", "w.npy"), positional_out=True),
    "copy to zarr": Scenario("c.zarr", _copy, ("copy", "w.npy"), positional_out=True, replaces=True),
}

OPERANDS = {"a.npy": (ROWS, DEPTH), "b.npy": (DEPTH, COLUMNS), "w.npy": (ROWS, 60), "g.npy": (20, 100)}


def write_operands(folder: Path) -> None:
    """Write the operands of all scenarios."""
    for seed, (name, shape) in enumerate(OPERANDS.items()):
        np.save(folder / name, np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


@lru_cache
def smallest_budget(scenario: Scenario) -> int:
    """Return the least budget of a scenario, in which it has several blocks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_operands(folder)
        try:
            scenario.run(MatrixEngine("cpu"), folder, {"out": scenario.target(folder), "budget": 1})
        except BudgetExceededError as refused:
            return int(refused.needed_bytes)
    raise AssertionError("a budget of one byte is refused")


def warm(scenario: Scenario) -> None:
    """Make the scenario's plan once, so that forks find it in the planner's memory."""
    budget = smallest_budget(scenario)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_operands(folder)
        if scenario.run is _product:
            out = scenario.target(folder)
            MatrixEngine("cpu").plan(folder / "a.npy", folder / "b.npy", out=out, budget=budget)
