"""Work of jobs about models and products: estimates, plans and captures; loads torch when it is done.

Nothing is downloaded, unpickled or executed that a caller gave: see ``configuration``.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from accelera._offloaded_phases import OffloadedPhase, as_dict, offloads
from accelera._plotting import format_size
from accelera.errors import AcceleraError, ArgumentError, BudgetExceededError
from accelera.service.database import Database
from accelera.service.model_schemas import (
    Capturing,
    Estimating,
    ModelQuestion,
    OffloadPlanning,
    Planning,
    ProductPlanning,
)
from accelera.service.parser_process import facts_of
from accelera.service.problems import Problem, too_large
from accelera.service.trace_store import store

if TYPE_CHECKING:
    from accelera.plan import Plan
    from accelera.trace import Trace
import math
from collections.abc import Sequence
from typing import NoReturn, final

from accelera.stores import Store
from accelera.stores._internal import STAGING_BYTES_PER_THREAD, Layout, parse_dtype


@final
class Placeholder(Store):
    """An array of this shape as a ``.npy`` file would hold it; reading or writing it is an error."""

    tier = "disk"

    def __init__(self, name: str, shape: Sequence[int], dtype: str) -> None:
        self.name = name
        self.shape = tuple(shape)
        self.dtype = parse_dtype(dtype)

    def read(self, *_: Any) -> NoReturn:
        """Raise: there is nothing to read."""
        raise AssertionError("a plan reads nothing")

    def write(self, *_: Any) -> NoReturn:
        """Raise: there is nowhere to write."""
        raise AssertionError("a plan writes nothing")

    @property
    def layout(self) -> Layout:
        """Rows one after the other."""
        sizes = (*self.shape[1:], 1)
        strides = [self.dtype.itemsize * math.prod(sizes[axis:]) for axis in range(self.ndim)]
        return Layout.of_strides(self.shape, strides, self.dtype.itemsize)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of staging memory that a flat file needs for each thread that reads or writes it."""
        return STAGING_BYTES_PER_THREAD


OnProgress = Callable[[float, str], None]


def estimate_model(_: Database, body: Mapping[str, Any], on_progress: OnProgress) -> Any:
    """Return the memory that a model needs, as ``accelera estimate --json`` reports it."""
    request = Estimating.model_validate(body)
    optimizer = _optimizer_name(request.optimizer)
    with _config_file(request, on_progress) as path:
        from accelera.estimate import estimate

        found = estimate(
            path,
            batch=request.batch,
            context=request.context,
            dtypes=request.dtypes,
            train={"both": None, "inference": False, "training": True}[request.mode],
            optimizer=optimizer,
            budget=request.budget,
        )
        planned = []
        for each in offloads(found, optimizer):
            planned.append(each)
            on_progress(0.6, f"planned {each.phase.name} in {each.phase.dtype}")
        highest = max(found.phases, key=lambda phase: phase.peak_bytes)
        return {
            "headline": f"{found.model} takes at most {format_size(highest.peak_bytes)}, "
            f"for {highest.name} in {highest.dtype}",
            "explanation": found.explain(),
            **as_dict(found, planned),
        }


def plan(_: Database, body: Mapping[str, Any], on_progress: OnProgress) -> Any:
    """Return how a product or an offloaded model would run within a budget, or why it would not."""
    request = TypeAdapter(Planning).validate_python(body)
    return (
        _plan_offload(request, on_progress)
        if isinstance(request, OffloadPlanning)
        else _plan_product(request)
    )


def capture_model(database: Database, body: Mapping[str, Any], on_progress: OnProgress) -> Any:
    """Trace a model on fake tensors, which have shapes and no data; store the trace and return its record."""
    request = Capturing.model_validate(body)
    with _config_file(request, on_progress, dtype=request.dtype) as path:
        trace = _capture_trace(request, path)
    most = database.limits.stored_accesses
    if trace.access_count > most:
        raise too_large("accesses of the trace", trace.access_count, most, "take fewer layers or steps")
    on_progress(0.8, f"storing {trace.access_count:,} accesses")
    with tempfile.TemporaryDirectory(prefix="accelera-capture-") as folder:
        from accelera.trace import write_trace

        file = Path(folder) / "trace.parquet"
        write_trace(trace, file, "parquet")
        found, _ = store(database, _title(request, trace), facts_of(trace), file.read_bytes())
    size = format_size(found["footprint_bytes"])
    return {"headline": f"{found['name']}: {found['accesses']:,} accesses of {size}", **found}


def _capture_trace(request: Capturing, path: str) -> Trace:
    from accelera.capture import capture
    from accelera.estimate._internal import subject_of

    subject = subject_of(path, None, request.batch, request.context)
    if request.generate_tokens and not subject.generates:
        raise ArgumentError(f"[capture] a {subject.name} does not generate tokens; leave generate_tokens out")
    inputs = (
        subject.prompt() if request.generate_tokens else subject.inputs(train=request.training, dtype=None)
    )
    return capture(
        subject.module,
        inputs,
        train=request.training,
        steps=1 if request.generate_tokens else request.steps,
        optimizer=_optimizer_name(request.optimizer),
        fake=True,
        generate_tokens=request.generate_tokens,
    )


def _title(request: Capturing, trace: Trace) -> str:
    what = "training" if request.training else "generation" if request.generate_tokens else "inference"
    context = f", context {request.context}" if request.context else ""
    name = "".join(each if each.isprintable() and each not in "/\\" else "_" for each in trace.model_type)
    return f"{name[:100]} {what}, batch {request.batch}{context}"


def _plan_product(request: ProductPlanning) -> Any:
    from accelera.engine import MatrixEngine

    with tempfile.TemporaryDirectory(prefix="accelera-plan-") as folder:  # nothing is written into it
        engine = MatrixEngine("cpu", enable_progress=False, policy=request.policy)
        out = str(Path(folder) / "C.npy") if request.out == "disk" else None
        operands = (Placeholder("A", request.a, request.dtype), Placeholder("B", request.b, request.dtype))
        try:
            found_plan = engine.plan(*operands, out=out, budget=request.budget, objective=request.objective)
        except BudgetExceededError as refusal:
            return _no_fit_json(request, refusal)
        return _plan_json(found_plan, found_plan.explain().replace(folder + os.sep, ""))


def _plan_offload(request: OffloadPlanning, on_progress: OnProgress) -> Any:
    optimizer = _optimizer_name(request.optimizer)
    with _config_file(
        request, on_progress, dtype=None if request.dtype == "mixed" else request.dtype
    ) as path:
        from accelera.estimate import estimate

        config_dtype = request.config.get("dtype") or request.config.get("torch_dtype") or "float32"
        found = estimate(
            path,
            batch=request.batch,
            context=request.context,
            dtypes=[request.dtype or config_dtype],
            train=request.train,
            optimizer=optimizer,
        )
        name = "training" if request.train else "inference"
        phase = found.phase(name)
        on_progress(0.5, f"planning {name}")
        offloaded = OffloadedPhase.planned(phase, request.budget, optimizer)
    if offloaded.plan is None:
        return _no_fit_json(request, offloaded.refusal)
    return _plan_json(offloaded.plan, str(offloaded.plan))


def _plan_json(found_plan: Plan | Any, explanation: str) -> dict[str, Any]:
    peak = (
        found_plan.peak_bytes
        if isinstance(found_plan.peak_bytes, int)
        else max(found_plan.peak_bytes.values())
    )
    return {
        "fits": True,
        "headline": explanation.partition("\n")[0],
        "peak_bytes": peak,
        "plan": found_plan.to_dict(),
        "explanation": explanation,
    }


def _no_fit_json(request: ProductPlanning | OffloadPlanning, refusal: Exception | None) -> dict[str, Any]:
    """Return the reply when no plan fits the budget; raises ArgumentError for any other refusal."""
    if not isinstance(refusal, BudgetExceededError):
        raise ArgumentError(str(refusal)) from refusal
    return {
        "fits": False,
        "headline": f"no plan fits {request.budget}",
        "needed_bytes": refusal.needed_bytes,
        "refused": str(refusal),
    }


@contextmanager
def _config_file(request: ModelQuestion, on_progress: OnProgress, dtype: str | None = None) -> Iterator[str]:
    """Yield the path of a file with the configuration; errors of its model become ArgumentError."""
    on_progress(0.05, "loading torch")
    from huggingface_hub import constants
    from transformers.utils import logging

    constants.HF_HUB_OFFLINE = True  # read at every request; the environment variable only at import
    quiet: Any = logging.set_verbosity_error
    quiet()
    config = {**request.config, **({} if dtype is None else {"dtype": dtype, "torch_dtype": dtype})}
    with tempfile.TemporaryDirectory(prefix="accelera-model-") as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        on_progress(0.1, f"following a {config['model_type']}"[:200])
        _check_type(config["model_type"])
        try:
            yield str(path)
        except Exception as error:
            raise _as_refusal(error, str(path)) from error


def _as_refusal(error: Exception, path: str) -> Exception:
    cause = error.__cause__
    if isinstance(error, ArgumentError) and isinstance(cause, Exception):
        # Checks of fields raise classes of their own, which name the field and the reason.
        error = error if isinstance(cause, (OSError, ValueError, KeyError)) else cause
    message = str(error).replace(path, "the configuration").strip()
    if isinstance(error, Problem):
        return error
    if isinstance(error, AcceleraError) or (message.startswith("[") and "pip install" not in message):
        return ArgumentError(message[:2000])
    return ArgumentError(f"[model] the configuration makes no model: {_short_reason(error, message)}")


def _short_reason(error: Exception, message: str) -> str:
    """Return the line of a library's message that says what is wrong, without advice to install packages."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    line = lines[-1] if type(error).__name__.startswith("StrictDataclass") else lines[0]
    reason = re.sub(r"^\w+(Error|Exception): ", "", line).partition("pip install")[0][:500]
    if isinstance(error, KeyError):
        reason = f"no {reason} is known"
    return f"{reason.rstrip('. ')}; correct the sizes and names in it"


def _check_type(name: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if name not in CONFIG_MAPPING:
        near = difflib.get_close_matches(name, CONFIG_MAPPING.keys(), n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "give one that it knows"
        raise ArgumentError(
            f"[model] the model_type {name[:100]!r} is not among those that transformers knows here; {hint}"
        )


def _optimizer_name(name: str) -> str | None:
    return None if name == "none" else name
