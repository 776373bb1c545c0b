"""``accelera plan``: what an operation on files would take, without computing it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from accelera.cli import options
from accelera.cli.evaluate import Expression, NamedFiles, expression_of
from accelera.cli.examples import epilog_of
from accelera.cli.failures import VerbGroup
from accelera.cli.file_operation import engine_on
from accelera.cli.gram import Side
from accelera.cli.options import FileOperand
from accelera.units import format_bytes

if TYPE_CHECKING:
    from accelera.plan import Plan


class PlanGroup(VerbGroup):
    """Operations that can be planned; two files without a verb are a product."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words, with ``matmul`` before those that begin with a file or an option."""
        first = args[0] if args else ""
        is_option = first.startswith("-") and first not in ctx.help_option_names
        is_file = "." in first or "/" in first or Path(first).is_file()
        if first and first not in self.commands and (is_option or is_file):
            args = ["matmul", *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


app = typer.Typer(cls=PlanGroup, no_args_is_help=True, rich_markup_mode="markdown")


@app.callback()
def plan() -> None:
    """Show how an operation would run within a budget: schedule, peak memory, bytes moved, time.

    Only the headers of the files are read, and nothing is written but the plan. Exits with 3 when none fits.
    """


@app.command(epilog=epilog_of("plan matmul"))
def matmul(
    a: options.A,
    b: options.B,
    out: options.Out = "result.npy",
    budget: options.Budget = None,
    device: options.Device = None,
    objective: options.Objective = "time",
    policy: options.Policy = None,
    save: options.Save = None,
    as_json: options.Json = False,
    chunks: options.Chunks = None,
    a_shape: options.AShape = None,
    a_dtype: options.ADtype = None,
    a_offset: options.AOffset = 0,
    b_shape: options.BShape = None,
    b_dtype: options.BDtype = None,
    b_offset: options.BOffset = 0,
) -> None:
    """Plan A @ B."""
    left, right = FileOperand(a, a_shape, a_dtype, a_offset), FileOperand(b, b_shape, b_dtype, b_offset)
    how = {"out": out, "budget": budget, "objective": objective, "chunks": chunks}
    predicted = engine_on(device, policy=policy).plan(left.open(), right.open(), **how)
    if save is not None:
        predicted.save(save)
    _show(predicted, out, as_json=as_json)


@app.command(epilog=epilog_of("plan gram"))
def gram(
    a: options.A,
    out: options.Out = "result.npy",
    side: Side = "left",
    budget: options.Budget = None,
    device: options.Device = None,
    policy: options.Policy = None,
    as_json: options.Json = False,
    chunks: options.Chunks = None,
    a_shape: options.AShape = None,
    a_dtype: options.ADtype = None,
    a_offset: options.AOffset = 0,
) -> None:
    """Plan the Gram matrix of A."""
    array = FileOperand(a, a_shape, a_dtype, a_offset).open()
    engine = engine_on(device, policy=policy)
    predicted = engine.plan_gram(array, side=side, out=out, budget=budget, chunks=chunks)
    _show(predicted, out, as_json=as_json)


@app.command(epilog=epilog_of("plan evaluate"))
def evaluate(
    expression: Expression,
    operands: NamedFiles = None,
    out: options.Out = "result.npy",
    budget: options.Budget = None,
    policy: options.Policy = None,
    as_json: options.Json = False,
    chunks: options.Chunks = None,
) -> None:
    """Plan an expression of files; products and reductions in it are stages of one plan."""
    engine = engine_on("cpu", policy=policy)
    predicted = engine.plan_evaluate(
        expression_of(expression, operands or ()), out, budget=budget, chunks=chunks
    )
    _show(predicted, out, as_json=as_json)


def _show(plan: Plan, out: str, *, as_json: bool) -> None:
    disk = _disk(plan, out)
    if as_json:
        typer.echo(json.dumps({**plan.to_dict(), "disk": disk}, indent=2))
        return
    needed, free = disk["result_bytes"], disk["free_bytes"]
    typer.echo(plan.explain())
    short = "; it does not fit" if needed > free else ""
    typer.echo(f"disk: the result takes {format_bytes(needed)}, {format_bytes(free)} are free{short}")


def _disk(plan: Plan, out: str) -> dict[str, Any]:
    """Return the bytes of the result before compression, and those free on the disk it goes to."""
    from accelera.stores._internal import result_path

    result = (plan.stages[-1] if plan.stages else plan).operands[-1]
    folder = Path(result_path(out)).absolute().parent
    while not folder.exists():
        folder = folder.parent
    needed = math.prod(result.shape) * result.dtype.itemsize
    return {"result_bytes": needed, "free_bytes": shutil.disk_usage(folder).free}
