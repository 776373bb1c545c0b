"""``accelera strategy``: where a batch of work would run, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accelera.cli.options import Json, python_object
from accelera.settings import current_value
from accelera.units import format_bytes, format_seconds, parse_bytes

if TYPE_CHECKING:
    from accelera.execution import HardwareCapabilities
    from accelera.execution._internal import Decision

Facts = Mapping[str, Any]


def _parsed_size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _parsed_share(text: str) -> float:
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise typer.BadParameter(f"{text!r} is not a share from 0 to 1; write for example 0.9 or 90%")
    return share


Tasks = Annotated[int, typer.Option("--tasks", "-n", metavar="COUNT", min=0, help="Number of tasks.")]
Memory = Annotated[
    Any,
    typer.Option(
        "--memory-per-task", metavar="SIZE", parser=_parsed_size, help="What a task takes on a GPU: 64MiB."
    ),
]
Complexity = Annotated[
    Any,
    typer.Option(
        metavar="SHARE", parser=_parsed_share, help="Arithmetic of a task: 0 is trivial, 1 is heavy."
    ),
]
Parallelization = Annotated[
    Any,
    typer.Option(metavar="SHARE", parser=_parsed_share, help="Part of the work that can run side by side."),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The GPU: cuda:1, or sim:256MiB for one that is not there. Without it the first accelerator.",
    ),
]
Function = Annotated[
    str | None,
    typer.Option(
        "--function",
        metavar="NAME",
        help="file.py:name or package.module:name: what was measured of it counts. Its module is run.",
    ),
]


def strategy(
    tasks: Tasks,
    memory_per_task: Memory = "0",
    complexity: Complexity = "0.5",
    parallelization: Parallelization = "0.8",
    function: Function = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Show where a batch of tasks would run now: CPU, GPU or both; by which rule, and why.

    Nothing is run. Without a function the decision tree decides; with one that has run before, what was
    measured of it.
    """
    from accelera.execution import HardwareCapabilities, StrategyManager, SystemLoad, WorkloadProfile

    profile = WorkloadProfile(tasks, memory_per_task, complexity, parallelization)
    manager = StrategyManager.auto(device=device)
    decision = manager.explain(profile, None if function is None else _function(function))
    found = {
        "hardware": _hardware(HardwareCapabilities.detect()),
        "simulated": _simulated(device),
        "load": asdict(SystemLoad.current()),
        "workload": asdict(profile),
        "decision": _described(decision),
    }
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))


def _simulated(named: str | None) -> Facts | None:
    """Return the device that is asked for, or set, where it is one that is not there."""
    name = current_value("device") if named is None else named
    if name is None or not name.startswith("sim"):
        return None
    from accelera.devices import get_device

    return {"name": name, "memory_bytes": get_device(name).total_bytes()}


def _function(text: str) -> Any:
    found = python_object(text)
    if not callable(found):
        raise typer.BadParameter(f"{text} is no function but a {type(found).__name__}: name what is executed")
    return found


def _hardware(hardware: HardwareCapabilities) -> Facts:
    return asdict(hardware) | {"accelerators": [each._asdict() for each in hardware.accelerators]}


def _described(decision: Decision) -> Facts:
    return {
        "strategy": decision.strategy.kind.value,
        "gpu_allocation": decision.strategy.gpu_allocation,
        "cpu_allocation": decision.strategy.cpu_allocation,
        "dynamic": decision.dynamic,
        "rule": decision.rule,
        "reasons": decision.reasons,
        "predicted_s": dict(decision.predicted_s),
        "samples": dict(decision.samples),
    }


def _lines(found: Facts) -> Iterator[str]:
    hardware, load, workload = found["hardware"], found["load"], found["workload"]
    cores, simd = hardware["cpu_cores"], " ".join(hardware["cpu_simd_support"]) or "no SIMD known"
    yield _row("cpu", f"{cores} cores, {load['cpu_utilization']:.0%} in use; {simd}")
    limit = format_bytes(hardware["memory_limit_bytes"])
    yield _row("memory", f"{limit} may be used, {load['memory_pressure']:.0%} in use")
    for each in hardware["accelerators"]:
        yield _row("gpu", f"{each['name']}, {format_bytes(each['memory_bytes'])}")
    simulated = found["simulated"]
    if simulated is not None:
        yield _row("gpu", f"{simulated['name']}, {format_bytes(simulated['memory_bytes'])}, simulated")
    if hardware["gpu_available"]:
        used, busy = load["gpu_memory_pressure"], load["gpu_utilization"]
        yield _row("gpu load", f"{used:.0%} of its memory, {busy:.0%} of its time in use")
    elif simulated is None:
        yield _row("gpu", "none")
    yield _row("workload", _workload(workload))
    yield from _decided(found["decision"])


def _workload(workload: Facts) -> str:
    memory = workload["memory_per_task"]
    each = f"{format_bytes(memory)} each" if memory else "of unknown size"
    return f"{workload['task_count']} tasks, {each}, {workload['parallelization']:.0%} parallel"


def _decided(decision: Facts) -> Iterator[str]:
    shares = decision["gpu_allocation"], decision["cpu_allocation"]
    parted = "" if None in shares else f" ({shares[0]}% GPU, {shares[1]}% CPU)"
    pulled = ", each side taking what it is fast enough for" if decision["dynamic"] else ""
    yield _row("strategy", f"{decision['strategy']}{parted}{pulled}")
    yield _row("rule", decision["rule"])
    for reason in decision["reasons"]:
        yield _row("", reason)
    for name, seconds in decision["predicted_s"].items():
        yield _row("predicted", f"{name} {format_seconds(seconds)}")
    for device, count in decision["samples"].items():
        yield _row("measured", f"{count} pieces on {device}")


def _row(name: str, text: str) -> str:
    return f"{name:<14}{text}"
