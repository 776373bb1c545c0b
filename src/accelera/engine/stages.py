"""Stages of an expression: its products of matrices and reductions, run as one plan.

A tree is cut where element-wise work ends: each product and each reduction inside it is a *stage*,
whose result the next ones read as an operand. Element-wise parts of a factor are no stages, they are
computed as the product reads them. Results between stages stay in RAM where the budget has room for
them, else they go to files without a name.

Chains of products are multiplied in the order that costs least. ``A @ B @ v`` as written makes the
matrix ``A @ B``; ``A @ (B @ v)`` does not. The order is found by dynamic programming over all of them
(Godbole 1973), with a cost in seconds: arithmetic, and the traffic of results in between. Rates are
nominal, so that the same shapes give the same order on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from accelera.engine.expression import (
    Apply,
    Choose,
    ComplexPart,
    Concatenated,
    Constant,
    Convert,
    Expr,
    Leaf,
    MatrixProduct,
    Reduction,
    Viewed,
)
from accelera.engine.expression_stores import Intermediate, store_of
from accelera.plan._internal import CostModel
from accelera.stores import Store
from accelera.stores._internal import JoinedStore

_NOMINAL = CostModel()

Dimensions = tuple[int, ...]
"""Rows of every factor, then the columns of the last."""


def best_product(factors: Sequence[Expr]) -> Expr:
    """Return the product of ``factors`` in the order that costs least; of equal ones the leftmost.

    All but the first and the last are matrices; those two may be vectors.
    """
    first, last = factors[0], factors[-1]
    rows = [1 if first.ndim == 1 else first.shape[0]]
    dims = (*rows, *(each.shape[0] for each in factors[1:]), 1 if last.ndim == 1 else last.shape[1])
    splits = best_splits(dims, first.dtype.itemsize, 4.0 if first.dtype.kind == "c" else 1.0)

    def product(start: int, stop: int) -> Expr:
        if stop - start == 1:
            return factors[start]
        middle = splits[start, stop]
        return MatrixProduct(product(start, middle), product(middle, stop))

    return product(0, len(factors))


def best_splits(dims: Dimensions, itemsize: int, flops_scale: float = 1.0) -> dict[tuple[int, int], int]:
    """Return where to split every part of a chain of matrices, as ``{(start, stop): middle}``.

    >>> best_splits((1000, 1000, 1000, 1), 8)[0, 3]
    1
    """
    splits: dict[tuple[int, int], int] = {}

    @cache
    def seconds(start: int, stop: int) -> float:
        if stop - start == 1:
            return 0.0
        costs = {middle: split_s(start, middle, stop) for middle in range(stop - 1, start, -1)}
        splits[start, stop] = min(costs, key=costs.__getitem__)
        return costs[splits[start, stop]]

    def split_s(start: int, middle: int, stop: int) -> float:
        rows, inner, columns = dims[start], dims[middle], dims[stop]
        between = rows * inner * (middle - start > 1) + inner * columns * (stop - middle > 1)
        size = between * itemsize
        moved = _NOMINAL.read_s(size, max(size, 1), "disk") + _NOMINAL.write_s(size, max(size, 1), "disk")
        made = _NOMINAL.gemm_s(rows, inner, columns, flops_scale)
        return seconds(start, middle) + seconds(middle, stop) + made + moved

    seconds(0, len(dims) - 1)
    return splits


def factors_of(node: MatrixProduct, is_shared: Callable[[Expr], bool]) -> list[Expr]:
    """Return the factors of a chain of products whose order is free, first to last.

    Only products of one element type whose factors have at most two axes are split. A product that is used
    elsewhere too (``is_shared``) stays one factor.
    """
    left, right = node.arguments
    one, other = list(_factors(left, node, is_shared)), list(_factors(right, node, is_shared))
    # A vector in the middle is an end of one product, and stays so.
    return [*(one if one[-1].ndim == 2 else [left]), *(other if other[0].ndim == 2 else [right])]


def _factors(node: Expr, parent: Expr, is_shared: Callable[[Expr], bool]) -> Iterator[Expr]:
    free = isinstance(node, MatrixProduct) and not is_shared(node) and node.dtype == parent.dtype
    plain = all(each.ndim <= 2 and each.dtype == parent.dtype for each in node.arguments)
    if isinstance(node, MatrixProduct) and free and plain:
        yield from factors_of(node, is_shared)
    else:
        yield node


@dataclass
class ExpressionStage:
    """One operation of an expression: element-wise, a reduction, or a product of matrices."""

    expr: Expr
    """What it computes, over stores; a product's factors are operands."""
    result: Intermediate | None
    """Its result, which later stages read; None for the last stage."""
    reads: tuple[Intermediate, ...] = ()
    """Results of earlier stages that it reads."""
    last_reads: list[Intermediate] = field(default_factory=list)
    """Those of ``reads`` that no later stage reads."""


def is_staged(expr: Expr) -> bool:
    """Return whether ``expr`` takes more than one pass over its operands."""
    inner = expr.source if isinstance(expr, Reduction) else expr
    return any(isinstance(each, (MatrixProduct, Reduction, Concatenated, Viewed)) for each in _nodes(inner))


def stages_of(expr: Expr) -> list[ExpressionStage]:
    """Cut ``expr`` into stages, in the order in which they run."""
    found = _StageBuilder(expr).stages
    for number, stage in enumerate(found):
        later = [each for other in found[number + 1 :] for each in other.reads]
        stage.last_reads = [each for each in stage.reads if all(each is not other for other in later)]
    return found


def text_of(root: Expr) -> str:
    """Return a tree as text: equal texts over equal operands mean equal values."""
    numbers: dict[int, int] = {}
    words = []
    for node in _postorder(root):
        numbers[id(node)] = len(numbers)
        children = " ".join(str(numbers[id(each)]) for each in node.arguments)
        words.append(f"{_node_text(node)} {children} {node.dtype}{list(node.shape)}")
    return "; ".join(words)


def _node_text(node: Expr) -> str:
    named: dict[type[Expr], Callable[[Any], str]] = {
        Apply: lambda each: each.ufunc.__name__,
        Constant: lambda each: repr(each.value),
        ComplexPart: lambda each: each.name,
        Reduction: lambda each: f"{each.name} {each.axes} {each.keepdims} {_settings_of(each.reducer)}",
        Concatenated: lambda each: str(each.axis),
        Viewed: lambda each: each.text,
    }
    detail = named.get(type(node), lambda each: "")
    kind = "Part" if isinstance(node, ComplexPart) else type(node).__name__  # journals have it so
    return f"{kind} {detail(node)}"


def _settings_of(reducer: object) -> list[str]:
    """Return the settings of a reduction, such as the degrees of freedom."""
    return [f"{name} {value}" for name, value in vars(reducer).items() if isinstance(value, (int, float))]


def intermediates_in(expr: Expr) -> tuple[Intermediate, ...]:
    """Return the results of earlier stages that ``expr`` reads, each once."""
    stores = [source for each in _nodes(expr) if isinstance(each, Leaf) for source in each.store.sources]
    bases = [store.viewing()[0] for store in stores]
    return tuple({id(each): each for each in bases if isinstance(each, Intermediate)}.values())


class _StageBuilder:
    """Turns a tree into stages, the deepest first; a node used more than once is computed once."""

    def __init__(self, root: Expr) -> None:
        self.stages: list[ExpressionStage] = []
        self._root = _reorder_products(root)
        self._rewritten: dict[int, Expr] = {}
        for node in _postorder(self._root):
            self._rewritten[id(node)] = self._rewrite(node)
        last = self._rewritten[id(self._root)]
        self.stages.append(ExpressionStage(last, None, intermediates_in(last)))

    def _rewrite(self, node: Expr) -> Expr:
        """Return ``node`` over stores only; products and reductions inside it become stages."""
        parts = [self._rewritten[id(each)] for each in node.arguments]
        if isinstance(node, (MatrixProduct, Reduction)):
            plain = _product(*parts) if isinstance(node, MatrixProduct) else node.of(parts[0])
            return plain if node is self._root else self._stage(plain)
        if isinstance(node, Concatenated):
            return Leaf(JoinedStore([store_of(each) for each in parts], node.axis))
        if isinstance(node, Viewed):
            return Leaf(node.look(store_of(parts[0])))
        return _with_arguments(node, parts)

    def _stage(self, expr: Expr) -> Leaf:
        name = f"#{len(self.stages) + 1}"
        result = Intermediate(name, expr.shape, expr.dtype)
        self.stages.append(ExpressionStage(expr, result, intermediates_in(expr)))
        return Leaf(result)


def _reorder_products(root: Expr) -> Expr:
    """Return ``root`` with the factors of every chain of products in the order that costs least."""
    uses = Counter(id(child) for node in _nodes(root) for child in node.arguments)
    shared: set[int] = set()
    made: dict[int, Expr] = {}
    for node in _postorder(root):
        parts = [made[id(each)] for each in node.arguments]
        found = _with_arguments(node, parts)
        if isinstance(found, MatrixProduct):
            found = _reorder_chain(found, shared)
        if uses[id(node)] > 1:
            shared.add(id(found))
        made[id(node)] = found
    return made[id(root)]


def _reorder_chain(node: MatrixProduct, shared: set[int]) -> Expr:
    if any(each.ndim > 2 or each.dtype != node.dtype for each in node.arguments):
        return node
    factors = factors_of(node, lambda each: id(each) in shared)
    return best_product(factors) if len(factors) > 2 else node


def _product(a: Expr, b: Expr) -> MatrixProduct:
    """Return a product whose factors are operands of one type."""
    dtype = MatrixProduct(a, b).dtype
    return MatrixProduct(Leaf(store_of(a.astype(dtype))), Leaf(store_of(b.astype(dtype))))


def _with_arguments(node: Expr, parts: Sequence[Expr]) -> Expr:
    """Return a node with other arguments; the same node when they are the same."""
    if all(new is old for new, old in zip(parts, node.arguments, strict=True)):
        return node
    if isinstance(node, MatrixProduct):
        return MatrixProduct(*parts)
    if isinstance(node, Reduction):
        return node.of(parts[0])
    if isinstance(node, Concatenated):
        return Concatenated(parts, node.axis)
    if isinstance(node, Viewed):
        return Viewed(parts[0], node.shape, node.look, node.text)
    if isinstance(node, Apply):
        return Apply(node.ufunc, tuple(parts))
    if isinstance(node, Choose):
        return Choose(*parts)
    if isinstance(node, ComplexPart):
        return ComplexPart(parts[0], node.name)
    assert isinstance(node, Convert)
    return Convert(parts[0], node.dtype)


def _nodes(root: Expr) -> Iterator[Expr]:
    """Yield every node of a tree once."""
    seen, waiting = set[int](), [root]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(node.arguments)


def _postorder(root: Expr) -> Iterator[Expr]:
    """Yield every node of a tree once, after its arguments."""
    done, waiting = set[int](), [(root, False)]
    while waiting:
        node, ready = waiting.pop()
        if id(node) in done:
            continue
        if ready:
            done.add(id(node))
            yield node
        else:
            waiting.append((node, True))
            waiting.extend((each, False) for each in reversed(node.arguments))


def stores_in(stages: Sequence[ExpressionStage]) -> list[Store]:
    """Return the operands of all stages that are not results of stages, each once."""
    leaves = [each.store for stage in stages for each in _nodes(stage.expr) if isinstance(each, Leaf)]
    found = {id(source): source for store in leaves for source in store.sources}
    return [each for each in found.values() if not isinstance(each.viewing()[0], Intermediate)]
