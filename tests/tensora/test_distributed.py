"""Ranks train as one process does, whether the optimizer is sharded or not."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts
from accelera.errors import BackendMissingError
from accelera.tensora import nn, optim
from accelera.tensora.distributed import (
    DistributedCheckpoint,
    DistributedDataParallel,
    ProcessGroup,
    ZeroRedundancyOptimizer,
    init_process_group,
    run_on_devices,
)
from tests.architecture.repository import run_python
from tests.tensora.distributed_ranks import (
    Ranks,
    Training,
    alone,
    same_bits,
    tensors,
    train,
)

pytestmark = pytest.mark.parametrize("fusion", ["eager"], indirect=True)

STEPS = range(8)
SINGLE = Training("float32", optim.SGD, {"lr": 0.1, "momentum": 0.9})


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Ranks]]:
    """Processes of groups of two and of four."""
    folder = tmp_path_factory.mktemp("ranks")
    made = {count: Ranks(count, folder) for count in (2, 4)}
    yield made
    for each in made.values():
        each.close()


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    ("how", "rtol"),
    [(Training(), 1e-11), (Training(accumulate=2), 1e-11), (SINGLE, 1e-6)],
    ids=["float64", "accumulated", "float32"],
)
def test_processes_train_as_one(
    worlds: dict[int, Ranks], count: int, how: Training, rtol: float, sharded: bool
) -> None:
    found = worlds[count].call(functools.partial(train, how=how._replace(sharded=sharded), steps=STEPS))
    one = alone(how, STEPS)
    # Against elements that cancel to almost nothing there is a small absolute tolerance.
    atol = rtol / 10
    np.testing.assert_allclose(np.mean([each.losses for each in found], 0), one.losses, rtol)
    for mine, wanted in zip(found[0].weights, one.weights, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol, atol)
    assert all(same_bits(each[1:], found[0][1:]) for each in found)
    assert found[0].state.keys() == one.state.keys()


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("count", [2, 4])
def test_the_same_sums_are_the_same_bits(worlds: dict[int, Ranks], count: int, sharded: bool) -> None:
    how = Training("float32", sharded=sharded)
    processes = worlds[count].call(functools.partial(train, how=how, steps=STEPS))
    threads = run_on_devices(functools.partial(train, how=how, steps=STEPS), ["cpu"] * count)
    assert same_bits(processes, threads)
    if count == 2:  # more are added up in the order of the network
        one = alone(how, STEPS, parts=2)
        assert same_bits(processes[0][1:], one[1:])


def test_a_state_in_shards_goes_to_any_number_of_ranks(worlds: dict[int, Ranks]) -> None:
    how = Training(sharded=True)
    begun = worlds[4].call(functools.partial(train, how=how, steps=range(4)))[0]
    given = begun.weights, tensors(begun.state)
    rest = range(4, 8)

    def goes_on(group: ProcessGroup) -> Any:
        return train(group, how, (), given).state, train(group, how, rest, given)

    wanted = alone(how, STEPS)
    for loaded, found in (*worlds[2].call(goes_on), *run_on_devices(goes_on, ["cpu"])):
        assert same_bits(loaded, begun.state)
        for mine, other in zip(found.weights, wanted.weights, strict=True):
            np.testing.assert_allclose(mine, other, 1e-11, 1e-12)
    (plain,) = run_on_devices(lambda group: train(group, how._replace(sharded=False), rest, given), ["cpu"])
    (shards,) = run_on_devices(lambda group: train(group, how, rest, given), ["cpu"])
    assert same_bits(plain, shards)


def test_ranks_with_other_parameters_are_told_which(worlds: dict[int, Ranks]) -> None:
    def wraps(group: ProcessGroup) -> None:
        DistributedDataParallel(nn.Linear(3, 4 + group.rank // 2), group)

    with pytest.raises(
        ValueError,
        match=r"rank 2 has 'weight' of shape \(5, 3\) and type float32"
        r" where rank 0 has .*\(4, 3\).*rank 3 has",
    ):
        worlds[4].call(wraps)

    def lacks(group: ProcessGroup) -> None:
        DistributedDataParallel(nn.Linear(3, 4, bias=group.rank == 0), group)

    with pytest.raises(ValueError, match="rank 1 has 1 parameters and buffers, rank 0 has 2"):
        worlds[2].call(lacks)

    def freezes(group: ProcessGroup) -> None:
        DistributedDataParallel(nn.Linear(3, 4).requires_grad_(False), group)

    with pytest.raises(ValueError, match="no parameter requires gradients"):
        worlds[2].call(freezes)


# --- semantics of a backward pass, in threads -------------------------------------------------------------


class Three(nn.Module):
    """Parts of which not all are used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.never = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, inputs: Any, both: bool) -> Any:
        output = self.first(inputs)
        return {"output": (output + self.second(inputs) if both else output, "no tensor")}


def test_gradients_that_no_rank_has_stay_none_and_others_count_as_zero() -> None:
    def gradients(group: ProcessGroup) -> list[Any]:
        module = Three()
        called = DistributedDataParallel(module, group, bucket_bytes=30)
        called(ts.ones((4, 3)) * (group.rank + 1), group.rank == 1)["output"][0].sum().backward()
        return [None if each.grad is None else each.grad.tolist() for each in module.parameters()]

    first, other = run_on_devices(gradients, ["cpu"] * 2)
    assert first == other == [[[6.0] * 3] * 2, [4.0] * 2, [[4.0] * 3] * 2, [2.0] * 2, None, None]


def linear(group: ProcessGroup) -> tuple[nn.Module, DistributedDataParallel, Any]:
    """A module whose weight has the gradient ``rank + 1``, so that the mean of two is 1.5."""
    module = nn.Linear(3, 1)
    return module, DistributedDataParallel(module, group), ts.ones((4, 3)) * (group.rank + 1)


def taken(module: nn.Module) -> float:
    gradient = module.weight.grad
    assert ts.all(gradient == gradient[0, 0])
    module.zero_grad()
    return float(gradient[0, 0])


def test_passes_of_any_order_are_averaged() -> None:
    def passes(group: ProcessGroup) -> None:
        module, called, inputs = linear(group)
        called(inputs)  # an output that nothing is made of
        loss = called(inputs).mean()
        loss.backward(retain_graph=True)
        assert taken(module) == 1.5
        loss.backward()
        assert taken(module) == 1.5
        (called(inputs).mean() + called(2 * inputs).mean()).backward()
        assert taken(module) == 4.5
        one, other = called(inputs).mean(), called(inputs).mean()
        one.backward()
        other.backward()
        assert taken(module) == 3
        with called.no_sync():
            called(inputs).mean().backward()
        assert float(module.weight.grad[0, 0]) == group.rank + 1
        called(inputs).mean().backward()
        assert taken(module) == 3
        with ts.no_grad():
            assert not called(inputs).requires_grad
        before = ts.sum(module.weight)
        (called(inputs).mean() + before).backward()
        assert taken(module) == 2.5

    run_on_devices(passes, ["cpu"] * 2)


def test_gradients_that_would_not_be_averaged_are_errors() -> None:
    def around(group: ProcessGroup) -> None:
        _, called, inputs = linear(group)
        called.module(inputs).mean().backward()

    with pytest.raises(RuntimeError, match=r"came without a forward pass.*call the DistributedDataParallel"):
        run_on_devices(around, ["cpu"])

    def broken(group: ProcessGroup) -> None:
        module, called, inputs = linear(group)
        loss = called(inputs).mean()
        hook = module.weight.register_hook(lambda gradient: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        hook.remove()
        called(inputs)

    with pytest.raises(RuntimeError, match=r"averaged no gradients, as those of .*weight did not come"):
        run_on_devices(broken, ["cpu"])

    def let_go(group: ProcessGroup) -> None:
        module, called, inputs = linear(group)
        with ts.budget("1MB", optimizer=optim.SGD(module.parameters())):
            called(inputs).mean().backward()

    with pytest.raises(RuntimeError, match=r"was let go before it was averaged.* leave optimizer= out"):
        run_on_devices(let_go, ["cpu"])


def test_buffers_are_those_of_rank_0_and_a_group_of_one_fits_a_budget() -> None:
    def means(group: ProcessGroup) -> list[float]:
        module = nn.BatchNorm1d(2)
        called = DistributedDataParallel(module, group)
        for _ in range(2):
            called(ts.ones((4, 2)) * (group.rank + 1)).sum().backward()
        return list(module.running_mean.tolist())

    first, other = run_on_devices(means, ["cpu"] * 2)
    assert first == pytest.approx([0.19, 0.19])
    assert other == pytest.approx([0.9 * 0.1 + 0.1 * 2] * 2)

    def budgeted(group: ProcessGroup) -> list[Any]:
        limit = ts.memory_stats().live_bytes + 400_000  # other tests may have left tensors
        module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        called = DistributedDataParallel(module, group)
        optimizer = optim.AdamW(module.parameters())
        budget = ts.budget(limit)

        @budget
        def step(inputs: Any) -> float:
            optimizer.zero_grad()
            loss = called(inputs).mean()
            loss.backward()
            optimizer.step()
            return float(loss)

        inputs = ts.ones((256, 64))
        losses = [step(inputs) for _ in range(4)]
        assert budget.report.peak_bytes <= limit
        return losses

    gc.collect()
    ts.random.manual_seed(1)
    (found,) = run_on_devices(budgeted, ["cpu"])
    ts.random.manual_seed(1)
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = optim.AdamW(module.parameters())
    for wanted in found:
        optimizer.zero_grad()
        loss = module(ts.ones((256, 64))).mean()
        loss.backward()
        optimizer.step()
        assert float(loss) == wanted


def test_a_module_that_is_let_go_takes_its_hooks_along() -> None:
    def lives(group: ProcessGroup) -> tuple[bool, bool]:
        module, called, inputs = linear(group)
        called(inputs).sum().backward()
        reducer, held = weakref.ref(called._reducer), weakref.ref(module)
        del called
        gc.collect()
        module(inputs).sum().backward()
        del module
        gc.collect()
        return reducer() is None, held() is None

    assert run_on_devices(lives, ["cpu"]) == [(True, True)]


# --- sharded optimizers -----------------------------------------------------------------------------------


def test_shares_are_balanced_and_schedules_and_groups_reach_all_ranks() -> None:
    def shards(group: ProcessGroup) -> tuple[list[int], list[Any]]:
        module = nn.Sequential(*(nn.Linear(width, width) for width in (16, 8, 8, 4)))
        DistributedDataParallel(module, group)
        groups = [{"params": list(module[0].parameters()), "lr": 1.0}, {"params": module[1].parameters()}]
        optimizer = ZeroRedundancyOptimizer(groups, optim.SGD, group, lr=0.5, momentum=0.5)
        optimizer.add_param_group({"params": [*module[2].parameters(), *module[3].parameters()]})
        schedule = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for _ in range(2):
            for each in module.parameters():
                each.grad = ts.ones_like(each.detach())
            before = [float(each.detach().flatten()[0]) for each in module.parameters()]
            optimizer.step()
            schedule.step()
        after = [float(each.detach().flatten()[0]) for each in module.parameters()]
        changes = [round(one - other, 4) for one, other in zip(before, after, strict=True)]
        assert {optimizer.owner_of(each) for each in module.parameters()} == {0, 1}
        optimizer.zero_grad()
        assert all(each.grad is None for each in module.parameters())
        kept = sum(each["momentum_buffer"].nbytes for each in optimizer.state.values())
        assert len(optimizer.state_dict()["state"]) == 8
        return [kept, sum(each.nbytes for each in module.parameters())], changes

    (first, changes), (other, same) = run_on_devices(shards, ["cpu"] * 2)
    assert changes == same == [0.75] * 2 + [0.375] * 6
    assert first[0] + other[0] == first[1]
    assert max(first[0], other[0]) <= 16 * 16 * 4 + 64


def test_an_optimizer_of_all_parameters_together_has_no_shards() -> None:
    def makes(group: ProcessGroup) -> None:
        ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), optim.LBFGS, group)

    with pytest.raises(ValueError, match="LBFGS changes all parameters together; give one that"):
        run_on_devices(makes, ["cpu"])

    def inside(group: ProcessGroup) -> None:
        shards = ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), optim.Adam, group)
        ts.budget("1MB", optimizer=shards)

    with pytest.raises(TypeError, match="cannot change one parameter at a time"):
        run_on_devices(inside, ["cpu"])


# --- checkpoints ------------------------------------------------------------------------------------------


def test_a_checkpoint_keeps_the_last_files_and_each_ranks_own(tmp_path: Path) -> None:
    def saves(group: ProcessGroup) -> dict[str, Any]:
        parts = made(group, 1)
        state = DistributedCheckpoint(tmp_path / "run", group, **parts)
        for _ in range(3):
            parts["data"].uniform()
            told = state.state_dict()
        group.barrier()
        return told

    def made(group: ProcessGroup, seed: int) -> dict[str, Any]:
        model = nn.Linear(2, 2)
        with ts.no_grad():
            model.weight[...] = seed
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, group)
        return {"model": model, "optimizer": optimizer, "data": ts.random.Generator(group.rank + seed)}

    def loads(group: ProcessGroup) -> tuple[float, tuple[int, int]]:
        parts = made(group, 5)
        DistributedCheckpoint(tmp_path / "run", group, **parts).load_state_dict(told[group.rank])
        return float(parts["model"].weight[0, 0].detach()), parts["data"].state

    told = run_on_devices(saves, ["cpu"] * 2)
    assert [each["number"] for each in told] == [3, 3]
    assert sorted(each.name[-13:] for each in (tmp_path / "run").iterdir()) == [
        "2.safetensors",
        "3.safetensors",
    ]
    assert run_on_devices(loads, ["cpu"] * 2) == [(1, (1, 3)), (1, (2, 3))]
    with pytest.raises(ValueError, match="keep=1; give 2 or more"):
        DistributedCheckpoint(tmp_path, keep=1)
    with pytest.raises(TypeError, match="model= is a int without state_dict"):
        DistributedCheckpoint(tmp_path, model=3)


# --- groups -----------------------------------------------------------------------------------------------

KINDS = ["bool", "uint8", "int16", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]


def test_tensors_of_all_types_go_from_rank_to_rank() -> None:
    def collective(group: ProcessGroup) -> None:
        for kind in KINDS:
            given = ts.astype(ts.arange(6), getattr(ts, kind)).reshape((2, 3))
            mine = given.clone() if group.rank == 1 else ts.zeros_like(given)
            group.broadcast(mine, 1).wait()
            assert ts.all(mine == given)
            if kind in ("int64", "float16", "bfloat16", "float32", "float64", "complex64"):
                group.all_reduce(mine).wait()
                assert ts.all(mine == given * group.size)
        number = ts.tensor(float(group.rank))
        group.all_reduce(number, "max").wait()
        assert float(number) == group.size - 1
        assert group.all_gather_object("x" * group.rank) == ["", "x", "xx"]
        with pytest.raises(ValueError, match=r"\[all_reduce\] .* \(3, 2\) .* give tensor.contiguous"):
            group.all_reduce(ts.ones((2, 3)).T)
        with pytest.raises(TypeError, match="a list; give a tensor"):
            group.broadcast([1.0])  # type: ignore[arg-type]
        group.close()
        with pytest.raises(RuntimeError, match="the group was closed"):
            group.barrier()

    run_on_devices(collective, ["cpu"] * 3)


def test_a_rank_that_fails_ends_the_others() -> None:
    def fails(group: ProcessGroup) -> None:
        if group.rank == 1:
            raise KeyError("mine")
        group.all_reduce(ts.ones((3,))).wait()

    with pytest.raises(KeyError, match="mine"):
        run_on_devices(fails, ["cpu"] * 3)
    with pytest.raises(ValueError, match="no devices; give at least one"):
        run_on_devices(fails, [])


def test_a_group_that_is_there_is_joined(worlds: dict[int, Ranks]) -> None:
    def joins(group: ProcessGroup) -> tuple[int, int, str]:
        with pytest.raises(ValueError, match=r"rank=0, .* set up already, as rank \d of 2; leave them out"):
            init_process_group(rank=0)
        again = init_process_group(device="cuda:1")
        again.close()
        return again.rank, again.size, repr(again)

    assert worlds[2].call(joins)[1] == (1, 2, "ProcessGroup(rank=1, size=2, device='cuda:1')")


def test_torch_is_loaded_when_a_group_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, accelera.tensora.distributed; sys.exit('torch' in sys.modules)"
    assert run_python("-c", code, cwd=tmp_path).returncode == 0
    monkeypatch.setitem(sys.modules, "torch", None)
    for ask in (init_process_group, lambda: run_on_devices(print, ["cpu"])):
        with pytest.raises(BackendMissingError, match=r"needs torch; pip install 'accelera-engine\[torch\]'"):
            ask()
