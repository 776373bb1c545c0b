"""``accelera transpose``: a matrix file written in the order of other axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from accelera.cli import options
from accelera.cli.file_operation import FileOperation, carry_out
from accelera.cli.options import FileOperand

if TYPE_CHECKING:
    from accelera.engine import MatrixEngine


def transpose(
    source: options.From,
    target: options.To,
    axes: Annotated[
        Any,
        typer.Option(
            metavar="I,J", parser=options.parsed_axes, help="Axes in their new order; reversed if not said."
        ),
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
    """Write an array with its axes in another order.

    Products read transposed operands as they lie and need none of this.
    """
    array = FileOperand(source, source_shape, source_dtype, source_offset)

    def compute(engine: MatrixEngine, **how: Any) -> Any:
        return engine.transpose(array.open(), axes, **how)

    how = FileOperation(target, budget, "cpu", resume, restart, as_json, quiet, chunks=chunks, codec=codec)
    carry_out(how, compute)
