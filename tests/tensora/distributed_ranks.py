"""Processes that are the ranks of a group, and the training that they and others are compared by."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

import accelera.tensora as ts
from accelera.tensora import nn, optim
from accelera.tensora.distributed import (
    DistributedDataParallel,
    ProcessGroup,
    ZeroRedundancyOptimizer,
    init_process_group,
)

SAMPLES = 32
"""In a batch of all ranks together."""
WIDTH = 12
PATIENCE_S = 120


class Ranks:
    """Processes that wait for functions, which all of them call with their group."""

    def __init__(self, count: int, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["numpy", "torch"])
        meeting = f"file://{folder / f'ranks-{count}'}"
        self._pipes = []
        self._processes = []
        for rank in range(count):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, meeting, rank, count), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def call(self, function: Callable[[ProcessGroup], Any]) -> list[Any]:
        """Return what the function returns in each rank, or raise what it raised in the first that failed."""
        packed = cloudpickle.dumps(function)
        for pipe in self._pipes:
            pipe.send_bytes(packed)
        found = []
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(PATIENCE_S), f"rank {rank} does not answer"
            found.append(cloudpickle.loads(pipe.recv_bytes()))
        for failed, value in found:
            if failed:
                raise value
        return [value for _, value in found]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            process.kill()


def _serve(pipe: Any, meeting: str, rank: int, count: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    ts.set_num_threads(1)
    group = init_process_group(init_method=meeting, rank=rank, world_size=count, timeout=PATIENCE_S)
    while True:
        try:
            function = cloudpickle.loads(pipe.recv_bytes())
        except EOFError:
            os._exit(0)
        try:
            answer = (False, function(group))
        except Exception as error:
            error.__notes__ = [traceback.format_exc()]  # type: ignore[attr-defined]
            answer = (True, error)
        pipe.send_bytes(cloudpickle.dumps(answer))


class Training(NamedTuple):
    """What all ways of training have in common."""

    dtype: str = "float64"
    optimizer: type[optim.Optimizer] = optim.AdamW
    options: dict[str, Any] = {"lr": 1e-2}  # noqa: RUF012 - nobody writes to it
    sharded: bool = False
    accumulate: int = 1
    bucket_bytes: int = 600


class Trained(NamedTuple):
    """What came of it."""

    losses: list[float]
    weights: list[Any]
    state: dict[str, Any]


def net(dtype: str = "float64", seed: int = 3) -> nn.Module:
    """Layers of several sizes, so that there are several buckets and uneven shares."""
    module = nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, 5), nn.GELU()
    )
    numbers = np.random.default_rng(seed)
    with ts.no_grad():
        for each in module.parameters():
            each[...] = ts.tensor(numbers.normal(size=tuple(each.shape)).astype(np.float32) * 0.3)
    return module.to(dtype=getattr(ts, dtype))


def batch(step: int, dtype: str = "float64") -> tuple[Any, Any]:
    """Inputs and targets of a step, for all ranks together."""
    numbers = np.random.default_rng(100 + step)
    inputs, targets = numbers.normal(size=(SAMPLES, WIDTH)), numbers.normal(size=(SAMPLES, 5))
    return ts.tensor(inputs.astype(dtype)), ts.tensor(targets.astype(dtype))


def pieces(values: Any, parts: int) -> list[Any]:
    size = SAMPLES // parts
    return [values[i * size : (i + 1) * size] for i in range(parts)]


def loss_of(module: Any, inputs: Any, targets: Any) -> Any:
    return ((module(inputs) - targets) ** 2).mean()


def train(
    group: ProcessGroup, how: Training, steps: Iterable[int], state: tuple[Any, Any] | None = None
) -> Trained:
    """Train as one of the ranks, from the beginning or from the weights and state of another training."""
    module = net(how.dtype, seed=3 + group.rank)  # the ranks begin with the weights of rank 0
    if state is not None:
        take(module, state[0])
    called = DistributedDataParallel(module, group, bucket_bytes=how.bucket_bytes)
    if how.sharded:
        optimizer: Any = ZeroRedundancyOptimizer(module.parameters(), how.optimizer, group, **how.options)
    else:
        optimizer = how.optimizer(module.parameters(), **how.options)
    if state is not None:
        optimizer.load_state_dict(state[1])
    losses = []
    for step in steps:
        inputs, targets = (pieces(each, group.size)[group.rank] for each in batch(step, how.dtype))
        losses.append(one_step(called, optimizer, inputs, targets, how.accumulate))
    whole = optimizer.state_dict()
    if how.sharded:
        largest = max(each.nbytes for each in module.parameters())
        share = sum(each.nbytes for each in optimizer.state)
        assert share <= sum(each.nbytes for each in module.parameters()) / group.size + largest
    return Trained(losses, weights_of(module), arrays(whole))


def one_step(called: Any, optimizer: Any, inputs: Any, targets: Any, accumulate: int) -> float:
    optimizer.zero_grad()
    size = len(inputs) // accumulate
    total = 0.0
    for i in range(accumulate - 1):
        with called.no_sync():
            loss = loss_of(called, inputs[i * size :][:size], targets[i * size :][:size]) / accumulate
            loss.backward()
        total += float(loss)
    loss = loss_of(called, inputs[-size:], targets[-size:]) / accumulate
    loss.backward()
    optimizer.step()
    return total + float(loss)


def alone(how: Training, steps: Iterable[int], parts: int = 1) -> Trained:
    """Train without any group; ``parts``: gradients of so many parts of each batch are added up."""
    module = net(how.dtype)
    optimizer = how.optimizer(module.parameters(), **how.options)
    losses = []
    for step in steps:
        optimizer.zero_grad()
        values = [pieces(each, parts) for each in batch(step, how.dtype)]
        total = [loss_of(module, *each) / parts for each in zip(*values, strict=True)]
        for loss in total:
            loss.backward()
        optimizer.step()
        losses.append(sum(float(loss) for loss in total))
    return Trained(losses, weights_of(module), arrays(optimizer.state_dict()))


def weights_of(module: Any) -> list[Any]:
    return [each.detach().numpy().copy() for each in module.parameters()]


def take(module: Any, weights: list[Any]) -> None:
    for each, value in zip(module.parameters(), weights, strict=True):
        each.detach()[...] = ts.tensor(value)


def arrays(state: Any) -> Any:
    """A state with arrays for tensors, as processes send it to one another."""
    if isinstance(state, ts.Tensor):
        return state.detach().numpy().copy()
    if isinstance(state, dict):
        return {key: arrays(each) for key, each in state.items()}
    return [arrays(each) for each in state] if isinstance(state, list) else state


def tensors(state: Any) -> Any:
    """Inverse of `arrays`."""
    if isinstance(state, np.ndarray):
        return ts.tensor(state)
    if isinstance(state, dict):
        return {key: tensors(each) for key, each in state.items()}
    return [tensors(each) for each in state] if isinstance(state, list) else state


def same_bits(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_bits, one, other))
    return bool(one == other)
