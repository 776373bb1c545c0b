"""``accelera plan``: what a product would take, without computing it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from accelera.cli import options
from accelera.cli.options import Source

if TYPE_CHECKING:
    from accelera.plan import Plan


def plan(
    a: options.A,
    b: options.B,
    out: options.Out = "result.npy",
    budget: options.Budget = None,
    device: options.Device = None,
    as_json: options.Json = False,
    a_shape: options.AShape = None,
    a_dtype: options.ADtype = None,
    a_offset: options.AOffset = 0,
    b_shape: options.BShape = None,
    b_dtype: options.BDtype = None,
    b_offset: options.BOffset = 0,
) -> None:
    """Show how A @ B would run within a budget: schedule, peak memory, bytes moved, time.

    Only the headers of the files are read, and nothing is written. Exits with 3 when no plan fits.
    """
    found = _plan(
        Source(a, a_shape, a_dtype, a_offset), Source(b, b_shape, b_dtype, b_offset), out, budget, device
    )
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else found.explain())


def _plan(a: Source, b: Source, out: str, budget: str | None, device: str | None) -> Plan:
    from accelera.devices import get_device
    from accelera.engine.planned import Product
    from accelera.memory import Budget, MemoryManager
    from accelera.settings import current

    place = get_device(device or current().device)
    limit_bytes = Budget.parse(budget, MemoryManager(place)).limit_bytes
    return Product(a.open(), b.open(), out, limit_bytes, readers=current().io_threads).plan(place)
