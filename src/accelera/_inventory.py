"""Inventory of this machine and this installation, as plain values: for command line and service."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from accelera import __version__
from accelera._distribution import conflict, install_command
from accelera._extras import EXTRAS, is_installed, is_there
from accelera.devices import Device, SimulatedDevice, get_device
from accelera.devices._internal import shim_for
from accelera.execution import HardwareCapabilities, StrategyManager
from accelera.memory import MemoryManager
from accelera.memory._internal import Budget, host_memory
from accelera.plan._internal import CostModel
from accelera.settings import SETTINGS, current, current_value

_PACKAGES = ("numpy", "scipy", "torch")


_PATH = re.compile(r"(?<![\w.>-])/[^\s'\",;:()]+")


def facts() -> dict[str, Any]:
    """Return everything that ``accelera info`` shows, as JSON-able values; sizes in bytes."""
    device = get_device(None)
    return {
        "version": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": _cpu(),
        "memory": _memory(),
        "batches": _batches(),
        "device": device.name,
        "accelerators": list(_accelerators(device)),
        "budget": _budget(device),
        "tiers": list(_tiers(device)),
        "compiled": _compiled(),
        "interception": _interception(),
        "conflict": conflict(),
        "packages": {name: metadata.version(name) for name in _PACKAGES if is_there(name)},
        "extras": {extra: is_installed(extra) for extra in EXTRAS},
        "settings": list(_settings()),
    }


def without_paths(value: Any) -> Any:
    """Return JSON-able values without paths of this machine in texts, and without keys ``folder``."""
    if isinstance(value, str):
        return _PATH.sub("(path)", value)
    if isinstance(value, Mapping):
        return {name: without_paths(each) for name, each in value.items() if name != "folder"}
    return [without_paths(each) for each in value] if isinstance(value, list | tuple) else value


def _cpu() -> dict[str, Any]:
    cpu_info, hardware = _cpu_fields(), HardwareCapabilities.detect()
    return {
        "model": cpu_info.get("model name") or platform.processor() or platform.machine(),
        "processors": os.cpu_count() or 1,
        "usable": hardware.cpu_cores,
        "physical": hardware.physical_cores,
        "simd": list(hardware.cpu_simd_support),
    }


def _cpu_fields() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first = text.partition("\n\n")[0]
    return dict(re.findall(r"^([^\t:]+)\s*:\s*(.*)$", first, re.MULTILINE))


def _memory() -> dict[str, Any]:
    host = host_memory()
    limited = host.limit_bytes < host.total_bytes
    return {
        "total_bytes": host.total_bytes,
        "available_bytes": host.available_bytes,
        "cgroup_limit_bytes": host.limit_bytes if limited else None,
    }


def _batches() -> dict[str, Any]:
    """Return the strategy, devices and workers of ``StrategyManager.auto`` by default."""
    manager = StrategyManager.auto()
    workers = current().workers or HardwareCapabilities.detect().cpu_cores
    return {"strategy": str(manager.strategy), "devices": manager.devices, "workers": workers}


def _accelerators(device: Device) -> Iterator[dict[str, Any]]:
    """Yield what torch can compute on, where the usual device is one of them; loads torch only then."""
    kind = device.name.partition(":")[0]
    if device.host_memory or isinstance(device, SimulatedDevice):
        return
    import torch

    model = getattr(torch.get_device_module(kind), "get_device_name", lambda _: kind)
    for index in range(torch.accelerator.device_count()):
        each = get_device(f"{kind}:{index}")
        yield {
            "name": each.name,
            "model": model(index),
            "total_bytes": each.total_bytes(),
            "available_bytes": each.available_bytes(),
        }


def _budget(device: Device) -> dict[str, Any]:
    budget = Budget.parse(None, MemoryManager(device))
    return {"bytes": budget.limit_bytes, "from": budget.origin}


def _tiers(device: Device) -> Iterator[dict[str, Any]]:
    """Yield the places where bytes can lie, fastest first."""
    rates = CostModel()
    if not device.host_memory:
        yield _tier(device.name, device.total_bytes(), device.available_bytes(), rates.host_bytes_per_s)
    host = host_memory()
    yield _tier("ram", host.limit_bytes, host.available_bytes, rates.read_bytes_per_s)
    disk = shutil.disk_usage(Path.cwd())
    yield {**_tier("disk", disk.total, disk.free, None), "folder": str(Path.cwd())}


def _tier(name: str, capacity_bytes: int, free_bytes: int, bytes_per_s: float | None) -> dict[str, Any]:
    """Describe one tier; the rate is that at which it is filled from the next slower one."""
    return {
        "name": name,
        "capacity_bytes": capacity_bytes,
        "free_bytes": free_bytes,
        "assumed_bytes_per_s": bytes_per_s,
    }


def _compiled() -> dict[str, bool]:
    from accelera import _native

    return {"extension": True, "cuda": _native.cuda_compiled()}


def _interception() -> dict[str, Any]:
    """Return how calls of torch are caught, and which operators' small calls are answered in C++."""
    if not is_there("torch"):
        why = f"torch is not installed; {install_command('torch')}"
        return {"tier": "none", "why": why, "compiled": []}
    shim = _shim_found()
    if shim is not None:
        return {"tier": shim[0], "why": shim[1], "compiled": "all"}
    from accelera.interceptor import hooks

    compiled = sorted(hooks.compiled_operators())
    in_all = len(compiled) == len(hooks.OPERATORS)
    return {"tier": hooks.tier(), "why": hooks.why(), "compiled": "all" if in_all else compiled}


def _shim_found() -> tuple[str, str] | None:
    """Return how calls are caught, with words for it, where a shim lies here for the torch that is installed.

    None when torch, which takes seconds to load, has to be asked: it is loaded already, there is no such
    shim, or another backend is wished.
    """
    if "torch" in sys.modules or current_value("interception") != "auto":
        return None
    if not shim_for(metadata.version("torch")).exists():
        return None
    return "shim", "compiled kernels, built for exactly this torch"


def _settings() -> Iterator[dict[str, Any]]:
    values = vars(current())
    for setting in SETTINGS:
        value = values[setting.name]
        shown = "(set)" if setting.secret and value is not None else value
        yield {"variable": setting.variable, "value": shown, "is_default": value == setting.default}


if __name__ == "__main__":  # the service asks in a process of its own, as this may load torch
    sys.stdout.write(json.dumps(without_paths(facts())))
