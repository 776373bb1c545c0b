"""``accelera info``: hardware, limits, tiers and settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from accelera.cli.options import Json
from accelera.units import format_bytes

Facts = Mapping[str, Any]


def info(as_json: Json = False) -> None:
    """Show what this machine has and what Accelera may use of it.

    Processors, memory and the limits that control groups put on them, the budget that follows,
    the tiers, optional packages and the settings in force.
    """
    from accelera._inventory import facts

    found = facts()
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))


def _lines(found: Facts) -> Iterator[str]:
    yield _row("accelera", f"{found['version']} on Python {found['python']}, {found['system']}")
    if found["conflict"] is not None:
        yield _row("conflict", found["conflict"])
    yield _row("cpu", _cpu(found["cpu"]))
    yield _row("memory", _memory(found["memory"]))
    for each in found["accelerators"]:
        sizes = f"{format_bytes(each['available_bytes'])} available of {format_bytes(each['total_bytes'])}"
        yield _row(each["name"], f"{each['model']}, {sizes}")
    yield _row("computes on", found["device"])
    yield _row("batches", _batches(found["batches"]))
    budget = found["budget"]
    yield _row("budget", f"{format_bytes(budget['bytes'])} unless told otherwise, from {budget['from']}")
    yield _row("compiled", "CPU and CUDA kernels" if found["compiled"]["cuda"] else "CPU kernels, no CUDA")
    caught = found["interception"]
    yield _row("interception", f"{caught['tier']}: {caught['why']}")
    if caught["tier"] == "stable":
        yield _row("", f"in C++: {', '.join(caught['compiled'])}; every other operator in Python")
    yield _row("packages", ", ".join(f"{name} {version}" for name, version in found["packages"].items()))
    extras = found["extras"]
    yield _row("extras", ", ".join(name if there else f"{name} (absent)" for name, there in extras.items()))
    yield from ("", f"{'tier':<14}{'capacity':>12}{'free':>12}  {'filled at (assumed)'}")
    yield from map(_tier, found["tiers"])
    yield from ("", "setting")
    yield from map(_setting, found["settings"])


def _row(name: str, text: str) -> str:
    return f"{name:<14}{text}"


def _cpu(cpu: Facts) -> str:
    usable = f"{cpu['usable']} of {cpu['processors']} processors usable"
    cores = f", {cpu['physical']} cores" if cpu["physical"] else ""
    return f"{cpu['model']}, {usable}{cores}, {' '.join(cpu['simd']) or 'no SIMD known'}"


def _batches(batches: Facts) -> str:
    on = " and ".join(batches["devices"])
    return f"{batches['strategy']}, on {on}, {batches['workers']} tasks at once on the CPU"


def _memory(memory: Facts) -> str:
    limit = memory["cgroup_limit_bytes"]
    held = "no control-group limit" if limit is None else f"control group allows {format_bytes(limit)}"
    free, total = format_bytes(memory["available_bytes"]), format_bytes(memory["total_bytes"])
    return f"{free} available of {total}; {held}"


def _tier(tier: Facts) -> str:
    sizes = f"{format_bytes(tier['capacity_bytes']):>12}{format_bytes(tier['free_bytes']):>12}"
    rate = tier["assumed_bytes_per_s"]
    note = tier.get("folder", "") if rate is None else f"{format_bytes(rate)}/s"
    return f"{tier['name']:<14}{sizes}  {note}"


def _setting(setting: Facts) -> str:
    value = "unset" if setting["value"] is None else setting["value"]
    return f"  {setting['variable']:<30}{value}{'' if setting['is_default'] else '  (set)'}"
