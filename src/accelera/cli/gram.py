"""``accelera gram``: the Gram matrix of a file, at half the products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accelera.cli import options
from accelera.cli.file_operation import FileOperation, carry_out
from accelera.cli.options import FileOperand

if TYPE_CHECKING:
    from accelera.engine import MatrixEngine

Side = Annotated[
    Literal["left", "right"], typer.Option(help="left: the transpose of A times A; right: A times it.")
]


def gram(
    a: options.A,
    out: options.Out,
    side: Side = "left",
    budget: options.Budget = None,
    device: options.Device = None,
    policy: options.Policy = None,
    resume: options.Resume = False,
    restart: options.Restart = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    chunks: options.Chunks = None,
    codec: options.Codec = None,
    a_shape: options.AShape = None,
    a_dtype: options.ADtype = None,
    a_offset: options.AOffset = 0,
) -> None:
    """Compute the Gram matrix of A into a file: A^H A, or A A^H, at half the products."""
    array = FileOperand(a, a_shape, a_dtype, a_offset)

    def compute(engine: MatrixEngine, **how: Any) -> Any:
        return engine.gram(array.open(), side=side, **how)

    operation = FileOperation(
        out, budget, device, resume, restart, as_json, quiet, policy, chunks=chunks, codec=codec
    )
    carry_out(operation, compute)
