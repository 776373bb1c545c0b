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

from accelera.errors import AcceleraError, ArgumentError, BudgetExceededError
from accelera.offloaded_phases import OffloadedPhase, as_dict, offloads
from accelera.plotting import format_size
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

from accelera.stores import STAGING_BYTES_PER_THREAD, Layout, Store, parse_dtype


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
        """What a flat file takes of each thread that reads or writes it."""
        return STAGING_BYTES_PER_THREAD


Tell = Callable[[float, str], None]


def estimate_model(_: Database, request: Mapping[str, Any], tell: Tell) -> Any:
    """Return what a model takes in memory, as ``accelera estimate --json`` tells it."""
    asked = Estimating.model_validate(request)
    trainer = _trainer(asked.optimizer)
    with _followed(asked, tell) as path:
        from accelera.estimate import estimate

        found = estimate(
            path,
            batch=asked.batch,
            context=asked.context,
            dtypes=asked.dtypes,
            train={"both": None, "inference": False, "training": True}[asked.mode],
            optimizer=trainer,
            budget=asked.budget,
        )
        planned = []
        for each in offloads(found, trainer):
            planned.append(each)
            tell(0.6, f"planned {each.phase.name} in {each.phase.dtype}")
        highest = max(found.phases, key=lambda phase: phase.peak_bytes)
        return {
            "headline": f"{found.model} takes at most {format_size(highest.peak_bytes)}, "
            f"for {highest.name} in {highest.dtype}",
            "explanation": found.explain(),
            **as_dict(found, planned),
        }


def plan(_: Database, request: Mapping[str, Any], tell: Tell) -> Any:
    """Return how a product or an offloaded model would run within a budget, or why it would not."""
    asked = TypeAdapter(Planning).validate_python(request)
    return _planned_offload(asked, tell) if isinstance(asked, OffloadPlanning) else _planned_product(asked)


def capture_model(database: Database, request: Mapping[str, Any], tell: Tell) -> Any:
    """Follow a model by its shapes, store the trace, and return what is known of it."""
    asked = Capturing.model_validate(request)
    with _followed(asked, tell, dtype=asked.dtype) as path:
        trace = _captured(asked, path)
    most = database.limits.stored_accesses
    if trace.access_count > most:
        raise too_large("accesses of the trace", trace.access_count, most, "take fewer layers or steps")
    tell(0.8, f"storing {trace.access_count:,} accesses")
    with tempfile.TemporaryDirectory(prefix="accelera-capture-") as folder:
        from accelera.trace import write_trace

        file = Path(folder) / "trace.parquet"
        write_trace(trace, file, "parquet")
        found, _ = store(database, _title(asked, trace), facts_of(trace), file.read_bytes())
    size = format_size(found["footprint_bytes"])
    return {"headline": f"{found['name']}: {found['accesses']:,} accesses of {size}", **found}


def _captured(asked: Capturing, path: str) -> Trace:
    from accelera.capture import capture
    from accelera.estimate import subject_of

    subject = subject_of(path, None, asked.batch, asked.context)
    if asked.generate_tokens and not subject.generates:
        raise ArgumentError(f"[capture] a {subject.name} does not generate tokens; leave generate_tokens out")
    given = subject.prompt() if asked.generate_tokens else subject.inputs(train=asked.training, dtype=None)
    return capture(
        subject.module,
        given,
        train=asked.training,
        steps=1 if asked.generate_tokens else asked.steps,
        optimizer=_trainer(asked.optimizer),
        fake=True,
        generate_tokens=asked.generate_tokens,
    )


def _title(asked: Capturing, trace: Trace) -> str:
    what = "training" if asked.training else "generation" if asked.generate_tokens else "inference"
    context = f", context {asked.context}" if asked.context else ""
    name = "".join(each if each.isprintable() and each not in "/\\" else "_" for each in trace.model_type)
    return f"{name[:100]} {what}, batch {asked.batch}{context}"


def _planned_product(asked: ProductPlanning) -> Any:
    from accelera.engine import MatrixEngine

    with tempfile.TemporaryDirectory(prefix="accelera-plan-") as folder:  # nothing is written into it
        engine = MatrixEngine("cpu", enable_progress=False, policy=asked.policy)
        out = str(Path(folder) / "C.npy") if asked.out == "disk" else None
        operands = (Placeholder("A", asked.a, asked.dtype), Placeholder("B", asked.b, asked.dtype))
        try:
            found = engine.plan(*operands, out=out, budget=asked.budget, objective=asked.objective)
        except BudgetExceededError as refusal:
            return _refused(asked, refusal)
        return _fitting(found, found.explain().replace(folder + os.sep, ""))


def _planned_offload(asked: OffloadPlanning, tell: Tell) -> Any:
    trainer = _trainer(asked.optimizer)
    with _followed(asked, tell, dtype=None if asked.dtype == "mixed" else asked.dtype) as path:
        from accelera.estimate import estimate

        own = asked.config.get("dtype") or asked.config.get("torch_dtype") or "float32"
        found = estimate(
            path,
            batch=asked.batch,
            context=asked.context,
            dtypes=[asked.dtype or own],
            train=asked.train,
            optimizer=trainer,
        )
        name = "training" if asked.train else "inference"
        phase = found.phase(name)
        tell(0.5, f"planning {name}")
        done = OffloadedPhase.planned(phase, asked.budget, trainer)
    if done.plan is None:
        return _refused(asked, done.refusal)
    return _fitting(done.plan, str(done.plan))


def _fitting(found: Plan | Any, explanation: str) -> dict[str, Any]:
    peak = found.peak_bytes if isinstance(found.peak_bytes, int) else max(found.peak_bytes.values())
    return {
        "fits": True,
        "headline": explanation.partition("\n")[0],
        "peak_bytes": peak,
        "plan": found.to_dict(),
        "explanation": explanation,
    }


def _refused(asked: ProductPlanning | OffloadPlanning, refusal: Exception | None) -> dict[str, Any]:
    """Return the answer to what does not fit; raises any other refusal."""
    if not isinstance(refusal, BudgetExceededError):
        raise ArgumentError(str(refusal)) from refusal
    return {
        "fits": False,
        "headline": f"no plan fits {asked.budget}",
        "needed_bytes": refusal.needed_bytes,
        "refused": str(refusal),
    }


@contextmanager
def _followed(asked: ModelQuestion, tell: Tell, dtype: str | None = None) -> Iterator[str]:
    """Return the path of a configuration's file; what building or following its model raises is a refusal."""
    tell(0.05, "loading torch")
    from huggingface_hub import constants
    from transformers.utils import logging

    constants.HF_HUB_OFFLINE = True  # looked at with every request; the variable only when it is imported
    quiet: Any = logging.set_verbosity_error
    quiet()
    config = {**asked.config, **({} if dtype is None else {"dtype": dtype, "torch_dtype": dtype})}
    with tempfile.TemporaryDirectory(prefix="accelera-model-") as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        tell(0.1, f"following a {config['model_type']}"[:200])
        _check_type(config["model_type"])
        try:
            yield str(path)
        except Exception as error:
            raise _as_refusal(error, str(path)) from error


def _as_refusal(error: Exception, path: str) -> Exception:
    said = str(error).replace(path, "the configuration").strip()
    if isinstance(error, Problem):
        return error
    if isinstance(error, AcceleraError) or (said.startswith("[") and "pip install" not in said):
        return ArgumentError(said[:2000])
    return ArgumentError(f"[model] the configuration makes no model: {_plain(error, said)}")


def _plain(error: Exception, said: str) -> str:
    """Return the one line of a library's message that says what is wrong, without its advice to install."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or [""]
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


def _trainer(name: str) -> str | None:
    return None if name == "none" else name
