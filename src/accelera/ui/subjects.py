"""Subjects of jobs and runs in words: a stored trace's name, or a model and its mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelera.ui.connection import ask, service

MOST_TRACES = 200
_MODES = {"inference": "inference", "training": "training", "decode": "generation"}
KINDS = {
    "sweep": "Sweep",
    "advise": "Advice",
    "bounds": "Least bytes",
    "capture": "Capture",
    "estimate": "Estimate",
    "plan": "Plan",
    "curves": "Curves",
}
"""Kinds of jobs in words."""


def subject_of(request: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return what a request is about; ``names`` are those of stored traces by digest."""
    source, config = request.get("source"), request.get("config")
    if isinstance(source, str):
        return names.get(source, f"a trace that is deleted ({source[:8]})")
    if isinstance(source, Mapping):
        return _model(source)
    if isinstance(config, Mapping):
        made = config.get("_name_or_path") or config.get("model_type") or "a model"
        return ", ".join([str(made)[:60], *_sizes(request, "batch", "context")])
    return f"product of {request['a']} and {request['b']}" if "a" in request and "b" in request else ""


def _model(source: Mapping[str, Any]) -> str:
    known = {(each["num_layers"], each["hidden_size"]): each["name"] for each in ask("models")["models"]}
    layers = source.get("num_layers", 12)
    name = known.get((layers, source.get("hidden_size")))
    kind = str(source.get("model_type", "Transformer"))
    made = f"{name} model" if name and kind == "Transformer" else f"{kind} of {layers} layers"
    mode = _MODES.get(str(source.get("mode", "inference")), "")
    return ", ".join([made, mode, *_sizes(source, "batch_size", "seq_length")])


def _sizes(request: Mapping[str, Any], batch: str, context: str) -> list[str]:
    given = (("batch", request.get(batch)), ("context", request.get(context)))
    return [f"{word} {count}" for word, count in given if count]


def trace_names() -> dict[str, str]:
    """Return the names of stored traces by digest."""
    return {each.digest: each.name for each in service().traces(MOST_TRACES)}
