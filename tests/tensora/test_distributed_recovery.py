"""A training on a cluster whose rank is killed goes on from Tensora's checkpoint with the same bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import accelera.tensora as ts
from accelera.tensora import nn, optim
from accelera.tensora.distributed import (
    DistributedCheckpoint,
    DistributedDataParallel,
    ProcessGroup,
    ZeroRedundancyOptimizer,
    init_process_group,
)
from accelera.tensora.serialization import load_checkpoint
from tests.tensora.distributed_ranks import Ranks, same_bits, weights_of

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),  # Ray warns of what Ray does
    pytest.mark.parametrize("fusion", ["eager"], indirect=True),
]

STEPS, EVERY, KILLED_AT = 7, 3, 5


def network() -> nn.Module:
    """Dropout, which draws, and running means, which rank 0 has."""
    return nn.Sequential(
        nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Dropout(0.2), nn.ReLU(), nn.Linear(10, 4)
    ).double()


def parts(group: ProcessGroup) -> dict[str, Any]:
    ts.random.manual_seed(7)
    model = network()
    ts.random.manual_seed(100 + group.rank)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, group, lr=1e-2)
    schedule = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    data = ts.random.Generator(group.rank)
    return {"model": model, "optimizer": optimizer, "schedule": schedule, "data": data}


def trained(group: ProcessGroup, parts: dict[str, Any], steps: Iterable[int]) -> Iterator[float]:
    """Yield the loss of each step."""
    ts.set_num_threads(1)
    called = DistributedDataParallel(parts["model"], group)
    for _ in steps:
        parts["optimizer"].zero_grad()
        loss = (called(parts["data"].normal((8, 6), "float64")) ** 2).mean()
        loss.backward()
        parts["optimizer"].step()
        parts["schedule"].step()
        yield float(loss)


def undisturbed(group: ProcessGroup) -> tuple[list[float], list[Any]]:
    made = parts(group)
    return list(trained(group, made, range(STEPS))), weights_of(made["model"])


def disturbed(folder: Path) -> Callable[[Any], None]:
    """Train on a cluster; rank 1 is killed once."""

    def train(rank: Any) -> None:
        group = init_process_group()
        made = parts(group)
        state = DistributedCheckpoint(folder / "states", group, **made)

        def steps() -> Iterable[int]:
            for step in rank.steps(STEPS, every=EVERY, training=state):
                if rank.number == 1 and step == KILLED_AT and not (folder / "killed").exists():
                    (folder / "killed").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield step

        for loss in trained(group, made, steps()):
            rank.note(loss=loss)

    return train


@pytest.mark.timeout(300)
def test_a_rank_that_is_killed_goes_on_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelera.execution import RayCluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        with RayCluster() as cluster:
            run = cluster.train(disturbed(tmp_path), ranks=2, storage=tmp_path, name="run", max_failures=1)
    finally:
        ray.shutdown()
    ranks = Ranks(2, tmp_path)
    wanted = ranks.call(undisturbed)
    ranks.close()

    assert (tmp_path / "killed").exists()
    assert run.steps == STEPS
    assert [notes["loss"] for notes in run.notes] == [losses for losses, _ in wanted]
    model = network()
    state = DistributedCheckpoint(tmp_path / "states", model=model)
    run.restore(training=state)
    assert same_bits(weights_of(model), wanted[0][1])
    assert same_bits(weights_of(model), wanted[1][1])
    files = sorted(each.name for each in (tmp_path / "states").iterdir())
    assert files == ["tensora-000000002.safetensors", "tensora-000000003.safetensors"]
    other = network()
    assert load_checkpoint(state.file, model=other) == {"number": 3}
    assert same_bits(weights_of(other), weights_of(model))
