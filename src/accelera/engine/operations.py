"""Operations of an engine besides the product: each a few words around a planned function."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from accelera._extras import is_loaded
from accelera._logs import logger
from accelera._progress import load_display, progress_is_shown
from accelera.devices import Device, get_device
from accelera.engine import evaluate as evaluation
from accelera.engine.evaluate import in_ram
from accelera.engine.expression import Axis, Expr, Leaf, apply, as_expr, lazy
from accelera.engine.gram import Side, gram, plan_gram_of
from accelera.engine.operands import file_result, lies_in_store, multiplier, open_operand
from accelera.engine.options import Amount, Destination, OperationKeywords, OperationOptions, budget_for
from accelera.engine.pipeline import evaluate_all, plan_all
from accelera.engine.registry import unwrapped
from accelera.engine.report import RunReport, progress_observer
from accelera.errors import ArgumentError, BudgetExceededError
from accelera.memory import MemoryManager
from accelera.memory._internal import Budget
from accelera.plan import Plan
from accelera.plan._internal import Eviction, Objective, as_saved
from accelera.settings import current
from accelera.stores import Store
from accelera.stores._internal import is_tensor, load_format

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from accelera.engine.matrix import Matrix


Number = bool | int | float | complex


class Operations(abc.ABC):
    """Arithmetic, reductions, copies, transposes and Gram matrices of operands that lie anywhere.

    Operands are Matrices, tensors, arrays, lists, paths, stores and, except for ``gram``, ``transpose``
    and ``copy``, expressions. A result goes to ``out``: a path, an array, a Matrix or a store; without
    ``out`` into new memory. Everything but ``gram`` is computed on the CPU within a budget of RAM,
    whatever the engine's device.
    """

    device: Device
    budget: Amount | None
    enable_progress: bool
    _last_report: RunReport | None
    eviction: Eviction
    """Policy that evicts blocks when the pool is full."""
    window: int
    """Steps under way at once where data is loaded ahead."""

    def array(self, x: Any) -> Leaf:
        """Return ``x`` as an operand of expressions, which ``evaluate`` computes; nothing is read."""
        return lazy(x)

    def evaluate(self, expr: Any, out: Any = None, **how: Unpack[OperationKeywords]) -> Matrix | Any:
        """Compute an expression, or copy an operand; element-wise parts take one pass over their operands.

        Products and reductions inside it are stages of one plan, all within the budget. Returns the store
        when ``out`` is a path or a store, else a Matrix, or a Python number for a result without axes.
        Raises BudgetExceededError when no plan fits; nothing was allocated then.
        """
        found: Matrix | Any = self._run_expression("evaluate", as_expr(expr), out, how)
        return found

    def plan_evaluate(
        self,
        expr: Any,
        out: Any = None,
        *,
        budget: Amount | None = None,
        chunks: Sequence[int] | None = None,
    ) -> Plan:
        """Return how ``evaluate`` with the same arguments would run; nothing is read or allocated."""
        return self._plan_expression(
            "evaluate", as_expr(expr), file_result(unwrapped(out), chunks, None), budget
        )

    def _plan_expression(
        self, op: str, expr: Expr, out: Any, budget: Amount | None, objective: Objective = "time"
    ) -> Plan:
        place = in_ram(self.device)
        defaults = replace(self._defaults(), objective=objective)
        options = defaults.within(self._budget_of(budget, place).limit_bytes)
        return plan_all(expr, out, operation=op, device=place, options=options)

    def add(self, A: Any, B: Any, *, out: Any = None, **how: Unpack[OperationKeywords]) -> Any:
        """Return ``A + B``; operands in memory are promoted and placed as in torch, others as in NumPy."""
        return self._elementwise_operation("add", A, B, out, how)

    def subtract(self, A: Any, B: Any, *, out: Any = None, **how: Unpack[OperationKeywords]) -> Any:
        """Return ``A - B``, as ``add`` does."""
        return self._elementwise_operation("subtract", A, B, out, how)

    def multiply(self, A: Any, B: Any, *, out: Any = None, **how: Unpack[OperationKeywords]) -> Any:
        """Return ``A * B``, element by element, as ``add`` does."""
        return self._elementwise_operation("multiply", A, B, out, how)

    def divide(self, A: Any, B: Any, *, out: Any = None, **how: Unpack[OperationKeywords]) -> Any:
        """Return ``A / B``, as ``add`` does; of integers it is a float."""
        return self._elementwise_operation("divide", A, B, out, how)

    def sum(
        self,
        A: Any,
        axis: Axis = None,
        *,
        keepdims: bool = False,
        out: Any = None,
        **how: Unpack[OperationKeywords],
    ) -> Any:
        """Return the sum along ``axis``: of integers in 64 bits, of others without growing error."""
        return self._run_expression("sum", as_expr(A).sum(axis, keepdims=keepdims), out, how, A)

    def mean(
        self,
        A: Any,
        axis: Axis = None,
        *,
        keepdims: bool = False,
        out: Any = None,
        **how: Unpack[OperationKeywords],
    ) -> Any:
        """Return the mean along ``axis``, of integers in float64."""
        return self._run_expression("mean", as_expr(A).mean(axis, keepdims=keepdims), out, how, A)

    def min(
        self,
        A: Any,
        axis: Axis = None,
        *,
        keepdims: bool = False,
        out: Any = None,
        **how: Unpack[OperationKeywords],
    ) -> Any:
        """Return the smallest along ``axis``, NaN if one is."""
        return self._run_expression("min", as_expr(A).min(axis, keepdims=keepdims), out, how, A)

    def max(
        self,
        A: Any,
        axis: Axis = None,
        *,
        keepdims: bool = False,
        out: Any = None,
        **how: Unpack[OperationKeywords],
    ) -> Any:
        """Return the largest along ``axis``, NaN if one is."""
        return self._run_expression("max", as_expr(A).max(axis, keepdims=keepdims), out, how, A)

    def argmin(
        self,
        A: Any,
        axis: int | None = None,
        *,
        keepdims: bool = False,
        out: Any = None,
        **how: Unpack[OperationKeywords],
    ) -> Any:
        """Return where the first smallest lies along ``axis``, or in the flattened array."""
        return self._run_expression("argmin", as_expr(A).argmin(axis, keepdims=keepdims), out, how, A)

    def argmax(
        self,
        A: Any,
        axis: int | None = None,
        *,
        keepdims: bool = False,
        out: Any = None,
        **how: Unpack[OperationKeywords],
    ) -> Any:
        """Return where the first largest lies along ``axis``, or in the flattened array."""
        return self._run_expression("argmax", as_expr(A).argmax(axis, keepdims=keepdims), out, how, A)

    def norm(
        self,
        A: Any,
        ord: float = 2,  # noqa: A002 - NumPy's name
        axis: Axis = None,
        *,
        keepdims: bool = False,
        out: Any = None,
        **how: Unpack[OperationKeywords],
    ) -> Any:
        """Return the norm of order 1, 2 or infinity of the vectors along ``axis`` (2 of all: Frobenius)."""
        return self._run_expression("norm", as_expr(A).norm(ord, axis, keepdims=keepdims), out, how, A)

    def var(
        self,
        A: Any,
        axis: Axis = None,
        *,
        ddof: float = 0,
        keepdims: bool = False,
        out: Any = None,
        **how: Unpack[OperationKeywords],
    ) -> Any:
        """Return the variance along ``axis``, divided by the count less ``ddof``."""
        return self._run_expression("var", as_expr(A).var(axis, ddof=ddof, keepdims=keepdims), out, how, A)

    def std(
        self,
        A: Any,
        axis: Axis = None,
        *,
        ddof: float = 0,
        keepdims: bool = False,
        out: Any = None,
        **how: Unpack[OperationKeywords],
    ) -> Any:
        """Return the standard deviation along ``axis``, the square root of ``var``."""
        return self._run_expression("std", as_expr(A).std(axis, ddof=ddof, keepdims=keepdims), out, how, A)

    def prod(
        self,
        A: Any,
        axis: Axis = None,
        *,
        keepdims: bool = False,
        out: Any = None,
        **how: Unpack[OperationKeywords],
    ) -> Any:
        """Return the product along ``axis``: of integers in 64 bits."""
        return self._run_expression("prod", as_expr(A).prod(axis, keepdims=keepdims), out, how, A)

    def any(
        self,
        A: Any,
        axis: Axis = None,
        *,
        keepdims: bool = False,
        out: Any = None,
        **how: Unpack[OperationKeywords],
    ) -> Any:
        """Return whether an element along ``axis`` is not zero."""
        return self._run_expression("any", as_expr(A).any(axis, keepdims=keepdims), out, how, A)

    def all(
        self,
        A: Any,
        axis: Axis = None,
        *,
        keepdims: bool = False,
        out: Any = None,
        **how: Unpack[OperationKeywords],
    ) -> Any:
        """Return whether no element along ``axis`` is zero."""
        return self._run_expression("all", as_expr(A).all(axis, keepdims=keepdims), out, how, A)

    @overload
    def transpose(
        self, A: Any, axes: Sequence[int] | None = None, *, out: None = None, **how: Unpack[OperationKeywords]
    ) -> Matrix: ...
    @overload
    def transpose(
        self,
        A: Any,
        axes: Sequence[int] | None = None,
        *,
        out: Destination,
        **how: Unpack[OperationKeywords],
    ) -> Store: ...
    @overload
    def transpose(
        self, A: Any, axes: Sequence[int] | None = None, *, out: Any, **how: Unpack[OperationKeywords]
    ) -> Matrix | Store: ...
    def transpose(
        self, A: Any, axes: Sequence[int] | None = None, *, out: Any = None, **how: Unpack[OperationKeywords]
    ) -> Matrix | Store:
        """Return ``A`` with permuted axes (reversed by default), written in the new order."""
        place, options = in_ram(self.device), self._options(in_ram(self.device), how, out)
        found = evaluation.transpose(
            unwrapped(A), axes, _result_target(out, how), device=place, options=options
        )
        return self._store_or_matrix(found, out, A)

    @overload
    def copy(
        self, src: Any, out: None = None, dtype: Any = None, **how: Unpack[OperationKeywords]
    ) -> Matrix: ...
    @overload
    def copy(
        self, src: Any, out: Destination, dtype: Any = None, **how: Unpack[OperationKeywords]
    ) -> Store: ...
    @overload
    def copy(
        self, src: Any, out: Any, dtype: Any = None, **how: Unpack[OperationKeywords]
    ) -> Matrix | Store: ...
    def copy(
        self, src: Any, out: Any = None, dtype: Any = None, **how: Unpack[OperationKeywords]
    ) -> Matrix | Store:
        """Copy ``src`` into ``out``, whose name decides the format; see ``evaluate.copy`` for ``dtype``."""
        place, options = in_ram(self.device), self._options(in_ram(self.device), how, out)
        found = evaluation.copy(
            unwrapped(src), _result_target(out, how), dtype, device=place, options=options
        )
        return self._store_or_matrix(found, out, src)

    @overload
    def gram(
        self, A: Any, *, side: Side = "left", out: None = None, **how: Unpack[OperationKeywords]
    ) -> Matrix: ...
    @overload
    def gram(
        self,
        A: Any,
        *,
        side: Side = "left",
        out: Destination,
        **how: Unpack[OperationKeywords],
    ) -> Store: ...
    @overload
    def gram(
        self, A: Any, *, side: Side = "left", out: Any, **how: Unpack[OperationKeywords]
    ) -> Matrix | Store: ...
    def gram(
        self, A: Any, *, side: Side = "left", out: Any = None, **how: Unpack[OperationKeywords]
    ) -> Matrix | Store:
        """Return ``AᴴA`` (``side="right"``: ``AAᴴ``) at half the products, on the engine's device."""
        store, target = _gram_operand(A), _result_target(out, how)
        place = multiplier(self.device, store.dtype)
        try:
            found = gram(store, target, side=side, device=place, options=self._options(place, how, out))
        except BudgetExceededError as error:
            if place.host_memory or self._budget_of(how.get("budget"), place).is_given:
                raise
            logger.warning("gram is planned on the CPU: %s", error)
            cpu = get_device("cpu")
            found = gram(store, target, side=side, device=cpu, options=self._options(cpu, how, out))
        return self._store_or_matrix(found, out, A)

    def plan_gram(
        self,
        A: Any,
        *,
        side: Side = "left",
        out: Any = None,
        budget: Amount | None = None,
        chunks: Sequence[int] | None = None,
    ) -> Plan:
        """Return how ``gram`` with the same arguments would run; nothing is read or allocated."""
        store, target = _gram_operand(A), file_result(unwrapped(out), chunks, None)
        place = multiplier(self.device, store.dtype)
        options = self._defaults().within(self._budget_of(budget, place).limit_bytes)
        return plan_gram_of(store, target, side=side, device=place, options=options)

    @abc.abstractmethod
    def _memory_of(self, device: Device) -> MemoryManager:
        """Return the memory manager of ``device``."""

    @abc.abstractmethod
    def _elementwise(self, op: str, A: Any, B: Any) -> Matrix:
        """Return torch's function ``op`` of two operands in memory."""

    def _budget_of(self, budget: Amount | None, device: Device) -> Budget:
        return Budget.parse(self.budget if budget is None else budget, self._memory_of(device))

    def _load_libraries(self, out: Any) -> None:
        """Load the libraries that a result in ``out`` needs, before any budget is read.

        They stay loaded, so their memory does not count against the budget of one operation. torch is not
        loaded: a result is an array until a tensor is needed.
        """
        if self.enable_progress and progress_is_shown():
            load_display()
        if isinstance(out, (str, PathLike)):
            load_format(out)

    def _defaults(self) -> OperationOptions:
        """Return the options of a call without keywords, with no budget yet."""
        settings = current()
        return OperationOptions(
            prefetch=settings.enable_prefetch,
            readers=settings.io_threads,
            eviction=self.eviction,
            window=self.window,
        )

    def _options(
        self, device: Device, how: OperationKeywords, out: Any, *, is_number: bool = False
    ) -> OperationOptions:
        """Return the options of one call that ``device`` computes."""
        if not is_number:
            self._load_libraries(out)
        pinned, observers = as_saved(how.get("plan")), how.get("observers", ())
        bar = progress_observer(self.enable_progress)
        return replace(
            self._defaults(),
            budget_bytes=self._budget_of(budget_for(how.get("budget"), pinned), device).limit_bytes,
            resume=how.get("resume", False),
            pinned=pinned,
            observers=observers if bar is None else (*observers, bar),
            recorder=how.get("recorder"),
        )

    def _elementwise_operation(self, op: str, A: Any, B: Any, out: Any, how: OperationKeywords) -> Any:
        if out is None and not how and _in_memory(A) and _in_memory(B):
            return self._elementwise(_TORCH_NAMES[op], A, B)
        return self._run_expression(op, apply(getattr(np, op), A, B), out, how, A)

    def _run_expression(
        self,
        op: str,
        expr: Expr,
        out: Any,
        how: OperationKeywords,
        beside: Any = None,
        objective: Objective = "time",
    ) -> Any:
        is_number = out is None and not expr.shape
        place = in_ram(self.device)
        options = replace(self._options(place, how, out, is_number=is_number), objective=objective)
        found = evaluate_all(expr, _result_target(out, how), operation=op, device=place, options=options)
        if is_number:
            self._last_report = found[1]
            return found[0].to_numpy().item()
        return self._store_or_matrix(found, out, beside)

    def _store_or_matrix(self, found: tuple[Store, RunReport], out: Any, beside: Any) -> Matrix | Store:
        store, self._last_report = found
        return store if lies_in_store(out) else result_matrix(store, out, beside)


def result_matrix(store: Store, out: Any, operand: Any) -> Matrix:
    """Return a Matrix of ``out``, or of a new result beside ``operand``, without loading torch."""
    if not is_loaded("torch"):
        from accelera.engine.matrix import Matrix

        held = store.resident() if out is None else unwrapped(out)
        if isinstance(held, np.ndarray):
            return Matrix.over(held)
    from accelera.engine import incore

    return incore.result(store, out, operand)


def _gram_operand(operand: Any) -> Store:
    if isinstance(operand, Expr):
        raise ArgumentError(
            "[gram] an expression is not stored; compute engine.evaluate(x.T @ x), or write x to a file: "
            "engine.gram(engine.evaluate(x, 'x.npy'))"
        )
    return open_operand(operand)


def _result_target(out: Any, how: OperationKeywords) -> Any:
    """Return the target of a result, with the layout that was asked for."""
    return file_result(unwrapped(out), how.get("chunks"), how.get("codec"))


_TORCH_NAMES = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "true_divide"}


def _in_memory(operand: Any) -> bool:
    """Return whether torch can take ``operand`` as it is."""
    held = unwrapped(operand)
    if isinstance(held, np.ndarray):
        return not isinstance(held, np.memmap) and not lies_in_store(held)
    return isinstance(held, list) or is_tensor(held)
