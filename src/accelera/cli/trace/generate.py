"""``accelera trace generate``: the trace of a model that need not exist."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from accelera.cli.options import Json


def _number(what: str) -> Any:
    return typer.Option(metavar="N", help=what)


def generate(
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="The trace file to write.")],
    model_type: Annotated[
        str, typer.Option(metavar="NAME", help="Transformer, CNN, MLP or MoE.")
    ] = "Transformer",
    num_layers: Annotated[int, _number("Layers, or residual blocks of a CNN.")] = 12,
    batch_size: Annotated[int, _number("Sequences, images or groups of rows at once.")] = 32,
    seq_length: Annotated[int, _number("Tokens per sequence; pixels along an edge of an image.")] = 128,
    reuse_probability: Annotated[
        float,
        typer.Option(metavar="P", help="Chance, from 0 to 1, that a step reads an earlier buffer again."),
    ] = 0.3,
    mode: Annotated[str, typer.Option(metavar="NAME", help="inference, training or decode.")] = "inference",
    steps: Annotated[int | None, _number("Batches, optimizer steps or tokens.")] = None,
    hidden_size: Annotated[int | None, _number("Width; by default that of a usual model.")] = None,
    dtype: Annotated[str, typer.Option(metavar="NAME", help="Element type of the weights.")] = "float32",
    experts: Annotated[int, _number("Experts per layer of an MoE.")] = 8,
    top_k: Annotated[int, _number("Experts that each token goes to.")] = 2,
    block_tokens: Annotated[int, _number("Tokens per block of the key-value cache, in decoding.")] = 16,
    seed: Annotated[int, _number("Of everything that is left to chance.")] = 0,
    as_json: Json = False,
) -> None:
    """Write the trace of a model of the given shape: its dataflow, sizes and operations.

    The same options give the same trace on every machine.
    """
    from accelera.trace import write_trace

    trace = _generated(
        model_type,
        num_layers,
        batch_size,
        seq_length,
        reuse_probability,
        seed=seed,
        mode=mode,
        steps=steps,
        hidden_size=hidden_size,
        dtype=dtype,
        experts=experts,
        top_k=top_k,
        block_tokens=block_tokens,
    )
    write_trace(trace, out)
    found = {
        "path": out,
        "accesses": trace.access_count,
        "buffers": trace.buffer_count,
        "steps": trace.step_count,
        "model_type": trace.model_type,
        "footprint_bytes": trace.footprint_bytes,
    }
    typer.echo(json.dumps(found, indent=2) if as_json else f"{out}: {trace}")


def _generated(*shape: Any, **more: Any) -> Any:
    """Return the trace; a number that cannot be meant is wrong usage."""
    from accelera.simulator import generate_synthetic_trace

    try:
        return generate_synthetic_trace(*shape, **more)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
