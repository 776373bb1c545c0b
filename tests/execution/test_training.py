"""Training by the ranks of a real Ray cluster goes on with the same bits when one of them is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import accelera
from accelera.errors import ClusterError, StoreError
from accelera.execution import RayCluster
from accelera.execution._internal import Rank, TrainingRun
from accelera.execution.cluster.training.checkpoint import Position, folder_of, save
from tests.execution.ray_nodes import two_nodes

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")  # Ray warns of what Ray does

STEPS, EVERY, KILLED_AT, RAISED_AT = 12, 5, 8, 11
WIDTH, RANKS = 160, 2
KINDS = ("plain", "offloaded", "wrapped")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes of one processor, so that ranks are on different ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
        with two_nodes() as local, RayCluster(local.address) as connected:
            yield connected


def net() -> nn.Sequential:
    """Weights of 100 KiB, dropout, which draws, and running means, which are each rank's own."""
    torch.manual_seed(5)
    first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
    return nn.Sequential(
        first, nn.BatchNorm1d(WIDTH), nn.Dropout(0.2), nn.ReLU(), nn.Linear(WIDTH, WIDTH), last
    )


def gradients(model: nn.Module, inputs: torch.Tensor) -> float:
    model.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    return loss.item()


def trains(faults: Path) -> Callable[[Rank], None]:
    """Train a model, the same one offloaded, and that wrapped by PyTorch, each on the same inputs.

    Rank 1 is killed in one step and rank 0 raises in another, each once, which the folder ``faults`` says.
    """

    def train(rank: Rank) -> None:
        models = {name: net() for name in KINDS}
        called = {**models, "wrapped": DistributedDataParallel(accelera.offload(models["wrapped"], "64MiB"))}
        accelera.offload(models["offloaded"], "64MiB")
        optimizers = {f"{name} optimizer": torch.optim.AdamW(m.parameters()) for name, m in models.items()}
        data = torch.Generator().manual_seed(rank.number)
        torch.manual_seed(100 + rank.number)
        for step in rank.steps(STEPS, every=EVERY, data=data, **models, **optimizers):
            if (rank.number, step) == (1, KILLED_AT) and once(faults / "killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            if (rank.number, step) == (0, RAISED_AT) and once(faults / "raised"):
                raise ZeroDivisionError("in rank 0")
            inputs = torch.randn(8, WIDTH, generator=data)
            drawn = torch.get_rng_state()
            for name, model in called.items():
                torch.set_rng_state(drawn)
                rank.note(**{name: gradients(model, inputs)})
                if model is models[name]:
                    rank.average_gradients(model)
                optimizers[f"{name} optimizer"].step()

    return train


def once(mark: Path) -> bool:
    """Whether this is the first call for ``mark``."""
    first = not mark.exists()
    mark.touch()
    return first


def by_hand(broadcasts: bool) -> tuple[list[nn.Sequential], list[torch.optim.AdamW], list[list[float]]]:
    """Train as ``trains`` does, both ranks in this process, with nothing but PyTorch.

    Running means begin each step as rank 0 has them if it ``broadcasts``, as PyTorch's wrapper does.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    models = [net() for _ in range(RANKS)]
    optimizers = [torch.optim.AdamW(model.parameters()) for model in models]
    data = [torch.Generator().manual_seed(number) for number in range(RANKS)]
    drawn = [torch.Generator().manual_seed(100 + number).get_state() for number in range(RANKS)]
    losses: list[list[float]] = [[] for _ in range(RANKS)]
    for _ in range(STEPS):
        if broadcasts:
            for each in zip(*(model.buffers() for model in models), strict=True):
                for buffer in each[1:]:
                    buffer.copy_(each[0])
        for number, model in enumerate(models):
            torch.set_rng_state(drawn[number])
            losses[number].append(gradients(model, torch.randn(8, WIDTH, generator=data[number])))
            drawn[number] = torch.get_rng_state()
        average(models)
        for optimizer in optimizers:
            optimizer.step()
    torch.set_num_threads(threads)
    return models, optimizers, losses


def average(models: list[nn.Sequential]) -> None:
    for each in zip(*(model.parameters() for model in models), strict=True):
        mean = sum(parameter.grad for parameter in each if parameter.grad is not None) / len(models)
        for parameter in each:
            parameter.grad = torch.as_tensor(mean).clone()


def state(run: TrainingRun, rank: int) -> dict[str, dict[str, Any]]:
    """Return the state of the models, buffers of ``rank``, and of the optimizers."""
    parts: dict[str, Any] = {name: net() for name in KINDS}
    parts |= {f"{name} optimizer": torch.optim.AdamW(model.parameters()) for name, model in parts.items()}
    run.restore(rank=rank, **parts)
    return {name: part.state_dict() for name, part in parts.items()}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@pytest.mark.timeout(600)  # three times processes are started that load torch
def test_ranks_that_are_killed_or_raise_go_on_with_the_same_bits(cluster: RayCluster, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="in rank 0") as raised:
        cluster.train(trains(tmp_path), ranks=RANKS, storage=tmp_path, name="disturbed", max_failures=1)
    assert (tmp_path / "killed").exists()
    assert any(
        "rank 0" in note and "max_failures=1" in note for note in getattr(raised.value, "__notes__", [])
    )
    disturbed = cluster.train(trains(tmp_path), ranks=RANKS, storage=tmp_path, name="disturbed")
    kept = sorted(each.name for each in (tmp_path / "disturbed").glob("step-*"))
    assert kept == ["step-000000010", "step-000000012"]

    ranks = [state(disturbed, rank) for rank in range(RANKS)]
    for name in KINDS:
        models, optimizers, losses = by_hand(broadcasts=name == "wrapped")
        assert [each[name] for each in disturbed.notes] == losses
        for trained, model, optimizer in zip(ranks, models, optimizers, strict=True):
            assert same(trained[name], dict(model.state_dict()))
            assert same(trained[f"{name} optimizer"], optimizer.state_dict())
    assert all(each.keys() == set(KINDS) for each in disturbed.notes)


def test_what_could_not_be_trained_is_refused_at_once(cluster: RayCluster, tmp_path: Path) -> None:
    def train(rank: Rank) -> None:
        """Make no steps."""

    with pytest.raises(ClusterError, match=r"ranks=3 of 1 CPU each: the cluster's 2 nodes have room for 2"):
        cluster.train(train, ranks=3, storage=tmp_path)
    with pytest.raises(ClusterError, match=r"of 1 CPU, 1 GPU each: .* room for 0"):
        cluster.train(train, num_gpus=1, storage=tmp_path)
    with pytest.raises(ValueError, match="ranks=0"):
        cluster.train(train, ranks=0, storage=tmp_path)
    with pytest.raises(TypeError, match=r"\[train\] 5 is no function: give one that takes a Rank"):
        cluster.train(5, storage=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"ranks='x': give a whole number"):
        cluster.train(train, ranks="x", storage=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name='': give the name of one folder"):
        cluster.train(train, storage=tmp_path, name="")
    with pytest.raises(StoreError, match=r"there is no folder .*/nodir, and only the last one is made"):
        cluster.train(train, storage=tmp_path / "nodir" / "x")
    assert not (tmp_path / "nodir").exists()
    save(folder_of(tmp_path / "old", 4), 0, Position(step=4, ranks=1), {})
    with pytest.raises(ValueError, match=r"is of 1 ranks, and now there are 2: .* or another name="):
        cluster.train(train, storage=tmp_path, name="old")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        cluster.train(train, storage=tmp_path / "file")


def test_a_closed_connection_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="HOST:1"))
    closed = RayCluster("HOST:1")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ClusterError, match="connection to the cluster was closed"):
        closed.train(print, storage=tmp_path)
    closed.close()
    for asked in (closed.nodes, lambda: closed.put(b""), lambda: closed.train(print, storage=tmp_path)):
        with pytest.raises(ClusterError, match="executor was closed"):
            asked()
