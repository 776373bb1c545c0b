"""Public operations in which the N-th passage through a gate of the system fails.

Each function builds a `Case`: the operation to attempt repeatedly, the inputs that it must not change, and
the way to recover from a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import accelera.tensora as ts
from accelera.engine import MatrixEngine
from accelera.tensora import nn, serialization
from tests.crash.scenarios import OPERANDS, SCENARIOS, smallest_budget, write_operands

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One operation on inputs that exist."""

    attempt: Callable[[], Any]
    """Run the operation; returns arrays to compare with those of a run without failures."""
    state: Callable[[], Any] = tuple
    """Return arrays that neither a failed nor a successful attempt changes."""
    recover: Callable[[], Any] | None = None
    """Run the operation after a failure; by default as `attempt`."""
    folder: Path | None = None
    """Folder in which a failed attempt may leave only the files in `allowed_files`."""
    allowed_files: tuple[str, ...] = ()


CASES: dict[str, Callable[[Path], Case]] = {}


def case(build: Callable[[Path], Case]) -> Callable[[Path], Case]:
    """Enter a case under the name of the function that builds it."""
    CASES[build.__name__] = build
    return build


def numbers(*shape: int, seed: int = 0) -> Array:
    """Return float32 numbers that are the same in every run."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def arrays(*tensors: ts.Tensor) -> tuple[Array, ...]:
    """Return copies of the elements of tensors."""
    return tuple(np.array(tensor.detach().numpy()) for tensor in tensors)


# --- Tensora


@case
def elementwise_chain(folder: Path) -> Case:
    x, y = ts.tensor(numbers(300, 400)), ts.tensor(numbers(400, seed=1))
    return Case(lambda: arrays(((x * y + 1).exp() / (x.abs() + 2)).sum(1)), lambda: arrays(x, y))


@case
def in_place_updates(folder: Path) -> Case:
    source = ts.tensor(numbers(200, 300))

    def attempt() -> Any:
        x = source.clone()
        x += 1
        x[::2, 1::3] = 5
        x *= x.T[:200, :200].sum(0, keepdims=True)[:, :1]
        return arrays(x)

    return Case(attempt, lambda: arrays(source))


@case
def indexing_and_sorting(folder: Path) -> Case:
    x = ts.tensor(numbers(100, 200))
    index = ts.tensor(np.random.default_rng(3).integers(0, 100, 500))

    def attempt() -> Any:
        values, places = ts.sort(x, axis=1), ts.argsort(x, axis=0)
        return arrays(x[index], values[:, :5], places, x[x > 0], ts.topk(x, 7)[0])

    return Case(attempt, lambda: arrays(x, index))


@case
def decompositions(folder: Path) -> Case:
    x = ts.tensor(numbers(60, 60) + 9 * np.eye(60, dtype=np.float32))

    def attempt() -> Any:
        q, r = ts.linalg.qr(x)
        return arrays(q @ r, ts.linalg.inv(x), ts.linalg.svdvals(x), ts.linalg.solve(x, x[:, :3]))

    return Case(attempt, lambda: arrays(x))


@case
def gradients(folder: Path) -> Case:
    ts.random.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 80), nn.LayerNorm(80), nn.GELU(), nn.Linear(80, 10))
    x, target = ts.tensor(numbers(64, 50)), ts.tensor(np.arange(64) % 10)
    weights = list(model.parameters())

    def attempt() -> Any:
        loss = nn.CrossEntropyLoss()(model(x), target)
        return arrays(loss, *ts.autograd.grad(loss, weights))

    return Case(attempt, lambda: arrays(x, *weights))


@case
def convolutions(folder: Path) -> Case:
    ts.random.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    model.eval()
    x = ts.tensor(numbers(4, 3, 24, 24))
    weights = list(model.parameters())

    def attempt() -> Any:
        y = model(x)
        return arrays(y, *ts.autograd.grad((y * y).sum(), weights))

    return Case(attempt, lambda: arrays(x, *weights))


@case
def budgeted_step(folder: Path) -> Case:
    ts.random.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(96, 96), nn.Tanh())])
    x = ts.tensor(numbers(512, 96))
    weights = list(model.parameters())

    def attempt() -> Any:
        for weight in weights:
            weight.grad = None
        with ts.budget("2200kB", spill_dir=str(folder)):  # the first step of one, which has no plan, spills
            loss = (model(x) ** 2).mean()
            loss.backward()
        return arrays(loss, *[weight.grad for weight in weights])

    return Case(attempt, lambda: arrays(x, *weights), folder=folder)


@case
def captured_function(folder: Path) -> Case:
    x = ts.tensor(numbers(100, 120))

    def attempt() -> Any:
        function = ts.jit(lambda a: (a @ a.T).relu().sum(0) * 2 + a.sum(1))
        return arrays(function(x), function(x * 2))

    return Case(attempt, lambda: arrays(x))


@case
def checkpoint(folder: Path) -> Case:
    path = folder / "model.safetensors"
    tensors = {"w": ts.tensor(numbers(80, 90)), "b": ts.tensor(numbers(90, seed=2))}
    serialization.save_file(tensors, path)

    def attempt() -> Any:
        serialization.save_file(tensors, path)
        loaded = serialization.load_file(path)
        return arrays(loaded["w"], loaded["b"])

    def state() -> Any:
        loaded = serialization.load_file(path)
        return arrays(loaded["w"], loaded["b"], *tensors.values())

    return Case(attempt, state, folder=folder, allowed_files=("model.safetensors",))


# --- the engine


@case
def product_in_memory(folder: Path) -> Case:
    a, b = numbers(900, 700), numbers(700, 800, seed=1)

    def attempt() -> Any:
        return (np.asarray(MatrixEngine("cpu", enable_progress=False).matmul(a, b, budget="64MiB")),)

    return Case(attempt, lambda: (a.copy(), b.copy()))


def _into_file(name: str) -> Callable[[Path], Case]:
    """Return the builder of the case of an operation that writes a file."""
    scenario = SCENARIOS[name]

    def build(folder: Path) -> Case:
        write_operands(folder)
        budget = smallest_budget(scenario)

        def attempt(*, resume: bool = False) -> Any:
            engine = MatrixEngine("cpu", enable_progress=False)
            scenario.run(engine, folder, {"out": scenario.target(folder), "budget": budget, "resume": resume})
            return (scenario.written(folder),)

        def state() -> Any:
            return tuple(np.load(folder / operand) for operand in OPERANDS)

        # A failed run leaves its journal and partial result for the next one, which resumes from them; a run
        # whose last step fails also leaves the file that it replaced.
        ends = ("", ".journal", ".partial", ".replaced")
        allowed_files = (*OPERANDS, *(f"{scenario.out}{end}" for end in ends))
        return Case(attempt, state, lambda: attempt(resume=True), folder, allowed_files)

    return build


CASES.update({f"{n.replace(' ', '_')}_file": _into_file(n) for n in SCENARIOS if "replaced" not in n})


# --- strategies, traces


@case
def batch_on_threads(folder: Path) -> Case:
    from accelera.execution import StrategyManager, ThreadsExecutor

    values = [numbers(60, 60, seed=seed) for seed in range(12)]

    def attempt() -> Any:
        manager = StrategyManager.cpu_only(ThreadsExecutor(workers=3))
        return tuple(manager.execute(values, lambda each: each @ each).outputs)

    return Case(attempt, lambda: tuple(value.copy() for value in values))


@case
def traces(folder: Path) -> Case:
    from accelera.simulator import simulate
    from accelera.trace import Trace, read_trace, write_trace

    path = folder / "trace.json"
    order = np.random.default_rng(1).integers(0, 100, 2000)
    trace = Trace.from_arrays(order, np.full(2000, 1000))
    write_trace(trace, path)

    def attempt() -> Any:
        write_trace(trace, path)
        report = simulate(read_trace(path), "20kB", "lru")
        return (np.array([report.moved_bytes]),)

    def state() -> Any:
        return (np.array([len(read_trace(path))]),)

    return Case(attempt, state, folder=folder, allowed_files=("trace.json",))
