"""Expressions and copies by a plan: one pass over operands that lie anywhere, inside a budget."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import starmap
from typing import Any

import numpy as np

from accelera.devices import Device, get_device
from accelera.devices._internal import usable_processors
from accelera.engine.dtypes import check_lossless
from accelera.engine.elementwise import ReduceKernel, StoreKernel, SweepKernel, Team
from accelera.engine.expression import Expr, Reduction, lazy
from accelera.engine.job import PlannedJob, carry_out
from accelera.engine.operands import ResultTarget
from accelera.engine.options import RUNTIME_BYTES, USUAL, OperationOptions
from accelera.engine.program import ElementwiseProgram
from accelera.engine.report import RunReport
from accelera.errors import DTypeError
from accelera.plan import Plan
from accelera.plan._internal import CostModel, ElementwiseProblem, Operand, PlanLimits, plan_elementwise
from accelera.stores import Store
from accelera.stores._internal import parse_dtype

Check = Callable[[np.ndarray[Any, Any]], None]

_MOST_WORKERS = 8
_SECONDS_PER_ELEMENT = 4e-10
"""Predicted time of one operator on one element, on one core."""
_CROSSING = 5
"""How much longer that is where operands lie in different orders."""


@dataclass(frozen=True)
class PlannedExpression:
    """An expression or a reduction, checked and ready to be planned.

    It is computed on the CPU, and its budget governs RAM, whatever device the caller has.
    """

    expr: Expr
    out: Any = None
    operation: str = "evaluate"
    options: OperationOptions = USUAL
    dtype: np.dtype[Any] | None = None
    """Element type of the result; that of the expression by default."""
    check: Check | None = None
    """Looks at the values before they are converted; raises when they cannot be."""
    team: Team = field(default_factory=lambda: Team(1))

    @cached_property
    def program(self) -> ElementwiseProgram:
        """What is computed for each element of the space."""
        return ElementwiseProgram(self.expr.source if isinstance(self.expr, Reduction) else self.expr)

    @cached_property
    def inputs(self) -> tuple[Store, ...]:
        """The operands, with as many axes as the space."""
        return tuple(self.program.view(index) for index in range(len(self.program.leaves)))

    def target(self) -> ResultTarget:
        """Return where the result goes."""
        return ResultTarget(self.out, self.expr.shape, self.dtype or self.expr.dtype)

    def plan(
        self, device: Device, limit_bytes: int | None = None, spec: Mapping[str, Any] | None = None
    ) -> Plan:
        """Return the plan; ``limit_bytes`` lowers the room further."""
        problem, kernel = self._problem(), self.kernel()
        reserved, options = self._reserved(problem, kernel), self.options
        budget = device.available_bytes() if options.budget_bytes is None else options.budget_bytes
        capacity = budget - sum(reserved.values())
        return options.planned(
            lambda window: plan_elementwise(
                problem,
                PlanLimits(
                    capacity if limit_bytes is None else min(capacity, limit_bytes),
                    options.budget_bytes,
                    reserved,
                    window=window,
                    eviction=options.eviction,
                ),
                CostModel(),
                spec=spec if limit_bytes is None else None,
            ),
        )

    def _reserved(self, problem: ElementwiseProblem, kernel: SweepKernel) -> dict[str, int]:
        scratch = max((each.scratch_bytes for each in problem.operands if not each.in_place), default=0)
        return {
            "result": self.target().new_bytes,
            "staging": (self.options.readers + 1) * scratch
            + sum(operand.cache_bytes for operand in problem.operands),
            "scratch": kernel.scratch_bytes,
            "runtime": RUNTIME_BYTES,
        }

    def _problem(self) -> ElementwiseProblem:
        kernel = self.kernel()
        return ElementwiseProblem(
            self.operation,
            self.program.shape,
            tuple(starmap(describe_whole, zip(_names(self.program), self.inputs, strict=True))),
            self._result(),
            self._reduced(),
            kernel.state_bytes if isinstance(kernel, ReduceKernel) else 0,
            self._seconds_per_element(kernel),
            self.program.instructions + isinstance(kernel, ReduceKernel),
        )

    def _seconds_per_element(self, kernel: SweepKernel) -> float:
        operators = self.program.instructions + (1 if len(kernel.orders) == 1 else _CROSSING)
        return _SECONDS_PER_ELEMENT * operators / self.team.size

    def _result(self) -> Operand:
        """Return the planner's description of the result, which may not exist yet."""
        target, reduced = self.target(), self._reduced()
        shape = tuple(1 if axis in reduced else n for axis, n in enumerate(self.program.shape))
        plain = Operand("out", shape, target.dtype, target.dtype, "ram", in_place=True)
        if target.path is not None:
            chunk, scratch = self._chunk(target), target.scratch_bytes
            return replace(plain, tier="disk", in_place=False, scratch_bytes=scratch, chunk=chunk)
        if target.out is None:
            return plain
        target.check(self.operation, list(self.inputs))
        return describe_whole("out", self._with_all_axes(target.given()))

    def _chunk(self, target: ResultTarget) -> tuple[int, ...] | None:
        """Return the chunk of a Zarr result with the axes of the space."""
        if target.chunk is None or len(target.chunk) == len(self.program.shape):
            return target.chunk
        sizes, reduced = iter(target.chunk), self._reduced()
        return tuple(1 if axis in reduced else next(sizes, 1) for axis in range(len(self.program.shape)))

    def _reduced(self) -> tuple[int, ...]:
        if not isinstance(self.expr, Reduction):
            return ()
        return self.expr.axes if self.expr.source.shape else (0,)

    def _with_all_axes(self, store: Store) -> Store:
        """Return a view of the result with all axes of the space, reduced ones with length 1."""
        if store.ndim == len(self.program.shape):
            return store
        reduced = self._reduced() if store.ndim else range(len(self.program.shape))
        key = tuple(None if axis in reduced else slice(None) for axis in range(len(self.program.shape)))
        return store[key]

    def kernel(self) -> SweepKernel:
        """Return the kernel that computes a step."""
        whole = [lying(each, self.program.shape) for each in self.inputs if each.shape == self.program.shape]
        plain, dtype = tuple(range(len(self.program.shape))), self.target().dtype
        if isinstance(self.expr, Reduction):
            orders = tuple(dict.fromkeys(whole)) or (plain,)
            shape = self.program.shape
            return ReduceKernel(
                self.program, dtype, orders, self.team, self.expr.reducer, self._reduced(), shape
            )
        return StoreKernel(self.program, dtype, tuple(dict.fromkeys([plain, *whole])), self.team, self.check)

    def text(self) -> str:
        """Return the computation as text, for the journal."""
        text = self.program.text()
        if isinstance(self.expr, Reduction):
            text = f"{text}; {self.expr.name} along {list(self.expr.axes)}"
        return f"{text}; as {self.target().dtype}"

    def job(self) -> PlannedJob:
        """Return what ``carry_out`` runs."""
        return PlannedJob(
            operation=self.operation,
            inputs=self.inputs,
            names=tuple(_names(self.program)),
            target=self.target(),
            result_view=self._with_all_axes,
            plan=self.plan,
            kernel=self.kernel(),
            header={"task": self.text()},
        )


def evaluate(
    expr: Expr,
    out: Any = None,
    *,
    device: Device,
    options: OperationOptions = USUAL,
    operation: str = "evaluate",
    dtype: np.dtype[Any] | None = None,
    check: Check | None = None,
) -> tuple[Store, RunReport]:
    """Compute ``expr`` by a plan; return the result's store and the report.

    Each operand is read once, whatever the expression. Runs on ``device`` when that works in RAM, else
    on the CPU: the budget governs RAM. Raises BudgetExceededError (before anything is allocated),
    ShapeError, DTypeError, StoreError.
    """
    with Team(workers()) as team:
        task = PlannedExpression(expr, out, operation, options, dtype, check, team)
        return carry_out(task.job(), in_ram(device), options)


def plan_evaluate(
    expr: Expr,
    out: Any = None,
    *,
    device: Device,
    options: OperationOptions = USUAL,
    operation: str = "evaluate",
) -> Plan:
    """Return the plan by which ``evaluate`` would compute ``expr``; nothing is read or allocated."""
    with Team(workers()) as team:
        return PlannedExpression(expr, out, operation, options, team=team).plan(in_ram(device))


def workers() -> int:
    """Return the number of compute threads; more would only wait for memory."""
    return min(usable_processors(), _MOST_WORKERS)


def in_ram(device: Device) -> Device:
    """Return ``device`` when its memory is RAM, else the CPU."""
    return device if device.host_memory else get_device("cpu")


def _names(program: ElementwiseProgram) -> list[str]:
    letters = string.ascii_uppercase
    return [
        letters[i] if i < len(letters) else f"{letters[i % 26]}{i // 26}" for i in range(len(program.leaves))
    ]


def describe_whole(name: str, store: Store) -> Operand:
    """Return the planner's description of an operand that is used as it is stored."""
    layout = store.layout
    return Operand(
        name,
        store.shape,
        store.dtype,
        store.dtype,
        store.tier,
        layout.order,
        layout.chunk,
        layout.dense,
        store.scratch_bytes,
        in_place=store.resident() is not None,
        cache_bytes=store.cache_bytes,
    )


def lying(store: Store, space: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of a store from slowest to fastest, those of length 1 where C order has them."""
    order = iter([axis for axis in store.layout.order if space[axis] != 1])
    return tuple(axis if size == 1 else next(order) for axis, size in enumerate(space))


def copy(
    src: Any, out: Any = None, dtype: Any = None, *, device: Device, options: OperationOptions = USUAL
) -> tuple[Store, RunReport]:
    """Copy ``src`` into ``out``, converted to ``dtype``; the format follows from the name of ``out``.

    Reals are rounded once, to the nearest, and become infinite when they are too large. What would lose
    more than precision raises DTypeError: a fraction or an imaginary part before anything is written, an
    integer that does not fit when it is reached. All else is as in ``evaluate``.
    """
    source = lazy(src)
    wanted = source.dtype if dtype is None else parse_dtype(dtype, op="copy")
    check_lossless("copy", source.dtype, wanted)
    check = _narrowing(source.dtype, wanted)
    return evaluate(source, out, device=device, options=options, operation="copy", dtype=wanted, check=check)


def transpose(
    a: Any,
    axes: Sequence[int] | None = None,
    out: Any = None,
    *,
    device: Device,
    options: OperationOptions = USUAL,
) -> tuple[Store, RunReport]:
    """Write ``a`` with permuted axes (reversed by default) into ``out``, so that it lies in the new order.

    Reading a transposed view needs none of this: ``engine.array(a).T`` is free. Raises ShapeError when
    ``axes`` does not name each axis once. All else is as in ``evaluate``.
    """
    return evaluate(lazy(a).transpose(axes), out, device=device, options=options, operation="transpose")


def _narrowing(source: np.dtype[Any], target: np.dtype[Any]) -> Any:
    """Return a function that checks whether integers fit ``target``; None where they always do."""
    if source.kind not in "iu" or target.kind not in "iu" or np.can_cast(source, target):
        return None
    limits = np.iinfo(target)

    def check(values: np.ndarray[Any, Any]) -> None:
        least, most = int(values.min()), int(values.max())
        if least < limits.min or most > limits.max:
            wrong = least if least < limits.min else most
            raise DTypeError(
                f"[copy] {wrong} does not fit {target} ({limits.min} to {limits.max}); choose a wider type"
            )

    return check
