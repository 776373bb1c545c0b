"""``estimate``: one call from a model to the memory it takes, before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from accelera._extras import require
from accelera.estimate.report import Estimate
from accelera.memory._internal import host_memory
from accelera.units import parse_limit

if TYPE_CHECKING:
    import torch


def estimate(
    model: Any,
    inputs: Any = None,
    *,
    batch: int | None = None,
    context: int | None = None,
    dtypes: Sequence[str] | None = None,
    train: bool | None = None,
    optimizer: Any = "adamw",
    loss: Callable[[Any], torch.Tensor] | None = None,
    keep_outputs: bool | None = None,
    budget: int | float | str | None = None,
) -> Estimate:
    """Predict what a PyTorch model takes in memory, by role, phase and element type.

    The model is followed by its shapes only: no weight is allocated and nothing is computed, but every
    tensor is counted from the moment it is made to the moment torch gives it back.

    Parameters
    ----------
    model
        A module; a function that builds one, or a pair of module and inputs; a configuration of
        ``transformers``, or the path of a ``config.json`` or of the folder that it is in.
    inputs
        As ``capture`` takes them. Text and image models of ``transformers`` make their own.
    batch
        Rows at once, where inputs are made; 1 by default.
    context
        Tokens per row, where inputs are made; by default the model's own limit, at most 2048.
    dtypes
        ``"float32"``, ``"bfloat16"``, ``"float16"``, ``"float64"``; ``"mixed"`` keeps float32 and computes
        under autocast in bfloat16; ``"float8"`` keeps the weights of linear layers in float8 and computes
        inference in bfloat16. By default the model's own type, then float32, bfloat16 and, where there are
        such layers, float8.
    train
        True for training alone, False for inference alone; both by default. Causal language models of
        ``transformers`` also generate: a prompt of ``context - 1`` tokens, then one more with the cache.
    optimizer
        ``"adamw"``, ``"adam"``, ``"sgd"``, a function from parameters to an optimizer, or None.
    loss
        From the model's outputs to a scalar; by default as ``capture`` finds it.
    keep_outputs
        Whether the loop keeps what the model returns: in training through the backward pass and the step
        (``outputs = model(...)``, and not ``loss = model(...).loss``), in inference until the next pass has
        returned (``for batch in batches: outputs = model(batch)``). By default in training only;
        ``Phase.outputs_bytes`` says how much that holds.
    budget
        Memory to compare with, such as ``"16GB"``; a fraction such as ``"50%"`` or ``0.5`` is one of this
        machine's memory.

    Returns
    -------
    Estimate
        A ``Phase`` per phase and element type; ``table()``, ``explain()``, ``to_dict()``.

    Raises
    ------
    UnknownNameError
        An element type or an optimizer's name that is not known.
    TypeError
        A model of another kind, or one whose inputs do not follow from it and are not given.
    ValueError
        A model that needs values and not only shapes, or arguments that contradict each other.
    FileNotFoundError
        No such configuration.
    BackendMissingError
        torch is not installed; or a configuration is given, and ``transformers`` is not.
    """
    require("estimate", "torch")
    from accelera.estimate.phases import EstimateOptions, estimated
    from accelera.estimate.subject import subject_of

    wanted = EstimateOptions(None if dtypes is None else tuple(dtypes), train, optimizer, loss, keep_outputs)
    budget_bytes = (
        None if budget is None else parse_limit("estimate", budget, lambda: host_memory().limit_bytes)
    )
    return estimated(subject_of(model, inputs, batch, context), wanted, budget_bytes)
