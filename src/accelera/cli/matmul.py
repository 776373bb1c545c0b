"""``accelera matmul``: a product of two files into a third, within a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelera.cli import options
from accelera.cli.file_operation import FileOperation, carry_out
from accelera.cli.options import FileOperand

if TYPE_CHECKING:
    from accelera.engine import MatrixEngine


def matmul(
    a: options.A,
    b: options.B,
    out: options.Out,
    budget: options.Budget = None,
    device: options.Device = None,
    objective: options.Objective = "time",
    policy: options.Policy = None,
    plan: options.PlanFile = None,
    resume: options.Resume = False,
    restart: options.Restart = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    chunks: options.Chunks = None,
    codec: options.Codec = None,
    a_shape: options.AShape = None,
    a_dtype: options.ADtype = None,
    a_offset: options.AOffset = 0,
    b_shape: options.BShape = None,
    b_dtype: options.BDtype = None,
    b_offset: options.BOffset = 0,
) -> None:
    """Compute A @ B into a file, within a memory budget.

    The result appears under its name when it is complete, and replaces what was there. An
    interrupted run leaves FILE.partial and FILE.journal; --resume goes on from them.
    """
    left, right = FileOperand(a, a_shape, a_dtype, a_offset), FileOperand(b, b_shape, b_dtype, b_offset)

    def compute(engine: MatrixEngine, **how: Any) -> Any:
        return engine.matmul(left.open(), right.open(), objective=objective, plan=plan, **how)

    operation = FileOperation(
        out, budget, device, resume, restart, as_json, quiet, policy, chunks=chunks, codec=codec
    )
    carry_out(operation, compute)
