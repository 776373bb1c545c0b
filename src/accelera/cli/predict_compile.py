"""``accelera predict-compile``: what compiling a traced program or a source text would bring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accelera.cli import options
from accelera.cli.options import Json

if TYPE_CHECKING:
    from accelera.simulator._internal import CompilePrediction, SourcePrediction

LANGUAGES = {
    ".py": "python",
    ".c": "c",
    ".cc": "c++",
    ".cpp": "c++",
    ".cu": "cuda",
    ".java": "java",
    ".js": "javascript",
    ".rs": "rust",
    ".go": "go",
}
"""Languages by the end of a file's name; files of other names are traces."""

Program = Annotated[
    Path,
    typer.Argument(metavar="PROGRAM", exists=True, dir_okay=False, help="A trace, or a source file."),
]
Level = Annotated[
    str | None,
    typer.Option("--opt-level", "-O", metavar="LEVEL", help="O0 to O3, for source files; O2 by default."),
]
Budgets = Annotated[
    list[str] | None,
    typer.Option("--budget", "-b", metavar="SIZE", help="16GB, or a share of the peak as 60%; repeatable."),
]
Machine = Annotated[str, typer.Option(metavar="NAME", help="Where a trace would run; local: measured here.")]
Optimizer = Annotated[bool, typer.Option("--optimizer", help="Compile the optimizer's step too.")]
Batch = Annotated[int | None, typer.Option(min=1, help="The trace's batch, to scale from.")]
Context = Annotated[int | None, typer.Option(min=1, help="The trace's context, to scale from.")]


def predict_compile(
    program: Program,
    opt_level: Level = None,
    budget: Budgets = None,
    machine: Machine = "gpu-24gb",
    optimizer: Optimizer = False,
    batch: Batch = None,
    context: Context = None,
    source_format: options.TraceFormat = None,
    as_json: Json = False,
) -> None:
    """Predict what a fusing compiler would make of a program: kernels, traffic, time, memory, plans.

    Nothing is run: a trace is replayed on paper, a source file is read.
    """
    language = None if source_format else LANGUAGES.get(program.suffix.lower())
    _require_for(language, budget, opt_level)
    if language is not None:
        found: CompilePrediction | SourcePrediction = _of_source(program, opt_level or "O2", language)
    else:
        found = _of_trace(
            program,
            source_format,
            hierarchy=machine,
            budgets=budget,
            optimizer=optimizer,
            batch=batch,
            context=context,
        )
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else f"{found.table()}\n\n{found.explain()}")


def _require_for(language: str | None, budgets: list[str] | None, opt_level: str | None) -> None:
    """Refuse what the other kind of program takes; raises BadParameter."""
    if language is None and opt_level is not None:
        raise typer.BadParameter("a trace has no levels, source files have", param_hint="'--opt-level'")
    if language is not None and budgets:
        raise typer.BadParameter(
            "a source text does not tell of memory; capture a trace of it", param_hint="'--budget'"
        )


def _of_source(path: Path, opt_level: str, language: str) -> SourcePrediction:
    from accelera.simulator._internal import predict_source

    try:
        return predict_source(path.read_text(encoding="utf-8"), opt_level=opt_level, language=language)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: {error}") from error


def _of_trace(path: Path, source_format: str | None, **how: Any) -> CompilePrediction:
    from accelera.estimate import predict_compile as predicted

    trace = options.opened(str(path), source_format)
    try:
        return predicted(trace, **how)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
