"""A rank's steps, gradients and checkpoints, without a cluster."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import accelera
from accelera.errors import BackendMissingError, ClusterError, StoreError
from accelera.execution.cluster.training.checkpoint import (
    Position,
    check_shared,
    folder_of,
    last_checkpoint,
    load_parts,
    make_folder,
    read_state,
    save,
    write_state,
)
from accelera.execution.cluster.training.rank import in_buckets
from accelera.execution.cluster.training.trainer import Ranks, failure_of, import_ray_train
from tests.architecture.repository import ROOT, run_python
from tests.execution.one_rank import Train, process_group


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """A process group of one; in one thread, which is part of what a budget holds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with process_group():
        yield
    torch.set_num_threads(threads)


def drawn() -> list[float]:
    return [torch.rand(()).item(), float(np.random.random()), random.random()]


class Place:
    """A place in the data, as samplers have one."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def seen(train: Train, folder: Path, steps: int) -> list[Any]:
    """Take steps that note nothing but what is drawn and where the data is; return what they were."""
    place, generator, rank = Place(), torch.Generator(), train.rank(folder)
    found = []
    for step in rank.steps(steps, every=2, model=nn.Linear(2, 2), place=place, generator=generator):
        place.at += 10
        found.append((step, place.at, torch.rand((), generator=generator).item(), drawn()))
        rank.note(place=place.at)
    return found


def test_steps_go_on_where_they_were(tmp_path: Path) -> None:
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(3)
    all_of_them = seen(Train(), tmp_path / "all", 6)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(3)
    train = Train()
    some = seen(train, tmp_path / "some", 3)
    drawn()
    assert some + seen(train, tmp_path / "some", 6) == all_of_them
    assert train.reported == [{"step": step} for step in (2, 3, 4, 6)]
    assert seen(train, tmp_path / "some", 6) == []


def test_a_checkpoint_of_other_ranks_or_parts_is_refused(tmp_path: Path) -> None:
    train = Train()
    seen(train, tmp_path, 2)
    rank = train.rank(tmp_path)
    with pytest.raises(KeyError, match="has no part 'head', but generator, model, place"):
        rank.steps(3, head=nn.Linear(2, 2))
    rank = train.rank(tmp_path)
    rank.count = 3
    with pytest.raises(ValueError, match=r"is of 1 ranks, and now there are 3.* ranks=1"):
        rank.steps(3, model=nn.Linear(2, 2))


def test_steps_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    rank = Train().rank(tmp_path)
    with pytest.raises(TypeError, match=r"\[train\] model=3: a part has state_dict"):
        rank.steps(3, model=3)
    with pytest.raises(ValueError, match="every=0"):
        rank.steps(3, every=0)
    with pytest.raises(TypeError, match=r"steps\(every=2.5\): give a whole number"):
        rank.steps(3, every=2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"steps\(count='x'\): give a whole number"):
        rank.steps("x")  # type: ignore[arg-type]
    rank.steps(3)
    with pytest.raises(ValueError, match="called once"):
        rank.steps(3)


def test_parameters_that_are_not_everywhere_the_same_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gathered(found: list[Any], mine: Any) -> None:
        found[:] = [b"another", mine]

    train = Train()
    monkeypatch.setattr(dist, "all_gather_object", gathered)
    with pytest.raises(ClusterError, match=r"after step 1 the parameters of ranks \[1\] .*average_gradients"):
        list(train.rank(tmp_path).steps(1, model=nn.Linear(2, 2)))
    assert train.reported == []


def test_gradients_are_averaged_where_any_rank_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reduced(tensor: torch.Tensor, op: Any = None) -> None:
        """Add up with a rank whose gradients are all 3, and that has one of all but the last parameter."""
        tensor.copy_(torch.tensor([1, 1, 1, 0])) if op == dist.ReduceOp.MAX else tensor.add_(1.5)

    monkeypatch.setattr(dist, "all_reduce", reduced)
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model[0].weight.grad = torch.ones(2, 2)
    rank = Train(ranks=2).rank(tmp_path)
    rank.average_gradients(model)
    weights: list[Any] = [each.grad for each in model.parameters()]
    assert torch.equal(weights[0], torch.full((2, 2), 2.0))
    assert torch.equal(weights[1], torch.full((2,), 1.5))
    assert torch.equal(weights[2], torch.full((2, 2), 1.5))
    assert weights[3] is None


def test_sparse_gradients_are_refused(tmp_path: Path) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match=r"shape \(4, 2\) is sparse.*sparse=False"):
        Train().rank(tmp_path).average_gradients(table)


def test_buckets_are_the_same_for_any_layout_and_what_is_made_of_them_is_put_back() -> None:
    tensors = [
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.arange(10)[::2],
        torch.arange(6.0).reshape(2, 3).t(),
        torch.tensor(5.0),
        torch.zeros(0),
        torch.ones(3, 1).expand(3, 50),
    ]
    before = [each.clone() for each in tensors]
    buckets = []
    for bucket in in_buckets(tensors, write=True, bucket_bytes=28):
        buckets.append(bucket.clone())
        bucket.neg_()
    assert all(torch.equal(one, -other) for one, other in zip(tensors, before, strict=True))
    assert [(len(each), each.dtype) for each in buckets] == [
        *[(7, torch.float32)] * 4,
        (6, torch.float32),
        (3, torch.int64),
        (2, torch.int64),
    ]
    assert torch.equal(torch.cat(buckets[:5])[-10:], torch.tensor([0.0, 1, 2, 3, 4, 5, 5, 1, 1, 1]))


def test_offloaded_weights_in_several_blocks_are_seen_in_buckets() -> None:
    model: Any = accelera.offload(nn.Linear(1024, 1024), "24MiB")
    assert len(model.weight.blocks) > 1
    before = model.weight.materialized()
    for bucket in in_buckets(model.parameters(), write=True, bucket_bytes=3 << 18):
        bucket.mul_(2)
    assert torch.equal(model.weight.materialized(), 2 * before)


def test_an_offloaded_rank_keeps_its_budget_while_it_trains_saves_and_goes_on(tmp_path: Path) -> None:
    ran = run_python("-m", "tests.execution.rank_memory", str(tmp_path), "48MiB", cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert max(found["peaks"]) <= 48 << 20 < found["kept_bytes"]


def test_optimizers_get_copies_of_states_that_lie_in_files(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    write_state(tmp_path / "state", {"optimizer": optimizer.state_dict()})
    other = torch.optim.AdamW(model.parameters())
    lying = read_state(tmp_path / "state", in_place=True)
    load_parts({"optimizer": other}, lying, {})
    kept = lying["optimizer"]["state"][0]["exp_avg"]
    assert torch.equal(other.state[model.weight]["exp_avg"], kept)
    assert other.state[model.weight]["exp_avg"].data_ptr() != kept.data_ptr()


def test_a_folder_that_others_do_not_see_is_noticed(tmp_path: Path) -> None:
    folder, mark = make_folder(tmp_path, "run")
    check_shared(folder, mark, "rank 1")
    with pytest.raises(StoreError, match=r"rank 1 does not see .*storage= must be on a file system"):
        check_shared(folder, "another", "rank 1")
    with pytest.raises(StoreError, match="rank 1 does not see"):
        check_shared(tmp_path / "elsewhere", mark, "rank 1")


@pytest.mark.parametrize("name", ["", "a/b", "..", "/a"])
def test_names_that_are_no_folder_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give the name of one folder"):
        make_folder(tmp_path, name)


def test_the_last_checkpoint_is_that_of_most_steps_with_a_file_of_rank_0(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "none") is None
    for step in (9, 10, 300):
        save(folder_of(tmp_path, step), 0, Position(step=step), {})
    folder_of(tmp_path, 400).mkdir()
    assert last_checkpoint(tmp_path) == folder_of(tmp_path, 300)


@pytest.mark.parametrize(("storage", "name"), [(5, "run"), (None, "run"), ("here", 5)])
def test_what_is_no_path_and_no_name_is_refused(storage: Any, name: Any) -> None:
    with pytest.raises(TypeError, match="give the path of a directory, and the name of a folder in it"):
        make_folder(storage, name)


def test_addresses_are_no_storage() -> None:
    with pytest.raises(StoreError, match="a directory that all machines see; mount it"):
        make_folder("s3://bucket/runs", "run")


def test_a_file_that_cannot_be_written_or_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "other").write_text("of another program")
    with pytest.raises(StoreError, match=r"file/state cannot be written"):
        write_state(tmp_path / "file" / "state", 1)
    for name in ("file", "other"):
        with pytest.raises(StoreError, match=rf"{name} cannot be read"):
            read_state(tmp_path / name)


def test_what_fits_a_cluster_is_counted_by_node() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 3.0, "GPU": 1.0}},
        {"Alive": True, "Resources": {"CPU": 3.0}},
        {"Alive": False, "Resources": {"CPU": 64.0}},
    ]
    Ranks(2, num_cpus=2).check_fit(nodes)
    with pytest.raises(ClusterError, match=r"ranks=3 of 2 CPU each: the cluster's 2 nodes have room for 2"):
        Ranks(3, num_cpus=2).check_fit(nodes)
    Ranks(2, num_gpus=0.5).check_fit(nodes)
    with pytest.raises(ClusterError, match="room for 0"):
        Ranks(1, resources={"spot": 1.0}).check_fit(nodes)


@pytest.mark.parametrize(
    ("asked", "kind", "says"),
    [
        ({"num_cpus": 0}, ValueError, "num_cpus=0, num_gpus=0: a rank reserves something of its node"),
        ({"num_cpus": -1}, ValueError, "num_cpus=-1: give a number from 0"),
        ({"num_gpus": "x"}, TypeError, "num_gpus='x': give a number"),
        ({"resources": ["disk"]}, TypeError, r"resources=\['disk'\]: give amounts by name"),
    ],
)
def test_amounts_that_make_no_sense_are_refused(asked: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        Ranks(2, **asked)


class Failed(Exception):
    """As Ray Train tells of ranks that failed."""

    def __init__(self, **failures: Exception) -> None:
        super().__init__("it failed")
        self.worker_failures = {int(name[1:]): error for name, error in failures.items()}


LOST = type("Lost", (Exception,), {"__module__": "ray.train"})(
    "no answer\nits process died. Some common causes"
)
SILENT = type("Lost", (Exception,), {"__module__": "ray.train"})(" \n")


FULL = torch.OutOfMemoryError("mine")


@pytest.mark.parametrize(
    ("failures", "kind", "says"),
    [
        ({"r0": RuntimeError("closed by peer"), "r1": KeyError("mine")}, KeyError, "mine"),
        ({"r0": RuntimeError("mine"), "r1": RuntimeError("other")}, RuntimeError, "mine"),
        ({"r0": RuntimeError("closed by peer"), "r1": FULL}, torch.OutOfMemoryError, "mine"),
        ({"r0": RuntimeError("closed by peer"), "r1": LOST}, ClusterError, "rank 1: its process died"),
        ({"r0": StoreError("full"), "r1": LOST}, StoreError, "full"),
        ({"r1": SILENT}, ClusterError, "rank 1: Lost."),
        ({}, ClusterError, "it failed"),
    ],
)
def test_the_failure_that_says_most_is_raised(
    failures: dict[str, Exception], kind: type[Exception], says: str
) -> None:
    told = failure_of(Failed(**failures), "run", 2)
    assert type(told) is kind
    assert says in str(told)
    if kind is ClusterError:
        assert "name='run'" in str(told)
    else:
        assert any("max_failures=2\nit failed" in note for note in getattr(told, "__notes__", []))


def test_ray_without_ray_train_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(torch=None))
    with pytest.raises(BackendMissingError, match=r"pip install 'accelera-engine\[ray\]'"):
        import_ray_train()
