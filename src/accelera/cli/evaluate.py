"""``accelera evaluate``: an expression of files, computed into a file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accelera.cli import options
from accelera.cli.file_operation import FileOperation, carry_out

if TYPE_CHECKING:
    from accelera.engine import Expr, MatrixEngine

Expression = Annotated[
    str,
    typer.Argument(
        metavar="EXPRESSION", help="What to compute, in Python's notation and with NumPy's functions."
    ),
]
NamedFiles = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME=FILE", help="The operands: A=A.npy B=data.h5::values …", show_default=False),
]


def evaluate(
    expression: Expression,
    out: options.Out,
    operands: NamedFiles = None,
    budget: options.Budget = None,
    policy: options.Policy = None,
    resume: options.Resume = False,
    restart: options.Restart = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    chunks: options.Chunks = None,
    codec: options.Codec = None,
) -> None:
    """Compute an expression of files into a file; element-wise parts take one pass over the files.

    Operators of Python, NumPy's element-wise functions (sqrt, exp, maximum …), where, clip, norm, A.T, and
    reductions: sum, mean, var, std, min, max, prod, any, all, argmin, argmax, with axis=.
    """

    def compute(engine: MatrixEngine, **how: Any) -> Any:
        return engine.evaluate(expression_of(expression, operands or ()), **how)

    operation = FileOperation(
        out, budget, "cpu", resume, restart, as_json, quiet, policy, chunks=chunks, codec=codec
    )
    carry_out(operation, compute)


def expression_of(text: str, operands: Iterable[str]) -> Expr:
    """Return the expression ``text`` of files given as ``NAME=FILE``; raises BadParameter for other words."""
    from accelera.cli.expressions import parse_expression
    from accelera.engine import lazy
    from accelera.stores import open_store

    files: dict[str, Expr] = {}
    for word in operands:
        name, path = _named(word)
        if name in files:
            raise typer.BadParameter(f"{name} is given twice; use a different name for each operand")
        files[name] = lazy(open_store(path))
    return parse_expression(text, files)


def _named(word: str) -> tuple[str, str]:
    name, separator, path = word.partition("=")
    if not (separator and name.isidentifier() and path):
        raise typer.BadParameter(f"{word!r} is not of the form NAME=FILE; write for example A=A.npy")
    return name, path
