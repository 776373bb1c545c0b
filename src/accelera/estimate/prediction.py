"""``predict_compile``: one call from a model, a trace or a source text to what compiling would bring."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, overload

from accelera._extras import require
from accelera.capture import capture
from accelera.errors import ArgumentError
from accelera.memory import Compute, Hierarchy, Tier
from accelera.simulator._internal import CompilePrediction, SourcePrediction, predict_source, predict_trace
from accelera.trace import Trace

if TYPE_CHECKING:
    import torch


LOCAL = "local"
"""This machine, among the names of machines."""
ROUNDS = 15
"""Number of timed rounds of a module's step."""
MakeInputs = Callable[[int, int], Any]


@overload
def predict_compile(
    program: str, *, opt_level: str = "O2", model_type: str = "", language: str = "python"
) -> SourcePrediction: ...


@overload
def predict_compile(
    program: Trace | torch.nn.Module | Callable[[], torch.nn.Module],
    inputs: Any = None,
    *,
    hierarchy: Hierarchy | str = "gpu-24gb",
    budgets: Sequence[int | float | str] | None = None,
    optimizer: bool = False,
    batch: int | None = None,
    context: int | None = None,
    make_trace: Callable[[int, int], Trace] | None = None,
    make_inputs: MakeInputs | None = None,
    **recording: Any,
) -> CompilePrediction: ...


def predict_compile(program: Any, inputs: Any = None, **options: Any) -> CompilePrediction | SourcePrediction:
    """Predict what a fusing compiler would make of a program, and how it fits memory budgets.

    Parameters
    ----------
    program
        A source text: read, never run. A ``Trace``. A PyTorch module, or a function that builds one: it is
        captured first.
    inputs
        For a module: its inputs, as ``capture`` takes them.
    opt_level, model_type, language
        For a source text: ``O0`` to ``O3``; what the text is; its language, of which only Python is parsed.
    hierarchy
        A machine with an arithmetic speed, a name of ``accelera.simulator.HIERARCHIES``, or ``"local"``: this
        machine, whose speeds are measured once, and on which a real module's step is timed.
    budgets
        Sizes such as ``"16GB"``, or shares of the peak such as ``"60%"``. By default the machine's capacity
        for the verdict, and 100 % to 30 % of the peak for plans.
    optimizer
        Whether the optimizer's step is compiled too; ``torch.compile(model)`` leaves it.
    batch, context
        What the trace was made with, or what to start from; they are scaled to the largest that fit.
    make_trace
        From a batch and a context to a trace: the largest that fit are found by bisection over new traces.
    make_inputs
        From a batch and a context to a module's inputs: the same, by capturing shapes only. ``inputs`` may
        then be left out.
    recording
        More for ``capture``: ``train``, ``steps``, ``loss``, ``dtype`` …

    Returns
    -------
    CompilePrediction or SourcePrediction
        Every number in it says its unit and whether it was ``measured``, is ``analytic`` or ``learned``;
        ``to_dict()``, ``table()``, ``explain()``.

    Raises
    ------
    ProgramSyntaxError
        A source text that is no Python; the message names the line.
    UnknownNameError
        No such machine or level.
    ValueError
        An empty trace, a budget that is no size, a machine that does not say how fast it computes.
    TypeError
        A program of another kind, or a module without inputs.
    """
    if isinstance(program, str):
        return predict_source(program, **options)
    if isinstance(program, Trace):
        return predict_trace(program, **_with_local_machine(options))
    if not callable(program):
        raise ArgumentError(
            f"[predict_compile] program is a {type(program).__name__}; give source text, a Trace, a module "
            "or a function that builds one"
        )
    return _predict_module(program, inputs, **options)


_PREDICTION_OPTIONS = ("hierarchy", "budgets", "optimizer", "batch", "context", "make_trace")


def _predict_module(
    model: Any, inputs: Any, *, make_inputs: MakeInputs | None = None, **options: Any
) -> CompilePrediction:
    predicting = {name: options.pop(name) for name in _PREDICTION_OPTIONS if name in options}
    batch, context = predicting.get("batch") or 1, predicting.get("context") or 1
    require("predict_compile", "torch")
    import torch

    from accelera.capture._internal import is_on_meta

    if inputs is None and make_inputs is None:
        raise ArgumentError(
            "[predict_compile] a module needs inputs=, or make_inputs= with batch and context"
        )
    if make_inputs is not None:
        predicting.setdefault("make_trace", _trace_maker(model, make_inputs, options))
        inputs = make_inputs(batch, context) if inputs is None else inputs
    if predicting.get("hierarchy") == LOCAL and isinstance(model, torch.nn.Module) and not is_on_meta(model):
        options = {"timed": 0 if options.get("fake") or options.get("generate_tokens") else ROUNDS, **options}
    return predict_trace(capture(model, inputs, **options), **_with_local_machine(predicting))


def _with_local_machine(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with this machine's speeds where it is meant."""
    if options.get("hierarchy") != LOCAL:
        return options
    require("predict_compile", "torch", otherwise="or give a Hierarchy with a Compute")

    return {**options, "hierarchy": local_machine()}


def _trace_maker(model: Any, make_inputs: MakeInputs, options: dict[str, Any]) -> Callable[[int, int], Trace]:
    def make_trace(batch: int, context: int) -> Trace:
        shapes_only = {**options, "fake": True, "names": False}
        return capture(model, lambda: make_inputs(batch, context), **shapes_only)

    return make_trace


_ROUNDS = 7
_MEMORY_BYTES, _DISK_BYTES = 1 << 33, 1 << 40
_DISK_BYTES_PER_S = 2e9


def _tiny_block() -> torch.nn.Module:
    """Return a residual feed-forward block too small for arithmetic to matter."""
    from torch import nn

    class TinyBlock(nn.Module):
        def __init__(self, width: int = 8) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.norm = nn.LayerNorm(width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.norm(x + self.down(nn.functional.gelu(self.up(x))))
            return y.square().mean()

    return TinyBlock()


@cache
def local_machine(*, small: bool = False) -> Hierarchy:
    """Return this CPU: arithmetic of a product, bandwidth of a sum, start of an operation.

    A start is what a step of training costs when its tensors are tiny, per operation: torch's dispatch,
    Python and autograd together. Takes a fraction of a second, once per process; ``small`` is for tests.
    """
    import torch

    from accelera.capture._internal import quickest_s

    edge, length = (128, 1 << 16) if small else (1024, 1 << 24)
    with torch.no_grad():
        left, right, long = torch.randn(edge, edge), torch.randn(edge, edge), torch.randn(length)
        flops_per_s = 2 * edge**3 / quickest_s(lambda: left @ right, _ROUNDS)
        bytes_per_s = 12 * length / quickest_s(lambda: torch.add(long, long, out=long), _ROUNDS)
    tiers = Tier("local", _MEMORY_BYTES, math.inf), Tier("disk", _DISK_BYTES, _DISK_BYTES_PER_S)
    return Hierarchy(tiers, Compute(flops_per_s, bytes_per_s, _start_s(3 if small else 50)))


def _start_s(rounds: int) -> float:
    import torch

    trace = capture(_tiny_block(), torch.randn(2, 8), optimizer=None, timed=rounds)
    return float(trace.meta["measured_s"]) / trace.step_count
