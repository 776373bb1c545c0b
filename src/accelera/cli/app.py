"""Verbs of the command. A new one is one file and one line here."""

from __future__ import annotations

from typing import Annotated

import typer

from accelera import __version__
from accelera.cli.advise import advise
from accelera.cli.build_shim import build_shim
from accelera.cli.copy import copy
from accelera.cli.estimate import estimate
from accelera.cli.evaluate import evaluate
from accelera.cli.examples import epilog_of
from accelera.cli.failures import CarefulGroup
from accelera.cli.gram import gram
from accelera.cli.info import info
from accelera.cli.matmul import matmul
from accelera.cli.plan import app as plan
from accelera.cli.predict_compile import predict_compile
from accelera.cli.report import report
from accelera.cli.run import ProgramCommand, run
from accelera.cli.serve import serve
from accelera.cli.simulate import simulate
from accelera.cli.strategy import strategy
from accelera.cli.sweep import sweep
from accelera.cli.trace import app as trace
from accelera.cli.transpose import transpose

app = typer.Typer(
    name="accelera",
    cls=CarefulGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_FILES, _TRACES = "Matrices in files", "Traces of memory accesses"
_PYTORCH, _MACHINE = "PyTorch models and programs", "This machine, batches and the service"
_VERBS = (
    (_FILES, (matmul, gram, evaluate, copy, transpose)),
    (_TRACES, (simulate, sweep, advise, report)),
    (_PYTORCH, (estimate, predict_compile, build_shim)),
    (_MACHINE, (info, strategy, serve)),
)
app.add_typer(plan, name="plan", rich_help_panel=_FILES)
app.add_typer(trace, name="trace", rich_help_panel=_TRACES)
app.command(
    cls=ProgramCommand,
    context_settings={"help_option_names": ["--help"]},
    rich_help_panel=_PYTORCH,
    epilog=epilog_of("run"),
)(run)
for _panel, _functions in _VERBS:
    for _function in _functions:
        _name = _function.__name__.replace("_", "-")
        app.command(name=_name, rich_help_panel=_panel, epilog=epilog_of(_name))(_function)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"accelera {__version__}")
        raise typer.Exit


@app.callback()
def accelera(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Log every decision, and show where in the code an error arose.")
    ] = False,
) -> None:
    """Matrix work in less memory than it needs."""
    if debug:
        import logging

        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("accelera").setLevel(logging.DEBUG)


def main() -> None:
    """Run the command with the process's arguments and exit."""
    app()
