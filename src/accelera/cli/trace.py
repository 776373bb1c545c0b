"""``accelera trace``: records of what was accessed, generated, captured, converted and described."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accelera.cli.examples import epilog_of
from accelera.cli.failures import VerbGroup, exit_code_of
from accelera.cli.options import Json
from accelera.units import format_bytes

if TYPE_CHECKING:
    from accelera.trace import Trace


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


Format = Annotated[str | None, typer.Option(metavar="NAME", help="Its format, where its name does not tell.")]


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="The trace to read.")],
    target: Annotated[str, typer.Argument(metavar="OUT", help="The file to write.")],
    source_format: Format = None,
    target_format: Format = None,
    as_json: Json = False,
) -> None:
    """Write a trace in another format, which the name of the file decides.

    Parquet holds everything; what the other formats leave out is in the documentation.
    """
    from accelera.trace import read_trace, write_trace

    trace = read_trace(source, source_format)
    write_trace(trace, target, target_format)
    found = {
        "path": target,
        "accesses": trace.access_count,
        "buffers": trace.buffer_count,
        "steps": trace.step_count,
        "model_type": trace.model_type,
    }
    typer.echo(json.dumps(found, indent=2) if as_json else f"{target}: {trace}")


def _checked_share(share: float | None) -> float | None:
    if share is not None and not 0 < share <= 1:
        raise typer.BadParameter(f"{share:g} is not over 0 and up to 1")
    return share


def stats(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The trace: .parquet, .csv, .json …")],
    source_format: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="Its format, where its name does not tell.")
    ] = None,
    sample: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            callback=_checked_share,
            help="Estimate the LRU curve from this share of the buffers, such as 0.01.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="How many of the largest tensors to list.")] = 10,
    as_json: Json = False,
) -> None:
    """Describe a trace: sizes, the peak and what is alive then, reuse, and what LRU would miss."""
    from accelera.trace import read_trace, statistics

    found = statistics(read_trace(file, source_format), sample=sample, top=top)
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else found.table())


Script = Annotated[
    Path, typer.Argument(metavar="SCRIPT.py", exists=True, dir_okay=False, help="The script to run.")
]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="The script's own; put -- before them.")
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="The file to write; by default SCRIPT.parquet here.")
]
Names = Annotated[
    bool, typer.Option(help="Name activations after the modules that make them; without, it is quicker.")
]


def capture(
    script: Script,
    arguments: Arguments = None,
    out: Out = None,
    names: Names = True,
    as_json: Json = False,
) -> None:
    """Run a Python script and record every tensor access that PyTorch makes in it.

    The script runs as with python: its arguments, output, errors and exit code are its own; with --json what
    it prints goes to stderr. A trace is written of a script that fails, too.
    """
    from accelera.capture import capture_script
    from accelera.capture._internal import is_own
    from accelera.trace import write_trace

    target = out or Path(f"{script.stem}.parquet")
    _check_target(target)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        captured = capture_script(script, arguments or (), names=names)
    write_trace(captured.trace, target)
    found = _summary(captured.trace, target)
    typer.echo(json.dumps(found, indent=2) if as_json else _line(captured.trace, found))
    raise typer.Exit(exit_code_of(captured.error, is_own))


def _check_target(target: Path) -> None:
    """Raise what writing would, before the script runs: an unknown format, a folder that is not there."""
    from accelera.trace import Trace, write_trace

    if not target.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {target.parent}")
    with tempfile.TemporaryDirectory() as folder:
        write_trace(Trace.from_arrays([], []), Path(folder) / target.name)


def _summary(trace: Trace, target: Path) -> dict[str, Any]:
    return {
        "path": str(target),
        "accesses": trace.access_count,
        "buffers": trace.buffer_count,
        "steps": trace.step_count,
        "iterations": len(trace.meta["iterations"]),
        "peak_live_bytes": trace.meta["peak_live_bytes"],
    }


def _line(trace: Trace, found: dict[str, Any]) -> str:
    return f"{found['path']}: {trace}, at most {format_bytes(found['peak_live_bytes'])} alive"


app = typer.Typer(cls=VerbGroup, no_args_is_help=True, rich_markup_mode="markdown")
for _verb in (generate, convert, stats):
    app.command(epilog=epilog_of(f"trace {_verb.__name__}"))(_verb)
app.command(context_settings={"ignore_unknown_options": True}, epilog=epilog_of("trace capture"))(capture)


@app.callback()
def trace() -> None:
    """Generate, capture, describe and convert traces: records of what was accessed, in order."""


__all__ = ["app"]
