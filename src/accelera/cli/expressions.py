"""Expressions of the command line, such as ``A @ B + sqrt(C)``, read as expressions of the engine."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from accelera.errors import AcceleraError, ArgumentError, UnknownNameError

if TYPE_CHECKING:
    from accelera.engine import Expr

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_REDUCTIONS = ("sum", "mean", "var", "std", "min", "max", "prod", "any", "all", "argmin", "argmax")
_OTHERS = ("where", "clip", "real", "imag")
_GRAMMAR = (
    "operands by name, numbers, the operators of Python, NumPy's element-wise functions such as sqrt(A), "
    "where, clip, norm, reductions such as sum(A, axis=0), and A.T"
)


def parse_expression(text: str, operands: Mapping[str, Expr]) -> Expr:
    """Parse ``text`` into an expression of ``operands``; nothing is evaluated.

    The text is Python, restricted to names of operands, numbers, operators, functions of NumPy, and ``.T``.

    Raises
    ------
    ArgumentError
        The text is no such expression, has no operand, or does not use one of them.
    UnknownNameError
        A name is no operand, or a function is not known.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ArgumentError(f"[evaluate] {text!r} is no expression: {error}; write {_GRAMMAR}") from None
    reader = _ExpressionReader(operands)
    try:
        value = reader.read(tree.body)
    except AcceleraError:
        raise
    except (TypeError, ArithmeticError, RecursionError) as error:
        raise ArgumentError(f"[evaluate] {text!r} cannot be computed: {error}; write {_GRAMMAR}") from error
    if not reader.used:
        raise ArgumentError(f"[evaluate] {text!r} has no operand; name at least one file, such as A=A.npy")
    unused = sorted(set(operands) - reader.used)
    if unused:
        raise ArgumentError(
            f"[evaluate] {text!r} does not use {', '.join(unused)}; remove the unused operands"
        )
    expression: Expr = value
    return expression


class _ExpressionReader:
    """Reader of syntax trees; remembers which operands occurred."""

    def __init__(self, operands: Mapping[str, Expr]) -> None:
        self._operands = operands
        self.used: set[str] = set()

    def read(self, node: ast.expr) -> Any:
        """Return the expression or number of a syntax node."""
        match node:
            case ast.Name(id=name):
                return self._operand(name)
            case ast.Constant(value=bool() | int() | float() | complex() as value):
                return value
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self.read(left), self.read(right))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self.read(operand))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self.read(left), self.read(right))
            case ast.Attribute(value=value, attr="T"):
                return self.read(value).T
            case ast.Tuple(elts=elements):
                return tuple(self.read(each) for each in elements)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
                how = {each.arg: self.read(each.value) for each in keywords if each.arg is not None}
                return _function(name)(*(self.read(each) for each in arguments), **how)
        raise ArgumentError(f"[evaluate] {ast.unparse(node)!r} is not supported; write {_GRAMMAR}")

    def _operand(self, name: str) -> Expr:
        if name not in self._operands:
            raise UnknownNameError.among("operand", name, self._operands)
        self.used.add(name)
        return self._operands[name]


def _function(name: str) -> Callable[..., Any]:
    if name == "norm":
        return np.linalg.norm
    function: Any = getattr(np, name, None)
    if isinstance(function, np.ufunc) or name in (*_REDUCTIONS, *_OTHERS):
        return cast(Callable[..., Any], function)
    raise UnknownNameError.among("function", name, ("sqrt", "exp", "log", "norm", *_REDUCTIONS, *_OTHERS))
