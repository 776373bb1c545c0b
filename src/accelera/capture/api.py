"""``capture`` and ``capture_script``: one call from a model or script to its trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accelera._extras import require
from accelera.capture.program import UserProgram
from accelera.trace import Occupancy, Trace

if TYPE_CHECKING:
    import torch


def capture(
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    inputs: Any,
    train: bool = True,
    *,
    steps: int = 1,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Any = "adamw",
    fake: bool | None = None,
    dtype: torch.dtype | str | None = None,
    names: bool = True,
    generate_tokens: int = 0,
    keep_outputs: bool | None = None,
    workspaces: bool = False,
    timed: int = 0,
) -> Trace:
    """Record every tensor access of a PyTorch model.

    The model, its gradients, an optimizer that is given and torch's random state are left as they were;
    training a real model keeps a copy of its weights meanwhile.

    Parameters
    ----------
    model
        A module, or a function that builds one.
    inputs
        A tensor, a tuple of arguments, a dictionary of named ones, or a function that makes any of these.
    train
        Whether to record training (forward, loss, backward, optimizer) or inference without gradients.
    steps
        Iterations.
    loss
        From the model's outputs to a scalar; by default the loss that the outputs carry, else the mean of
        their logits or of the first tensor.
    optimizer
        ``"adamw"``, ``"adam"``, ``"sgd"``, a function from parameters to an optimizer, an optimizer, or None
        for no optimizer step.
    fake
        Whether to follow shapes only, with no memory for weights and no arithmetic. By default so for a
        model on ``meta`` and for a function that builds one.
    dtype
        Element type that the model and the inputs are built in, where functions build them.
    names
        Whether activations are named after the module that makes them.
    generate_tokens
        With ``train=False``: decode that many tokens with a key-value cache, as ``transformers`` does.
    keep_outputs
        Whether what the model returns is kept: in training until the optimizer's step is done, as after
        ``outputs = model(...)``, in inference until the next pass has returned. By default in training only.
    workspaces
        Whether what torch's kernels for the CPU allocate while they compute counts, where it is known: a
        buffer that lives for one step.
    timed
        How many times the same is run again, with nothing recorded, to see how long it takes:
        ``meta["measured_s"]`` is the quickest round, in CPU time where torch has one thread. For real models.

    Returns
    -------
    Trace
        A step per operator. ``meta`` says where iterations begin (``iterations``), the most bytes alive at
        once (``peak_live_bytes``), the bytes of weights that were never touched (``idle_bytes``), those of
        what the model returned (``outputs_bytes``), and what was run.

    Raises
    ------
    UnknownNameError
        An optimizer's name that is not known.
    ValueError
        ``steps`` below 1, or arguments that contradict each other.
    BackendMissingError
        torch is not installed.
    """
    require("capture", "torch")
    from accelera.capture.request import CaptureRequest

    request = CaptureRequest(
        model=model,
        inputs=inputs,
        train=train,
        steps=steps,
        loss=loss,
        optimizer=optimizer,
        fake=fake,
        dtype=dtype,
        names=names,
        generate_tokens=generate_tokens,
        keep_outputs=keep_outputs,
        workspaces=workspaces,
        timed=timed,
    )
    return request.run()


def live_bytes(trace: Trace) -> NDArray[np.int64]:
    """Return the bytes alive after each event, shape (events,); see ``accelera.trace.Occupancy``.

    Parameters
    ----------
    trace
        The accesses, in order.
    """
    return Occupancy(trace).after_events()


def peak_live_bytes(trace: Trace) -> int:
    """Return the most bytes alive at once.

    Parameters
    ----------
    trace
        The accesses, in order.
    """
    return Occupancy(trace).peak_bytes


class CapturedScript(NamedTuple):
    """Result of a captured script: its trace, and how it ended."""

    trace: Trace
    """Every tensor access that it made."""
    error: BaseException | None
    """What it raised, ``SystemExit`` and ``KeyboardInterrupt`` too; None when it ran to its end."""


def capture_script(path: str | Path, arguments: Sequence[str] = (), *, names: bool = True) -> CapturedScript:
    """Run a Python script as ``__main__`` and record every tensor access it makes.

    Parameters
    ----------
    path
        The script.
    arguments
        Its ``sys.argv[1:]``.
    names
        Whether activations are named after the module that makes them.

    Returns
    -------
    CapturedScript
        The trace, also of a script that failed, and what it raised.
    """
    require("capture_script", "torch")
    from accelera.capture.recording import OperatorRecording

    recording = OperatorRecording(names=names, follow_optimizer=True)
    with recording:
        error = UserProgram("file", str(path), tuple(arguments)).run()
    trace = recording.trace(model_type=Path(path).stem, script=Path(path).name, fake=False)
    return CapturedScript(trace.with_meta(peak_live_bytes=peak_live_bytes(trace)), error)
