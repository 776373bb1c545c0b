"""Reader of Python source: functions, loops, branches, tensor operations, and each operation's cost."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from accelera.errors import ProgramSyntaxError
from accelera.simulator.compiling.dataflow import OpKind, kind_of

ASSUMED_TRIPS = 16
"""Iterations of a loop whose number the text does not tell."""

_LAYERS = {
    "Linear": "linear",
    "Conv1d": "conv1d",
    "Conv2d": "conv2d",
    "Conv3d": "conv3d",
    "LayerNorm": "layer_norm",
    "BatchNorm2d": "batch_norm",
    "Embedding": "embedding",
    "MultiheadAttention": "attention",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Softmax": "softmax",
    "Dropout": "dropout",
    "MaxPool2d": "max_pool2d",
}
_ARITHMETIC = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Subscript)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BRANCHES = (ast.If, ast.IfExp, ast.Try, ast.Match)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OF_CONTAINERS = {"copy", "index"}
"""Methods that lists and dictionaries have too: no sign of a tensor."""
_CONTAINERS = "[]"
"""Stands for the state of everything that calls may change."""
_TOO_DEEP = "[predict_compile] no Python source: it is nested too deeply to be read"


@dataclass(frozen=True)
class LoopFacts:
    """A loop around an expression."""

    trips: int
    known: bool
    """Whether the text tells the number of iterations."""
    changed: frozenset[str]
    """Names that its body assigns."""
    plain: bool
    """Innermost, without branches, calls or early exits: what vectorises."""
    calls: bool = False
    """Whether its body calls anything, which may change what containers hold."""


@dataclass(frozen=True)
class SourceOperation:
    """One operation in the text and how often it is evaluated."""

    key: str
    """Its text with the state of every name in it: two alike have the same value."""
    names: frozenset[str]
    constant: bool
    """All its operands are literals."""
    pure: bool
    """No call inside: it may be moved or shared."""
    reads_containers: bool
    """It looks into an object, which others may change."""
    dead: bool
    """In code that no path reaches."""
    block: int
    """The run of statements it belongs to."""
    loops: tuple[LoopFacts, ...]
    """The loops around it, outermost first."""

    @property
    def times(self) -> int:
        """Evaluations, all loops multiplied."""
        product = 1
        for loop in self.loops:
            product *= loop.trips
        return product


@dataclass
class FunctionFacts:
    """What the text says of one function, or of the module's own statements (``<module>``)."""

    name: str
    line: int
    arguments: int = 0
    loops: int = 0
    deepest: int = 0
    """Loops within loops; 1 for a loop alone."""
    branches: int = 0
    calls: int = 0
    tensor_ops: Counter[str] = field(default_factory=Counter)
    evaluations: list[SourceOperation] = field(default_factory=list)
    iterations: list[tuple[LoopFacts, ...]] = field(default_factory=list)
    """Per loop, itself and the loops around it."""
    chains: list[int] = field(default_factory=list)
    """Lengths of runs of tensor operations that could become one loop."""

    @property
    def is_empty(self) -> bool:
        """Whether these are a module's own statements and do nothing."""
        return self.name == "<module>" and not self.evaluations and not self.loops


def read_python(text: str) -> list[FunctionFacts]:
    """Return the facts per function, the module's own statements first.

    Raises
    ------
    ProgramSyntaxError
        The text is no Python; the message names the line.
    """
    tree = _parsed(text)
    try:
        found = [_Reader(FunctionFacts("<module>", 1)).read(tree.body)]
        for name, node in _functions(tree, ""):
            facts = FunctionFacts(name, node.lineno, _argument_count(node.args))
            found.append(_Reader(facts).read(node.body))
    except RecursionError:
        raise ProgramSyntaxError(_TOO_DEEP) from None
    return found


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (RecursionError, MemoryError):
        raise ProgramSyntaxError(_TOO_DEEP) from None
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else "no Python source: "
        shown = f": {error.text.strip()!r}" if error.text else ""
        raise ProgramSyntaxError(
            f"[predict_compile] {where}{error.msg}{shown}; give Python source, or say language="
        ) from error
    except ValueError as error:
        raise ProgramSyntaxError(f"[predict_compile] no Python source: {error}") from error


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        name = f"{prefix}{getattr(child, 'name', '')}"
        if isinstance(child, _FUNCTIONS):
            yield name, child
        named = isinstance(child, (*_FUNCTIONS, ast.ClassDef))
        yield from _functions(child, f"{name}." if named else prefix)


def _argument_count(arguments: ast.arguments) -> int:
    plain = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    return plain + (arguments.vararg is not None) + (arguments.kwarg is not None)


class _Reader:
    """Walks statements with the loops around them."""

    def __init__(self, facts: FunctionFacts) -> None:
        self._facts = facts
        self._blocks = 0
        self._states: Counter[str] = Counter()

    def read(self, body: Sequence[ast.stmt]) -> FunctionFacts:
        self._block(body, (), dead=False)
        return self._facts

    def _block(self, body: Sequence[ast.stmt], loops: tuple[LoopFacts, ...], dead: bool) -> None:
        self._blocks += 1
        block = self._blocks
        self._facts.chains.extend(_chains(body))
        for statement in body:
            self._statement(statement, loops, dead, block)
            self._states.update(_assigned(statement))
            self._states[_CONTAINERS] += _calls(statement)
            dead = dead or isinstance(statement, (ast.Return, ast.Raise, ast.Break, ast.Continue))

    def _statement(self, statement: ast.stmt, loops: tuple[LoopFacts, ...], dead: bool, block: int) -> None:
        if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            return
        outer = loops
        if isinstance(statement, _LOOPS):
            loops = self._entered(statement, loops)
        self._facts.branches += isinstance(statement, _BRANCHES)
        test = statement.test if isinstance(statement, ast.If) else None
        for name, value in ast.iter_fields(statement):
            never = isinstance(test, ast.Constant) and name == ("orelse" if test.value else "body")
            once = name in ("iter", "orelse")
            self._field(value, outer if once else loops, dead or never, block)

    def _entered(
        self, loop: ast.For | ast.AsyncFor | ast.While, loops: tuple[LoopFacts, ...]
    ) -> tuple[LoopFacts, ...]:
        loops = (*loops, _loop_facts(loop))
        self._facts.loops += 1
        self._facts.deepest = max(self._facts.deepest, len(loops))
        self._facts.iterations.append(loops)
        return loops

    def _field(self, value: object, loops: tuple[LoopFacts, ...], dead: bool, block: int) -> None:
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            self._block(value, loops, dead)
        elif isinstance(value, list):
            for each in value:
                self._field(each, loops, dead, block)
        elif isinstance(value, ast.expr):
            self._expression(value, loops, dead, block)
        elif isinstance(value, (ast.ExceptHandler, ast.match_case, ast.withitem)):
            for _, inner in ast.iter_fields(value):
                self._field(inner, loops, dead, block)

    def _expression(self, node: ast.expr, loops: tuple[LoopFacts, ...], dead: bool, block: int) -> None:
        if isinstance(node, _COMPREHENSIONS):
            for _ in node.generators:
                loops = (*loops, LoopFacts(ASSUMED_TRIPS, False, _assigned(node), False, _calls(node)))
                self._facts.iterations.append(loops)
            self._facts.loops += len(node.generators)
            self._facts.deepest = max(self._facts.deepest, len(loops))
        self._facts.branches += isinstance(node, ast.IfExp)
        self._note(node, loops, dead, block)
        for child in ast.iter_child_nodes(node):
            inner = [child] if isinstance(child, ast.expr) else _inside(child)
            for each in inner:
                self._expression(each, loops, dead, block)

    def _note(self, node: ast.expr, loops: tuple[LoopFacts, ...], dead: bool, block: int) -> None:
        op = tensor_op(node)
        if op is not None:
            self._facts.tensor_ops[op] += 1
        self._facts.calls += isinstance(node, ast.Call)
        if isinstance(node, (*_ARITHMETIC, ast.Call)):
            inner = list(ast.walk(node))
            pure = not any(isinstance(each, (ast.Call, ast.Await, ast.Yield)) for each in inner)
            names = frozenset(each.id for each in inner if isinstance(each, ast.Name))
            constant = pure and not names and not isinstance(node, ast.Subscript)
            looks = any(isinstance(each, (ast.Subscript, ast.Attribute)) for each in inner)
            states = [f"{name}{self._states[name]}" for name in sorted(names)]
            states += [str(self._states[_CONTAINERS])] if looks else []
            key = f"{ast.unparse(node)} {states}"
            self._facts.evaluations.append(
                SourceOperation(key, names, constant, pure, looks, dead, block, loops)
            )


def _inside(node: ast.AST) -> list[ast.expr]:
    return [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]


def _loop_facts(loop: ast.For | ast.AsyncFor | ast.While) -> LoopFacts:
    trips = None if isinstance(loop, ast.While) else _trips(loop.iter)
    inner = [node for statement in loop.body for node in ast.walk(statement)]
    exits = (*_LOOPS, *_BRANCHES, *_COMPREHENSIONS, ast.Call, ast.Break, ast.Continue, ast.Return, ast.Yield)
    plain = not isinstance(loop, ast.While) and not any(isinstance(node, exits) for node in inner)
    count = ASSUMED_TRIPS if trips is None else trips
    return LoopFacts(count, trips is not None, _assigned(loop), plain, any(map(_calls, loop.body)))


def _trips(iterable: ast.expr) -> int | None:
    """Return the iterations over a literal or over ``range`` of literals, None when the text does not say."""
    if isinstance(iterable, (ast.List, ast.Tuple, ast.Set)):
        return len(iterable.elts)
    if isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name) and iterable.func.id == "range":
        try:
            return len(range(*map(ast.literal_eval, iterable.args)))
        except (ValueError, TypeError, SyntaxError, OverflowError):
            return None
    return None


def _assigned(node: ast.AST) -> frozenset[str]:
    """Return the names that are set, and those of containers of which a part is set."""
    targets = (
        each for each in ast.walk(node) if isinstance(getattr(each, "ctx", None), (ast.Store, ast.Del))
    )
    return frozenset(name for target in targets if (name := _root(target)))


def _root(target: ast.AST) -> str:
    while isinstance(target, (ast.Subscript, ast.Attribute, ast.Starred)):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def _calls(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) for each in ast.walk(node))


def tensor_op(node: ast.AST) -> str | None:
    """Return the tensor operation that an expression is, by name: ``x @ y``, ``torch.relu(x)``, ``x.sum()``.

    >>> tensor_op(ast.parse("F.gelu(x)", mode="eval").body), tensor_op(ast.parse("f(x)", mode="eval").body)
    ('gelu', None)
    """
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return "matmul"
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    name = node.func.attr
    if name in _LAYERS:
        return _LAYERS[name]
    builtin = isinstance(node.func.value, (ast.Constant, ast.JoinedStr, ast.List, ast.Dict))
    known = kind_of(name) not in (OpKind.OPAQUE, OpKind.VIEW) and name == name.lower()
    return name if known and not builtin and name not in _OF_CONTAINERS else None


def _chains(body: Sequence[ast.stmt]) -> Iterator[int]:
    """Yield lengths of runs of loops over elements: pointwise operations and reductions in a row."""
    length = 0
    for statement in body:
        if isinstance(statement, (*_LOOPS, *_BRANCHES, ast.With, *_FUNCTIONS, ast.ClassDef)):
            yield length
            length = 0
            continue
        for op in _in_order(statement):
            if kind_of(op) in (OpKind.POINTWISE, OpKind.ROW_REDUCTION):
                length += 1
            else:
                yield length
                length = 0
    yield length


def _in_order(statement: ast.AST) -> list[str]:
    """Return the tensor operations of a statement, operands before what uses them."""
    found = [op for child in ast.iter_child_nodes(statement) for op in _in_order(child)]
    own = tensor_op(statement)
    return [*found, own] if own is not None else found
