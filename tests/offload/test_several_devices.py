"""Budgets by device: a model on simulated accelerators, the rest in bounded RAM and in files."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accelera import offload, offload_checkpoint, offloaded, plan_offload
from accelera.devices import SimulatedDevice
from accelera.errors import ArgumentError, BudgetExceededError, DeviceError, UnknownNameError
from accelera.offload.homes import RamHomes
from accelera.offload.homes.ram import RamHome
from tests.offload.pools import same, values

MIB = 1 << 20


def device(name: str = "sim", capacity: str = "64MiB") -> SimulatedDevice:
    return SimulatedDevice(capacity, name=name)


def layers(count: int = 8, width: int = 512) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))


def weights_of(one: nn.Module, other: nn.Module) -> Any:
    return zip(one.parameters(), other.parameters(), strict=True)


def file_bytes(folder: Path) -> int:
    """Return the room that scratch files in ``folder`` take; they have no name, only descriptors."""
    taken = {}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target, facts = os.readlink(f"/proc/self/fd/{descriptor}"), os.stat(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith(str(folder)):
            taken[facts.st_ino] = facts.st_blocks * 512
    return sum(taken.values())


@pytest.fixture
def ram_peak(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of slabs in RAM after each that was made, counted by their lives."""
    alive: dict[int, int] = {}
    peaks: list[int] = []
    create, release = RamHomes.create, RamHome.release

    def counted(self: RamHomes, nbytes: int, *args: Any) -> RamHome:
        home = create(self, nbytes, *args)
        alive[id(home)] = home.slab.nbytes
        peaks.append(sum(alive.values()))
        return home

    def released(self: RamHome) -> None:
        alive.pop(id(self), None)
        release(self)

    monkeypatch.setattr(RamHomes, "create", counted)
    monkeypatch.setattr(RamHome, "release", released)
    return peaks


@pytest.mark.parametrize(
    ("budget", "error", "says"),
    [
        ({}, ArgumentError, "names no device"),
        ({"cpu": "64MiB", "CPU": "1GiB"}, ArgumentError, "'CPU' is cpu, which has a budget already"),
        ({"cpu": "64MiB", torch.device("cpu"): "1GiB"}, ArgumentError, "has a budget already"),
        ({"sim:64MiB": 0}, ArgumentError, "budget of 0 bytes"),
        ({"sim:64MiB": None}, ArgumentError, "has no size"),
        ({"sim:64MiB": "much"}, ArgumentError, "'much' is not a size"),
        ({"sim:64MiB": -5}, ArgumentError, "not negative"),
        ({"sim:64MiB": "65MiB"}, ArgumentError, "the device has 67108864"),
        ({"nope": "1GiB"}, UnknownNameError, "known: cpu"),
        ({"disk": "1GiB"}, UnknownNameError, "known: cpu"),
        ({"cuda:0": "1GiB", "cpu": "1GiB"}, DeviceError, "cuda:0 was asked for"),
        ({0: "1GiB"}, DeviceError, "cuda:0 was asked for"),
        ({"sim:64MiB": "2MiB"}, BudgetExceededError, "raise it to at least"),
    ],
)
def test_budgets_that_are_none_are_refused(
    budget: Any, error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    model = nn.Linear(300, 300)
    with pytest.raises(error, match=says):
        offload(model, budget)
    assert type(model.weight) is nn.Parameter


def test_a_device_beside_budgets_by_device_is_refused() -> None:
    model = nn.Linear(300, 300)
    with pytest.raises(ArgumentError, match="these say which devices compute"):
        offload(model, {"sim:64MiB": "32MiB"}, device="cpu")
    with pytest.raises(ArgumentError, match="these say which devices compute"):
        plan_offload(model, torch.ones(1, 300), {"sim:64MiB": "32MiB"}, device="cpu")


def test_a_budget_of_the_cpu_alone_is_the_budget() -> None:
    handles = [offloaded(offload(layers(2), budget)) for budget in ("48MiB", {"cpu": "48MiB"})]
    assert len({handle.report().capacity_bytes for handle in handles}) == 1
    assert {str(handle.keeper.device) for handle in handles} == {"cpu"}
    assert not any(handle.report().home_bytes for handle in handles)


def test_ram_beside_an_accelerator_is_bounded_and_files_take_the_rest(
    tmp_path: Path, ram_peak: list[int]
) -> None:
    """8 MiB of weights, 3 MiB of RAM: 5 MiB are in files of ``store``."""
    plain, x = layers(), torch.randn(4, 512)
    model, simulated = copy.deepcopy(plain), device()
    with torch.no_grad():
        expected = plain(x)
        offload(model.eval(), {simulated: "12MiB", "cpu": "3MiB"}, store=tmp_path)
        for _ in range(3):
            assert torch.equal(model(x), expected)
    handle = offloaded(model)
    assert handle.report().home_bytes == {"ram": 3 * MIB, "files": 5 * MIB}
    assert max(ram_peak) == 3 * MIB
    assert 5 * MIB <= file_bytes(tmp_path) < 5 * MIB + 65536
    facts = simulated.report()
    assert 0 < facts.peak_bytes <= handle.report().capacity_bytes < 12 * MIB
    assert facts.bytes_up == handle.report().bytes_read > 8 * MIB
    handle.restore()
    assert all(same(one, other) for one, other in weights_of(plain, model))
    assert handle.report().home_bytes == {"ram": 0, "files": 0}


def test_training_takes_no_more_ram_than_its_budget(tmp_path: Path, ram_peak: list[int]) -> None:
    """Gradients, which come and go with every step, and states use the RAM that others gave back."""
    plain = layers(4)
    model, x = copy.deepcopy(plain), torch.randn(64, 512)
    offload(model, {"sim:64MiB": "16MiB", "cpu": "6MiB"}, store=tmp_path)
    for one in (plain, model):
        optimizer = torch.optim.AdamW(one.parameters(), lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            one(x).square().mean().backward()
            optimizer.step()
    assert all(
        same(values(a), values(b)) for a, b in zip(plain.parameters(), model.parameters(), strict=True)
    )
    assert 5 * MIB < max(ram_peak) <= 6 * MIB
    assert file_bytes(tmp_path) > 0


def test_a_plan_for_an_accelerator_and_ram() -> None:
    model, x = layers(), torch.randn(4, 512)
    with torch.no_grad():
        expected = model(x)
    model.eval()
    plan = plan_offload(model, x, {"sim:64MiB": "12MiB", "cpu": "3MiB"}, train=False)
    assert (plan.tier, plan.home, plan.budget_bytes) == ("sim", "disk", 12 * MIB)
    assert plan_offload(model, x, {"sim:64MiB": "12MiB", "cpu": "30MiB"}).home == "ram"
    offload(model, {"sim:64MiB": "12MiB", "cpu": "3MiB"}, inputs=x)
    with torch.no_grad():
        assert torch.equal(model(x), expected)
    assert offloaded(model).plan is not None
    assert offloaded(model).report().peak_bytes <= plan.peak_pool_bytes


def test_a_checkpoint_on_an_accelerator_beside_bounded_ram(tmp_path: Path) -> None:
    plain, x = layers(4), torch.randn(4, 512)
    offload(plain, "64MiB")
    offloaded(plain).save(tmp_path)
    opened = offload_checkpoint(tmp_path, lambda: layers(4), budget={"sim:64MiB": "12MiB", "cpu": "1MiB"})
    with torch.no_grad():
        assert torch.equal(opened(x), plain(x))
