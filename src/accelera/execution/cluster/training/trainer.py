"""Data-parallel training by Ray Train: ranks that start again from a checkpoint when one of them dies."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, final

from accelera._distribution import install_command
from accelera._extras import require
from accelera.errors import ArgumentError, BackendMissingError, ClusterError
from accelera.execution.cluster.contract import last_line, pack_function, unpack
from accelera.execution.cluster.ray_connection import check_amounts, check_versions, import_ray, own_versions
from accelera.execution.cluster.training.checkpoint import (
    check_parts,
    check_ranks,
    check_shared,
    last_checkpoint,
    make_folder,
    position_of,
    restore,
)
from accelera.execution.cluster.training.rank import Rank
from accelera.execution.faults.classify import add_note


def failure_of(error: Any, name: str, max_failures: int) -> Exception:
    """Return what is to be raised for a ``TrainingFailedError`` of Ray Train.

    The exception of the function, if it raised one, with the rank and the traceback in a note. When one rank
    stops, PyTorch raises in those that wait for it: what says more comes first. Else ``ClusterError``.
    """
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    raised = {rank: each for rank, each in sorted(failures.items()) if not _is_from_package(each, "ray")}
    causes = {rank: each for rank, each in raised.items() if not _is_peer_failure(each)}
    if causes or (raised and len(raised) == len(failures)):
        rank, chosen = next(iter((causes or raised).items()))
        add_note(chosen, f"rank {rank}, and max_failures={max_failures}\n{error}")
        return chosen
    lost = [
        f"rank {rank}: {last_line(getattr(each, 'health_check_failure', each))}"
        for rank, each in sorted(failures.items())
    ]
    return ClusterError(
        f"[train] ranks were lost more often than max_failures={max_failures} allows:"
        f" {'; '.join(lost) or error}. To go on from the last checkpoint, train again with name={name!r} in"
        f" the same storage"
    )


def _is_from_package(error: Exception, package: str) -> bool:
    return type(error).__module__.partition(".")[0] == package


def _is_peer_failure(error: Exception) -> bool:
    """Return whether PyTorch may have raised ``error`` only because another rank is gone."""
    return type(error) is RuntimeError or type(error).__module__.startswith("torch.distributed")


@final
@dataclass(frozen=True, slots=True)
class TrainingRun:
    """Result of ``RayCluster.train``."""

    steps: int
    """Steps that are done."""
    notes: tuple[dict[str, list[float]], ...]
    """For every rank what it noted, by name, in the order of the steps."""
    folder: Path
    """The last checkpoint."""

    def restore(self, *, rank: int = 0, **parts: Any) -> None:
        """Give ``parts``, by the names they had in ``Rank.steps``, the state in which ``rank`` left them.

        Some of them are enough. Raises KeyError for a name that is not there, TypeError for a part that has
        no state, StoreError when the files cannot be read.
        """
        check_parts(parts)
        restore(self.folder, rank, parts, generators=False)


def run_rank(task: dict[str, Any]) -> None:
    """Run the function of ``task`` as one of the ranks; called by Ray Train."""
    ray = import_ray()
    folder = Path(task["folder"])
    who = f"rank {ray.train.get_context().get_world_rank()} on {ray.util.get_node_ip_address()}"
    check_versions(own_versions(ray), task["versions"], who)
    check_shared(folder, task["mark"], who)
    unpack(task["function"])(Rank(ray.train, folder, ray.train.torch.get_device()))


@final
@dataclass(frozen=True, slots=True)
class Ranks:
    """Number of ranks, and the resources that each reserves on its node."""

    count: int
    num_cpus: float = 1
    num_gpus: float = 0
    resources: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_amounts("train", self.resources, num_cpus=self.num_cpus, num_gpus=self.num_gpus)
        if not any(self.each.values()):
            raise ArgumentError(
                f"[train] num_cpus={self.num_cpus}, num_gpus={self.num_gpus}: a rank reserves something of"
                f" its node, or Ray could not tell which has room; give num_cpus=1, or a part of one"
            )

    @property
    def each(self) -> dict[str, float]:
        """Resources that one rank reserves, under Ray's names."""
        return {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}

    def check_fit(self, nodes: list[dict[str, Any]]) -> None:
        """Raise ``ClusterError`` when the cluster could not run them even if it did nothing else."""
        alive = [node["Resources"] for node in nodes if node["Alive"]]
        room = sum(_ranks_per_node(self.each, has) for has in alive)
        if room < self.count:
            asked = ", ".join(f"{amount:g} {name}" for name, amount in self.each.items() if amount)
            raise ClusterError(
                f"[train] ranks={self.count} of {asked} each: the cluster's {len(alive)} nodes have room for"
                f" {room}; ask for fewer ranks, or add nodes with `ray start --address=HOST:6379`"
            )


def import_ray_train() -> Any:
    """Return the module ``ray.train``.

    Raises
    ------
    BackendMissingError
        When it, or the part of it that is needed, is not there.
    """
    require("train", "ray", "torch")
    try:
        import ray.train
        import ray.train.torch
        from ray.train import CheckpointUploadMode  # noqa: F401
    except ImportError as error:
        raise BackendMissingError(
            f"[train] this Ray has no Ray Train of the kind that is needed, version 2 ({error}): "
            f"{install_command('ray')}, and do not set RAY_TRAIN_V2_ENABLED=0"
        ) from error
    return ray.train


def train(
    ray: Any,
    function: Callable[[Rank], None],
    ranks: Ranks,
    *,
    storage: str | os.PathLike[str],
    name: str | None,
    max_failures: int,
    keep: int,
) -> TrainingRun:
    """Run ``function`` in all ranks to its end; see ``RayCluster.train``."""
    if not callable(function):
        raise ArgumentError(f"[train] {function!r} is no function: give one that takes a Rank and trains")
    for what, number in (("ranks", ranks.count), ("max_failures", max_failures), ("keep", keep)):
        if not isinstance(number, (int, Integral)):
            raise ArgumentError(f"[train] {what}={number!r}: give a whole number")
    if ranks.count < 1 or max_failures < 0 or keep < 1:
        raise ArgumentError(
            f"[train] ranks={ranks.count}, max_failures={max_failures}, keep={keep}: at least one rank"
            f" and one checkpoint are needed, and failures are counted from 0"
        )
    ray_train = import_ray_train()
    packed = pack_function(function)
    ranks.check_fit(ray.nodes())
    folder, mark = make_folder(storage, _new_name() if name is None else name)
    before = last_checkpoint(folder)
    if before is not None:
        check_ranks(before, ranks.count)
    task = {"function": packed, "folder": str(folder), "mark": mark, "versions": own_versions(ray)}
    trainer = ray_train.torch.TorchTrainer(
        run_rank,
        train_loop_config=task,
        scaling_config=ray_train.ScalingConfig(
            num_workers=ranks.count, use_gpu=ranks.num_gpus > 0, resources_per_worker=ranks.each
        ),
        run_config=ray_train.RunConfig(
            name=folder.name,
            storage_path=str(folder.parent),
            failure_config=ray_train.FailureConfig(max_failures=max_failures),
            checkpoint_config=ray_train.CheckpointConfig(num_to_keep=keep),
        ),
    )
    try:
        with _sigint_handler_restored():
            result = trainer.fit()
    except ray_train.TrainingFailedError as error:
        raise failure_of(error, folder.name, max_failures) from error
    return _training_run(result.checkpoint, ranks.count)


def _new_name() -> str:
    return f"train-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def _training_run(checkpoint: Any, ranks: int) -> TrainingRun:
    if checkpoint is None:
        raise ArgumentError(
            "[train] the function made no steps; loop `for step in rank.steps(count, model=model)`"
        )
    folder = Path(checkpoint.path)
    positions = [position_of(folder, rank) for rank in range(ranks)]
    return TrainingRun(positions[0].step, tuple(position.notes for position in positions), folder)


def _ranks_per_node(each: Mapping[str, float], has: Mapping[str, float]) -> int:
    """Return how many ranks fit on a node."""
    return int(min(has.get(name, 0.0) // amount for name, amount in each.items() if amount))


@contextmanager
def _sigint_handler_restored() -> Iterator[None]:
    """Restore the handler of SIGINT afterwards: Ray Train leaves its own there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None:  # or it is not Python's to put back
            signal.signal(signal.SIGINT, before)
