"""Base of the views: facts of a trace that they share, the machine of a what-if, records that become JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accelera._plotting import format_budget, format_size
from accelera.errors import BudgetExceededError
from accelera.memory import Compute, Hierarchy
from accelera.simulator import HIERARCHIES, Report, simulate
from accelera.simulator._internal import TimeSteps, hierarchy_of, step_seconds
from accelera.trace import Occupancy, Trace
from accelera.trace._internal import largest_op

ViewJson = Mapping[str, Any]
"""A view as ``to_dict`` returns it, and as the service replies it."""


class JsonView:
    """A frozen dataclass of numbers, texts, lists, dicts and other such records."""

    def to_dict(self) -> dict[str, Any]:
        """Return the view as JSON-able values: sizes in bytes, times in seconds."""
        found: dict[str, Any] = _plain(self)
        return found


def _plain(value: Any) -> Any:
    """Return ``value`` with records made dicts; lists of numbers, which may be long, stay as they are."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list) and value and is_dataclass(value[0]):
        return [_plain(each) for each in value]
    return value


MACHINES = tuple(name for name, each in HIERARCHIES.items() if not each.sequential)
"""Presets whose first tier holds tensors as a program does; in the seed's ``copilot`` nothing is freed."""


@dataclass(frozen=True)
class WhatIf:
    """A preset machine, and what is changed of it."""

    hierarchy: str = "gpu-24gb"
    """One of ``MACHINES``."""
    link_bytes_per_s: float | None = None
    """Rate of the link between the first tier and the next, both ways; None: the preset's."""
    lookahead: int = 0
    """Steps whose operands are loaded while an earlier one computes, as in ``simulate``."""

    def at(self, capacity_bytes: int) -> Hierarchy:
        """Return the machine with ``capacity_bytes`` in its first tier."""
        machine = hierarchy_of(self.hierarchy).with_capacity(capacity_bytes)
        if self.link_bytes_per_s is None:
            return machine
        linked = replace(
            machine.tiers[1],
            bandwidth_bytes_per_s=self.link_bytes_per_s,
            write_bandwidth_bytes_per_s=None,
        )
        return replace(machine, tiers=(machine.tiers[0], linked, *machine.tiers[2:]))


Per = Literal["step", "token", "pass"]
"""Unit by which figures are divided: an optimizer step, a generated token, or a forward pass."""
_PER_MODE: Mapping[str, Per] = {"training": "step", "decode": "token", "inference": "pass"}


@dataclass(frozen=True)
class Units:
    """The repetitions of a trace by which its figures are divided."""

    per: Per
    count: int
    first_step: int
    """Index of the step with which the first of them begins: after the prompt, where tokens are counted."""

    @classmethod
    def of(cls, trace: Trace) -> Units:
        """Return the units of ``trace``; one pass over everything where it does not say where one begins."""
        starts = [int(each) for each in (trace.meta.get("iterations") or ()) if 0 <= each < trace.step_count]
        per = _PER_MODE.get(str(workload_of(trace).get("mode", "")), _per_roles(trace))
        if per == "token":
            return cls("token", max(len(starts) - 1, 1), starts[1] if len(starts) > 1 else 0)
        return cls(per, max(len(starts), 1), 0)


class MeasuredTrace:
    """A trace with cached facts that its views share: units, occupancy, floor. Views take it as a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._first_load: dict[int, int] = {}
        self._computed: dict[Compute | None, NDArray[np.float64]] = {}

    @cached_property
    def units(self) -> Units:
        """The repetitions by which figures are divided."""
        return Units.of(self.trace)

    @cached_property
    def occupancy(self) -> Occupancy:
        """Bytes and buffers that are alive at each event."""
        return Occupancy(self.trace)

    @cached_property
    def peak_bytes(self) -> int:
        """Most bytes alive at any time: the memory that the trace needs."""
        return self.occupancy.peak_bytes

    @cached_property
    def floor_bytes(self) -> int:
        """The smallest budget in which the operands of every step fit together."""
        return TimeSteps.of(self.trace).floor_bytes

    @cached_property
    def floor_op(self) -> str:
        """Operation of the step with the most operands, in words."""
        return largest_op(self.trace).op.replace("_", " ")

    def check_runs(self, op: str, budget_bytes: int) -> None:
        """Raise BudgetExceededError where no schedule runs in a budget.

        ``simulate`` replays there all the same: operands that find no room pass by without staying.
        """
        if budget_bytes < self.floor_bytes:
            needed = format_size(self.floor_bytes)
            raise BudgetExceededError(
                f"[{op}] no schedule runs in {format_budget(budget_bytes)}: one operation alone "
                f"({self.floor_op}) needs {needed}; take at least {self.floor_bytes:,} bytes",
                needed_bytes=self.floor_bytes,
                budget_bytes=budget_bytes,
            )

    def resident(self, what_if: WhatIf) -> Report:
        """Return the replay with room for everything: what is moved and waited for in any case."""
        room = max(self.trace.footprint_bytes, 1)
        return simulate(self.trace, what_if.at(room), "lru", lookahead=what_if.lookahead)

    def first_load_bytes(self, lookahead: int = 0) -> int:
        """Return the bytes that are moved at any budget: mostly the load of what is there from the start."""
        if lookahead not in self._first_load:
            self._first_load[lookahead] = self.resident(WhatIf(lookahead=lookahead)).moved_bytes
        return self._first_load[lookahead]

    def unit_seconds(self, compute: Compute | None) -> float:
        """Return the seconds of arithmetic per unit, the prompt of a generation left out."""
        if compute not in self._computed:
            self._computed[compute] = step_seconds(self.trace, compute)
        return float(self._computed[compute][self.units.first_step :].sum()) / self.units.count

    def per_unit(self, moved_bytes: int, lookahead: int = 0) -> int:
        """Return moved bytes per unit, without the first load."""
        beyond = moved_bytes - self.first_load_bytes(lookahead)
        return max(round(beyond / self.units.count), 0)


def facts_of(trace: Trace | MeasuredTrace) -> MeasuredTrace:
    """Return the facts of a trace, or those given."""
    return trace if isinstance(trace, MeasuredTrace) else MeasuredTrace(trace)


def workload_of(trace: Trace) -> Mapping[str, Any]:
    """Return the arguments that a synthetic trace was generated from; nothing for any other."""
    found = trace.meta.get("workload", {})
    return found if isinstance(found, Mapping) else {}


def _per_roles(trace: Trace) -> Per:
    roles = set(trace.roles)
    if roles & {"optimizer_state", "gradient"}:
        return "step"
    return "token" if "kv_cache" in roles else "pass"
