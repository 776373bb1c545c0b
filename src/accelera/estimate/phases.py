"""Phases of a model, captured by their shapes one by one in each element type."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from accelera.capture import capture
from accelera.capture._internal import unlogged_errors
from accelera.errors import ArgumentError
from accelera.estimate.element_types import ElementType, element_type, float8_layers, own_type, twin
from accelera.estimate.report import Estimate, Phase
from accelera.estimate.subject import Subject, kv_bytes_per_token
from accelera.trace import Occupancy, Trace

_ITERATIONS = 2
"""In the second the optimizer's state is there from the start."""


@dataclass(frozen=True)
class EstimateOptions:
    """Options of an estimate; see ``estimate``."""

    dtypes: tuple[str, ...] | None
    train: bool | None
    optimizer: Any
    loss: Callable[[Any], torch.Tensor] | None
    keep_outputs: bool | None = None

    @property
    def optimizer_name(self) -> str:
        """The optimizer's name, for people."""
        if self.optimizer is None:
            return "none"
        return self.optimizer if isinstance(self.optimizer, str) else "of the caller's own"

    def element_types(self, module: torch.nn.Module) -> list[ElementType]:
        """Return the element types, the model's own as it is."""
        own = ElementType(own_type(module), getattr(torch, own_type(module)), lambda _: None)
        named = self.dtypes or ("float32", "bfloat16", *(["float8"] if float8_layers(module) else []))
        others = [element_type(name) for name in dict.fromkeys(named)]
        if self.dtypes is None:
            return [own, *(each for each in others if each.name != own.name)]
        return [own if each.name == own.name else each for each in others]


class _PhaseRun(NamedTuple):
    """A phase still to be captured."""

    name: str
    inputs: Any
    record: Callable[[], Trace]


def estimated(subject: Subject, wanted: EstimateOptions, budget_bytes: int | None) -> Estimate:
    """Capture every phase that is wanted; a failure of all of them raises, that of some is noted."""
    phases: list[Phase] = []
    refused: list[tuple[str, Exception]] = []
    for kind in wanted.element_types(subject.module):
        module = twin(subject.module)
        kind.prepare(module)
        for run in _phase_runs(subject, module, kind, wanted):
            try:
                with unlogged_errors():
                    record = run.record()
            except (RuntimeError, TypeError, ValueError) as error:
                reason = str(error).strip().partition("\n")[0]
                refused.append((f"{run.name} in {kind.name} could not be followed: {reason}", error))
            else:
                phases.append(phase_of(record, run.name, kind.name, (module, run.inputs)))
    if not phases and refused:
        raise refused[0][1]
    return Estimate(
        model=subject.name,
        parameters=sum(each.numel() for each in subject.module.parameters()),
        batch=subject.batch,
        context=subject.context,
        optimizer=wanted.optimizer_name,
        kv_bytes_per_token=_kv_bytes_per_token(subject, phases),
        phases=tuple(phases),
        budget_bytes=budget_bytes,
        notes=tuple(note for note, _ in refused),
    )


def _phase_runs(
    subject: Subject, module: torch.nn.Module, kind: ElementType, wanted: EstimateOptions
) -> Iterator[_PhaseRun]:
    """Yield the requested phases that ``module`` supports."""
    given = None if kind.name == own_type(subject.module) else kind.computes
    if wanted.train is not True:
        inputs = subject.inputs(train=False, dtype=given)
        how = {"steps": _ITERATIONS if wanted.keep_outputs else 1, "keep_outputs": wanted.keep_outputs}
        options: dict[str, Any] = {"train": False, "fake": True, "workspaces": True, **how}
        yield _PhaseRun("inference", inputs, partial(capture, module, inputs, **options))
        if subject.generates:
            yield _PhaseRun("generation", subject.prompt(), partial(_generation, subject, module))
    if wanted.train is not False and kind.trains:
        inputs = subject.inputs(train=True, dtype=given)
        options = {
            "steps": _ITERATIONS,
            "loss": wanted.loss,
            "optimizer": wanted.optimizer,
            "keep_outputs": wanted.keep_outputs,
            "workspaces": True,
        }
        yield _PhaseRun("training", inputs, partial(capture, module, inputs, fake=True, **options))


def _generation(subject: Subject, module: torch.nn.Module) -> Trace:
    """Capture a prompt and a token more; raises ValueError where a model keeps no cache of that kind."""
    tokens = 1 if subject.context == 1 else 2
    try:
        return capture(module, subject.prompt(), train=False, fake=True, generate_tokens=tokens)
    except (AttributeError, TypeError) as error:
        raise ArgumentError(f"[estimate] decoding with a key-value cache fails: {error}") from error


def _kv_bytes_per_token(subject: Subject, phases: list[Phase]) -> dict[str, int]:
    """Return what the cache takes per token and row: as captured, else by the usual formula."""
    if not subject.generates:
        return {}
    captured = {each.dtype: each.trace for each in phases if each.name == "generation"}
    prompt = subject.prompt()["input_ids"].numel()
    found = {
        each.dtype: _cached_bytes(captured[each.dtype]) // prompt
        if each.dtype in captured
        else kv_bytes_per_token(subject.module.config, _itemsize(each.dtype))
        for each in phases
        if each.name == "inference"
    }
    return {dtype: size for dtype, size in found.items() if size}


def _cached_bytes(trace: Trace) -> int:
    """Return what the cache takes after the prompt."""
    ends = [*trace.meta["iterations"][1:], trace.step_count]
    inside = np.flatnonzero(trace.step < ends[0])
    return int(Occupancy(trace).after_events("kv_cache")[inside].max())


def _itemsize(name: str) -> int:
    return element_type(name).computes.itemsize


ROLES = ("weights", "inputs", "activations", "kv_cache", "gradients", "optimizer_state", "temporaries")
"""In the order of tables: gradients are those of weights; temporaries are what a backward pass and an
optimizer make and drop."""

_BY_TRACE_ROLE = {
    "weight": "weights",
    "input": "inputs",
    "activation": "activations",
    "kv_cache": "kv_cache",
    "optimizer_state": "optimizer_state",
}
_LARGEST = 5


def phase_of(trace: Trace, name: str, dtype: str, subject: tuple[Any, Any]) -> Phase:
    """Return what the captured ``trace`` of ``subject`` takes, weights that it never touches included."""
    by_role = _with_roles(trace)
    alive = Occupancy(by_role)
    idle = {"weights": int(trace.meta["idle_bytes"])}
    return Phase(
        name=name,
        dtype=dtype,
        most={role: _most_bytes(alive, role) + idle.get(role, 0) for role in ROLES},
        at_peak=_sum_by_role(alive.peak_by_role(), idle),
        peak_bytes=alive.peak_bytes + idle["weights"],
        peak_op=by_role.ops[by_role.step[alive.peak_event]] if alive.peak_event >= 0 else "",
        largest=tuple((each.name, each.size_bytes) for each in alive.top_live(_LARGEST)),
        outputs_bytes=int(trace.meta.get("outputs_bytes", 0)),
        trace=trace,
        subject=subject,
    )


def _with_roles(trace: Trace) -> Trace:
    roles = [_role(*each) for each in zip(trace.roles, trace.names, strict=True)]
    return dataclasses.replace(trace, roles=tuple(roles))


def _role(role: str, name: str) -> str:
    if role == "gradient" and name.endswith(".grad"):
        return "gradients"
    return _BY_TRACE_ROLE.get(role, "temporaries")


def _most_bytes(alive: Occupancy, role: str) -> int:
    trace = alive.trace
    at_start = np.where(np.array(trace.roles) == role, trace.size_bytes, 0)[alive.at_start].sum()
    return int(alive.after_events(role).max(initial=at_start)) if len(trace) else 0


def _sum_by_role(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {role: first.get(role, 0) + second.get(role, 0) for role in ROLES}
