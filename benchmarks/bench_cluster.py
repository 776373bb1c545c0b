"""What handing tasks to a cluster costs beside Ray written by hand, and a product beside tiles by hand.

    python -m benchmarks cluster
    python -m benchmarks cluster --cases product --rounds 5

Both run on one local cluster of two nodes, each with a core of its own, in turn. Tasks by hand come in the
best of some chunk sizes. Tiles by hand are loaded by their tasks from the same files, a bounded number of
them under way, in the best of several ways of multiplying one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import cases
from benchmarks.cluster_tiles import BY_HAND, TILE, Tiles, by_hand
from benchmarks.goals import Goal, judged

CHUNKS = (10, 100, 250, 1000, 2500, 5000)
NODES = 2
EDGE, TILES = 6144, 4
"""Length of the matrices, and tiles along each: as many as the engine makes."""
NODE_BUDGET = 128 << 20
"""Memory budget of a block on its node; a tile by hand takes 81 to 160 MiB with its mapped pages."""
PRODUCTS = 5
"""The most rounds of products."""
RUNS = 2
"""Of each in a turn, the better of which counts: who comes first after another finds cold caches, and Ray
begins processes for who runs and ends those of who ran before, up to 0.4 s of each node's core."""

Task = Callable[[int], Any]
Way = Callable[[], Any]


def tiny(number: int) -> int:
    return number + 1


def ten_ms(number: int) -> int:
    """Sleep, so that the figures are those of handing out, whatever else the machine does."""
    time.sleep(0.01)
    return number


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save the seconds and their ratios."""
    parser = cases.parser("cluster", ("tiny", "ten_ms", "product"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", default=".", help="where the files are written; a disk, not tmpfs")
    parser.add_argument("--edge", type=int, default=EDGE, help="of the matrices that are multiplied")
    options = parser.parse_args(arguments)
    rounds, share, edge = (2, 10, 512) if options.small else (options.rounds, 1, options.edge)
    with mock.patch.dict(os.environ, {"RAY_AUTH_MODE": "disabled"}), _cluster():
        return cases.run(
            options,
            {
                "tiny": lambda: _compared("10,000 tiny tasks", tiny, range(10_000 // share), rounds),
                "ten_ms": lambda: _compared("200 x 10 ms", ten_ms, range(200 // share), rounds),
                "product": lambda: _product(edge, min(rounds, PRODUCTS), options.folder),
            },
        )


@contextlib.contextmanager
def _cluster() -> Iterator[None]:
    """Start two nodes, of which the first is the head, each on a core of its own."""
    import ray
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "resources": {TILE: 1}}
    cores = sorted(os.sched_getaffinity(0))
    cluster = Cluster()
    try:
        for number in range(NODES):
            with _pinned_to(cores[number % len(cores)]):
                cluster.add_node(**node, **({} if number else {"include_dashboard": False}))
        ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextlib.contextmanager
def _pinned_to(core: int) -> Iterator[None]:
    """Let processes that are begun meanwhile have one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _compared(what: str, task: Task, tasks: Sequence[int], rounds: int) -> dict[str, Any]:
    """Compare one batch with the same in chunks by hand."""
    from accelera.execution import RayExecutor, StrategyManager

    def checked(outputs: list[Any]) -> None:
        assert outputs == [task(number) for number in tasks[:1]] + outputs[1:]
        assert len(outputs) == len(tasks)

    with RayExecutor() as executor:
        _await_nodes(executor)
        manager = StrategyManager(cpu=executor)
        ways: dict[str, Way] = {"accelera": lambda: checked(manager.execute(tasks, task).outputs)}
        for size in CHUNKS:
            if size * NODES <= len(tasks):
                run = _ray_chunks(size, tasks, task)
                ways[f"chunks of {size}"] = lambda run=run: checked(run())  # type: ignore[misc]
        return _judged_in_turn(f"{what}: accelera / Ray by hand in chunks", ways, rounds, 1.10)


def _product(edge: int, rounds: int, parent: str) -> dict[str, Any]:
    """Compare a product from files to a file with the same in tiles by hand."""
    from accelera import MatrixEngine
    from accelera.execution import RayExecutor

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=parent) as name, RayExecutor(num_cpus=1) as executor:
        _await_nodes(executor)
        folder = Path(name).resolve()
        a, b = (rng.standard_normal((edge, edge), np.float32) for _ in "AB")
        np.save(folder / "A.npy", a)
        np.save(folder / "B.npy", b)
        expected = a[:32] @ b
        engine, out = MatrixEngine("cpu", enable_progress=False), folder / "C.npy"

        def ours() -> None:
            paths = folder / "A.npy", folder / "B.npy"
            engine.matmul(*paths, out=out, cluster=executor, node_budget=NODE_BUDGET)

        def right() -> None:
            assert np.allclose(np.load(out, mmap_mode="r")[:32], expected, rtol=1e-3, atol=1e-2)

        tiles = Tiles(str(folder), edge, TILES)
        ways: dict[str, Way] = {"accelera": ours}
        ways |= {how: functools.partial(by_hand, tiles, how, NODES) for how in BY_HAND}
        what = f"product of {edge} squared: accelera / Ray by hand in tiles"
        return _judged_in_turn(
            what, ways, rounds, 1.05, before=lambda: out.unlink(missing_ok=True), after=right
        )


def _await_nodes(executor: Any) -> None:
    while len(executor.cluster.nodes()) < NODES:
        time.sleep(0.05)


def _judged_in_turn(
    what: str,
    ways: Mapping[str, Way],
    rounds: int,
    bound: float,
    *,
    before: Way = lambda: None,
    after: Way = lambda: None,
) -> dict[str, Any]:
    """Return medians of rounds in which everybody has a turn; the first round is for warming up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            took_s = []
            for _ in range(RUNS):
                before()
                began_s = time.perf_counter()
                way()
                took_s.append(time.perf_counter() - began_s)
                after()
            seconds[name].append(min(took_s))
    medians = {name: statistics.median(each[1:]) for name, each in seconds.items()}
    for name, each in medians.items():
        print(f"{name:44}{each:10.4f} s")
    best = min(value for name, value in medians.items() if name != "accelera")
    goals = judged([Goal("G13", what, medians["accelera"] / best, bound)])
    return {"seconds": medians, "rounds_s": seconds, "goals": goals}


def _ray_chunks(size: int, tasks: Sequence[int], task: Task) -> Way:
    """Return what a careful user of Ray writes: a remote function of a chunk, all outputs fetched at once."""
    import ray

    @ray.remote
    def run(task: Task, chunk: Sequence[int]) -> list[Any]:
        return [task(each) for each in chunk]

    def way() -> list[Any]:
        chunks = [list(tasks[start : start + size]) for start in range(0, len(tasks), size)]
        return [
            output for found in ray.get([run.remote(task, chunk) for chunk in chunks]) for output in found
        ]

    return way


if __name__ == "__main__":
    main(sys.argv[1:])
