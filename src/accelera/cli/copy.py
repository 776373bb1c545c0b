"""``accelera copy``: a matrix file as another, in another format or element type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from accelera.cli import options
from accelera.cli.file_operation import FileOperation, carry_out
from accelera.cli.options import FileOperand

if TYPE_CHECKING:
    from accelera.engine import MatrixEngine


def copy(
    source: options.From,
    target: options.To,
    dtype: Annotated[
        str | None, typer.Option(metavar="NAME", help="Element type to convert to, such as float32.")
    ] = None,
    budget: options.Budget = None,
    resume: options.Resume = False,
    restart: options.Restart = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    chunks: options.Chunks = None,
    codec: options.Codec = None,
    source_shape: options.SourceShape = None,
    source_dtype: options.SourceDtype = None,
    source_offset: options.SourceOffset = 0,
) -> None:
    """Copy an array into another file, whose name decides the format.

    Converting rounds to the nearest; what would lose a fraction, an imaginary part or an integer is
    refused.
    """
    array = FileOperand(source, source_shape, source_dtype, source_offset)

    def compute(engine: MatrixEngine, **how: Any) -> Any:
        return engine.copy(array.open(), dtype=dtype, **how)

    how = FileOperation(target, budget, "cpu", resume, restart, as_json, quiet, chunks=chunks, codec=codec)
    carry_out(how, compute)
