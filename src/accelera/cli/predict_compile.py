"""``accelera predict-compile``: what compiling a traced program or a source text would bring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accelera.cli.options import Json

if TYPE_CHECKING:
    from accelera.simulator.compiling import CompilePrediction, SourcePrediction

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
Level = Annotated[str, typer.Option("--opt-level", "-O", metavar="LEVEL", help="O0 to O3, for source files.")]
Budgets = Annotated[
    list[str] | None,
    typer.Option("--budget", "-b", metavar="SIZE", help="16GB, or a share of the peak as 60%; repeatable."),
]
Machine = Annotated[str, typer.Option(metavar="NAME", help="The machine that a trace would run on.")]
Optimizer = Annotated[bool, typer.Option("--optimizer", help="Compile the optimizer's step too.")]
Batch = Annotated[int | None, typer.Option(min=1, help="The trace's batch, to scale from.")]
Context = Annotated[int | None, typer.Option(min=1, help="The trace's context, to scale from.")]


def predict_compile(
    program: Program,
    opt_level: Level = "O2",
    budget: Budgets = None,
    machine: Machine = "gpu-24gb",
    optimizer: Optimizer = False,
    batch: Batch = None,
    context: Context = None,
    as_json: Json = False,
) -> None:
    """Predict what a fusing compiler would make of a program: kernels, traffic, time, memory, plans.

    Nothing is run: a trace is replayed on paper, a source file is read.
    """
    language = LANGUAGES.get(program.suffix.lower())
    if language is not None:
        found: CompilePrediction | SourcePrediction = _of_source(program, opt_level, language)
    else:
        found = _of_trace(
            program, hierarchy=machine, budgets=budget, optimizer=optimizer, batch=batch, context=context
        )
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else f"{found.table()}\n\n{found.explain()}")


def _of_source(path: Path, opt_level: str, language: str) -> SourcePrediction:
    from accelera.simulator.compiling import predict_source

    try:
        return predict_source(path.read_text(encoding="utf-8"), opt_level=opt_level, language=language)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: {error}") from error


def _of_trace(path: Path, **options: Any) -> CompilePrediction:
    from accelera.simulator.compiling import predict_trace
    from accelera.trace import read_trace

    trace = read_trace(path)
    try:
        return predict_trace(trace, **options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
