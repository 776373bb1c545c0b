"""``accelera info``: what the machine has and what may be used of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import metadata
from typing import Any

import pytest

import accelera
from accelera._distribution import DISTRIBUTION
from accelera.execution import HardwareCapabilities
from accelera.memory._internal import HostMemory
from accelera.settings import SETTINGS

Run = Callable[..., Any]

ROOMY = HostMemory(total_bytes=64 * 2**30, available_bytes=3 * 2**30, limit_bytes=4 * 2**30)


def test_text_names_everything(run: Run) -> None:
    ran = run("info")
    assert ran.exit_code == 0
    for word in ("cpu", "memory", "budget", "ram", "disk", "extras", accelera.__version__):
        assert word in ran.stdout
    assert all(setting.variable in ran.stdout for setting in SETTINGS)


def test_json_agrees_with_the_library(run: Run) -> None:
    found = json.loads(run("info", "--json").stdout)
    assert found["version"] == accelera.__version__
    assert 1 <= found["cpu"]["usable"] <= found["cpu"]["processors"]
    assert [tier["name"] for tier in found["tiers"]][-2:] == ["ram", "disk"]
    assert [setting["variable"] for setting in found["settings"]] == [s.variable for s in SETTINGS]


def test_batches_run_where_a_manager_would_run_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = HardwareCapabilities.detect()
    cpu = json.loads(run("info", "--json").stdout)["cpu"]
    assert (cpu["usable"], cpu["physical"]) == (hardware.cpu_cores, hardware.physical_cores)
    assert cpu["simd"] == list(hardware.cpu_simd_support)
    for name, value in (("DEVICE", "sim:1MiB"), ("WORKERS", "7"), ("STRATEGY", "hybrid")):
        monkeypatch.setenv(f"ACCELERA_{name}", value)
    assert "batches       Hybrid, on cpu and sim, 7 tasks at once on the CPU" in run("info").stdout


def test_extras_are_those_of_the_package(run: Run) -> None:
    """Each is there when everything is that the package's metadata asks for it."""
    wanted: dict[str, list[str]] = {}
    for requirement in metadata.requires(DISTRIBUTION) or ():
        if found := re.match(r"([\w-]+).*extra == ['\"](\w+)", requirement):
            wanted.setdefault(found[2], []).append(found[1])
    installed = {_plain(each.name) for each in metadata.distributions()}
    told = json.loads(run("info", "--json").stdout)["extras"]
    assert set(told) == wanted.keys() - {"all", "bench", "dev"}
    assert told == {extra: all(_plain(name) in installed for name in wanted[extra]) for extra in told}


def test_every_setting_stands_apart_from_its_value(run: Run) -> None:
    lines = run("info").stdout.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ACCELERA_")]
    assert names == [setting.variable for setting in SETTINGS]


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def test_settings_in_force_are_marked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERA_BUDGET", "3MiB")
    ran = run("info")
    assert "3.0 MiB unless told otherwise, from ACCELERA_BUDGET" in ran.stdout
    line = next(line for line in ran.stdout.splitlines() if line.strip().startswith("ACCELERA_BUDGET"))
    assert line.endswith("(set)")


def test_a_control_group_limits_the_memory(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelera._inventory.host_memory", lambda: ROOMY)
    assert "3.0 GiB available of 64.0 GiB; control group allows 4.0 GiB" in run("info").stdout
    found = json.loads(run("info", "--json").stdout)
    assert found["memory"]["cgroup_limit_bytes"] == 4 * 2**30
    assert next(tier for tier in found["tiers"] if tier["name"] == "ram")["capacity_bytes"] == 4 * 2**30


def test_an_accelerator_is_the_first_tier(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERA_DEVICE", "sim:32MiB")
    found = json.loads(run("info", "--json").stdout)
    assert found["device"] == "sim"
    assert found["tiers"][0]["name"] == "sim"
    assert found["tiers"][0]["capacity_bytes"] == 32 * 2**20


class Card:
    """Enough of an accelerator to be described."""

    host_memory = False

    def __init__(self, name: str) -> None:
        self.name = name

    def total_bytes(self) -> int:
        return 80 * 2**30

    def available_bytes(self) -> int:
        return 79 * 2**30


def test_every_accelerator_is_listed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: object())
    monkeypatch.setattr("accelera._inventory.get_device", lambda name: Card(name or "cuda:0"))
    ran = run("info")
    assert "cuda:1        cuda, 79.0 GiB available of 80.0 GiB" in ran.stdout
    assert [each["name"] for each in json.loads(run("info", "--json").stdout)["accelerators"]] == [
        "cuda:0",
        "cuda:1",
    ]
