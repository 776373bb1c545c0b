"""``accelera build-shim``: the fastest way to catch calls of torch, compiled after the installation."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from accelera.cli.options import Json

Compiler = Annotated[
    str | None, typer.Option(metavar="NAME", help="The C++ compiler; by default c++, g++ or clang++.")
]


def build_shim(compiler: Compiler = None, as_json: Json = False) -> None:
    """Compile the kernels that catch calls of torch, for exactly the torch that is installed.

    A wheel has none of them, because it is built without torch; without them other kernels do the same, at
    some microseconds a call. It takes some 20 seconds. The library goes to the cache folder; another torch
    needs another one.
    """
    from accelera.interceptor import hooks

    path = hooks.build_shim(compiler)
    tier = hooks.tier()
    if as_json:
        typer.echo(json.dumps({"path": str(path), "tier": tier, "why": hooks.why()}, indent=2))
    else:
        typer.echo(f"{path}\ncalls of torch are caught by: {tier}: {hooks.why()}")
