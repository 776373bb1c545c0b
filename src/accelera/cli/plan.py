"""``accelera plan``: what a product would take, without computing it."""

from __future__ import annotations

import json

import typer

from accelera.cli import options
from accelera.cli.file_operation import engine_on
from accelera.cli.options import FileOperand


def plan(
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
    """Show how A @ B would run within a budget: schedule, peak memory, bytes moved, time.

    Only the headers of the files are read, and nothing is written but the plan. Exits with 3 when none fits.
    """
    left, right = FileOperand(a, a_shape, a_dtype, a_offset), FileOperand(b, b_shape, b_dtype, b_offset)
    engine = engine_on(device, policy=policy)
    how = {"out": out, "budget": budget, "objective": objective, "chunks": chunks}
    found = engine.plan(left.open(), right.open(), **how)
    if save is not None:
        found.save(save)
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else found.explain())
