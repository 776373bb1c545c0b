"""``accelera estimate``: what a model takes in memory, before it is run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accelera._extras import is_there, require
from accelera._offloaded_phases import as_dict, offloads
from accelera.cli.options import Json, checked_budget, is_python_name, python_object
from accelera.errors import AcceleraError

if TYPE_CHECKING:
    from accelera.estimate import Estimate

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A config.json of transformers or the folder that it is in, file.py:name, or "
        "package.module:name: a module, or a function that builds one, or one and its inputs.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="SHAPE",
        help="An input: 32x3x224x224, 2x128:int64, or by name mask=2x128:bool; repeatable.",
    ),
]
Batch = Annotated[int | None, typer.Option(min=1, help="Rows at once; 1 by default.")]
Context = Annotated[int | None, typer.Option(min=1, help="Tokens per row; by default at most 2048.")]
Dtypes = Annotated[
    list[str] | None,
    typer.Option("--dtype", metavar="NAME", help="float32, bfloat16, float16, mixed or float8; repeatable."),
]
Mode = Annotated[Literal["both", "inference", "training"], typer.Option(help="What to estimate.")]
Optimizer = Annotated[Literal["adamw", "adam", "sgd", "none"], typer.Option(help="What trains it.")]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget", "-b", metavar="SIZE", callback=checked_budget, help="Memory to compare with: 16GB."
    ),
]


def estimate(
    model: Model,
    inputs: Inputs = None,
    batch: Batch = None,
    context: Context = None,
    dtype: Dtypes = None,
    mode: Mode = "both",
    optimizer: Optimizer = "adamw",
    budget: Budget = None,
    as_json: Json = False,
) -> None:
    """Predict what a PyTorch model takes in memory: weights, activations, gradients, optimizer, KV cache.

    The model is followed by its shapes: no weight is allocated or downloaded, and nothing is computed. With
    --budget it says what fits, and what offloading would do for what does not.
    """
    trainer = None if optimizer == "none" else optimizer
    found = _estimated(
        model,
        inputs,
        batch=batch,
        context=context,
        dtypes=dtype,
        train={"both": None, "inference": False, "training": True}[mode],
        optimizer=trainer,
        budget=budget,
    )
    planned = list(offloads(found, trainer))
    if as_json:
        typer.echo(json.dumps(as_dict(found, planned), indent=2))
    else:
        typer.echo("\n".join([found.table(), "", found.explain(), *(each.line() for each in planned)]))


def _estimated(model: str, inputs: list[str] | None, **options: Any) -> Estimate:
    """Return the estimate; what the model's own code raises is reported as wrong usage."""
    from accelera.estimate import estimate as ask

    require("estimate", "torch")

    try:
        named = python_object(model) if is_python_name(model) else _without_transformers_logs(model)
        return ask(named, _inputs(inputs), **options)
    except (AcceleraError, OSError, typer.BadParameter):
        raise
    except Exception as error:
        if str(error).startswith("[estimate] "):
            raise typer.BadParameter(str(error)) from error
        raise typer.BadParameter(f"{model}: {type(error).__name__}: {error}") from error


def _without_transformers_logs(path: str) -> str:
    """Return the path of a configuration, and let ``transformers`` say no more than errors."""
    if is_there("transformers"):
        from transformers.utils import logging

        quiet: Any = logging.set_verbosity_error
        quiet()
    return path


def _inputs(texts: list[str] | None) -> Any:
    """Return inputs of the shapes that were written: by name, else as a tuple; None for none."""
    if not texts:
        return None
    parsed = [_input(text) for text in texts]
    if all(name for name, _ in parsed):
        return dict(parsed)
    if any(name for name, _ in parsed):
        raise typer.BadParameter("name all inputs or none: x=32x784", param_hint="'--input'")
    return tuple(tensor for _, tensor in parsed)


def _input(text: str) -> tuple[str, Any]:
    import torch

    name, _, rest = text.rpartition("=")
    shape, _, kind = rest.partition(":")
    dtype = getattr(torch, kind or "float32", None)
    try:
        sizes = tuple(int(part) for part in shape.lower().replace(",", "x").split("x") if part)
    except ValueError:
        sizes = ()
    if not sizes or not isinstance(dtype, torch.dtype):
        raise typer.BadParameter(
            f"{text!r} is no input; write for example 32x784 or ids=2x128:int64", param_hint="'--input'"
        )
    return name, torch.empty(sizes, dtype=dtype, device="meta")
