"""Executors under one interface: ``map(function, tasks) -> list``; those whose library is absent are told."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.util
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from accelera.execution import ProcessesExecutor, StrategyManager
from accelera.execution.executors import threads as threads_module

WORKERS = 2
Map = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


@contextlib.contextmanager
def serial() -> Iterator[Map]:
    """A loop."""
    yield lambda function, tasks: [function(task) for task in tasks]


@contextlib.contextmanager
def accelera() -> Iterator[Map]:
    """``StrategyManager`` with its default executor."""
    manager = StrategyManager.cpu_only()
    yield lambda function, tasks: manager.execute(tasks, function).outputs


@contextlib.contextmanager
def accelera_uncapped() -> Iterator[Map]:
    """``StrategyManager`` with its default executor, each thread of which may start all of BLAS's threads."""
    manager = StrategyManager.cpu_only()

    def run(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        free = contextlib.nullcontext()
        with mock.patch.object(threads_module, "one_blas_thread_each", return_value=free):
            return manager.execute(tasks, function).outputs

    yield run


@contextlib.contextmanager
def accelera_processes() -> Iterator[Map]:
    """``StrategyManager`` on processes."""
    with ProcessesExecutor(WORKERS) as executor:
        manager = StrategyManager.cpu_only(executor)
        yield lambda function, tasks: manager.execute(tasks, function).outputs


@contextlib.contextmanager
def threads() -> Iterator[Map]:
    """``ThreadPoolExecutor.map``."""
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        yield lambda function, tasks: list(pool.map(function, tasks))


@contextlib.contextmanager
def threads_chunked() -> Iterator[Map]:
    """``ThreadPoolExecutor`` given 64 pieces by hand."""

    def run(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        size = max(1, len(tasks) // 64)
        pieces = [tasks[start : start + size] for start in range(0, len(tasks), size)]
        done = pool.map(lambda piece: [function(task) for task in piece], pieces)
        return [output for piece in done for output in piece]

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        yield run


@contextlib.contextmanager
def processes(chunksize: int = 1, method: str = "spawn") -> Iterator[Map]:
    """``ProcessPoolExecutor.map``, its workers spawned or begun by another ``method``."""
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(WORKERS, mp_context=context) as pool:
        yield lambda function, tasks: list(pool.map(function, tasks, chunksize=chunksize))


@contextlib.contextmanager
def processes_forked() -> Iterator[Map]:
    """``ProcessPoolExecutor.map``, forked at once, before other threads run."""
    with processes(method="fork") as run:
        run(abs, range(WORKERS))
        yield run


@contextlib.contextmanager
def processes_chunked() -> Iterator[Map]:
    """``ProcessPoolExecutor.map`` with ``chunksize=64``, the best of powers of two for tiny tasks."""
    with processes(64) as run:
        yield run


@contextlib.contextmanager
def loky() -> Iterator[Map]:
    """The executor beneath joblib."""
    import loky

    executor = loky.get_reusable_executor(WORKERS)
    yield lambda function, tasks: list(executor.map(function, tasks))
    executor.shutdown()


@contextlib.contextmanager
def joblib() -> Iterator[Map]:
    """``joblib.Parallel`` with batches of its own choice."""
    from joblib import Parallel, delayed

    with Parallel(WORKERS) as pool:
        yield lambda function, tasks: list(pool(delayed(function)(task) for task in tasks))


@contextlib.contextmanager
def dask() -> Iterator[Map]:
    """A local cluster of Dask."""
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        yield lambda function, tasks: client.gather(client.map(function, tasks, pure=False))


@contextlib.contextmanager
def ray() -> Iterator[Map]:
    """Tasks of a local Ray."""
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, configure_logging=False, log_to_driver=False)
    remotes: dict[Any, Any] = {}

    def run(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        remote = remotes.setdefault(function, ray.remote(function))
        done: list[Any] = ray.get([remote.remote(task) for task in tasks])
        return done

    try:
        yield run
    finally:
        ray.shutdown()


CONTENDERS = {
    "serial loop": serial,
    "ProcessPoolExecutor, forked": processes_forked,
    "accelera": accelera,
    "accelera, BLAS threads as they are": accelera_uncapped,
    "accelera processes": accelera_processes,
    "ThreadPoolExecutor": threads,
    "ThreadPoolExecutor, 64 pieces": threads_chunked,
    "ProcessPoolExecutor": processes,
    "ProcessPoolExecutor, chunksize 64": processes_chunked,
    "loky": loky,
    "joblib": joblib,
    "Dask": dask,
    "Ray": ray,
}
_NEEDS = {"loky": "loky", "joblib": "joblib", "Dask": "distributed", "Ray": "ray"}


def absent(name: str) -> bool:
    """Return whether the library of a contender is not installed."""
    return name in _NEEDS and importlib.util.find_spec(_NEEDS[name]) is None
