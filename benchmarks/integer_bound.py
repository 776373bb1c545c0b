"""Integer program below every plan of a training step: the least time that some budget costs.

Of a logged step it keeps the following. A value of the arena idle between two uses stays, is packed, goes to
the file, or is dropped and made again at one of several times before its next use; at each operation the
bytes of what is there fit the budget. An operation that makes a value again is paid for once for all that
need it at the same time, and so is every operation before it whose result has ended by then.

What it leaves out makes it a bound from below. Bytes of what is made again on the way, of results that exist
twice, and of workspaces meanwhile count nothing. An operand that is idle itself at that time is taken to be
there: it stays, or its own return is paid for once, although a plan may pay several times. Blocks need no
places.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, sparse

from accelera.tensora.step_plans import operation_seconds, packed_forms

NEVER = 2**31 - 1


class Step(NamedTuple):
    """A logged step: the arguments of `StepGraph`, as lists by operation or by value."""

    seconds: list[float]
    workspace: list[int]
    pure: list[int]
    reads: list[list[int]]
    writes: list[list[int]]
    births: list[list[int]]
    nbytes: list[int]
    born: list[int]
    freed: list[int]
    fixed: list[int]
    packed_bytes: list[int]
    pack_seconds: list[float]

    @classmethod
    def logged(cls, columns: dict[str, Any]) -> Step:
        """Return the step of `StepPlans.columns`, at the prices that plans have."""

        def rows(name: str) -> list[list[int]]:
            starts, items = columns[name]
            return [list(items[a:b]) for a, b in itertools.pairwise(starts)]

        lists: dict[str, Any] = {name: rows(name) for name in ("reads", "writes", "births")}
        plain: dict[str, Any] = {
            name: columns[name].tolist() for name in ("workspace", "pure", "nbytes", "born", "freed")
        }
        packed_bytes, pack_seconds = packed_forms(columns)
        return cls(
            seconds=operation_seconds(columns).tolist(),
            fixed=columns["lent"],
            packed_bytes=packed_bytes.tolist(),
            pack_seconds=pack_seconds.tolist(),
            **plain,
            **lists,
        )


def _block_bytes(nbytes: int) -> int:
    return max(64, -(-nbytes // 64) * 64)


class Return(NamedTuple):
    """A way to recompute an idle value: after operation `begin`, at the latest just before `end`."""

    begin: int
    end: int
    operations: frozenset[int]


@dataclass
class _Program:
    """Rows and columns of the integer program, as they come."""

    costs: list[float] = field(default_factory=list)
    integral: list[int] = field(default_factory=list)
    rows: list[tuple[list[int], list[float], float]] = field(default_factory=list)
    """Columns, their factors, and what the sum is at most."""

    def column(self, cost: float, *, integral: bool) -> int:
        self.costs.append(cost)
        self.integral.append(int(integral))
        return len(self.costs) - 1

    def row(self, columns: list[int], factors: list[float], most: float) -> None:
        self.rows.append((columns, factors, most))


class IntegerBound:
    """Least added seconds of a step under a budget, by mixed integer programming.

    Parameters
    ----------
    step
        As it was logged.
    spill_s_per_byte
        Price of the file, out and back.
    least_bytes
        Smaller values stay.
    time_limit_s
        Of the search; what is proven until then is a bound too.

    """

    def __init__(
        self, step: Step, spill_s_per_byte: float, least_bytes: int, time_limit_s: float = 60
    ) -> None:
        self._step, self._time_limit_s = step, time_limit_s
        self._blocks = [_block_bytes(nbytes) for nbytes in step.nbytes]
        self._in_arena = [b >= 0 and f != NEVER for b, f in zip(step.born, step.freed, strict=True)]
        self._producers, self._valid_until = self._producers_of_values()
        self._program = _Program()
        self._savings: list[tuple[int, int, int, int]] = []
        """Columns with (first operation, last operation, bytes): between them that many bytes are freed."""
        runs: dict[int, list[tuple[int, Return]]] = {}
        for value, after, before in self._idle_gaps(least_bytes):
            self._add_gap(value, after, before, spill_s_per_byte, runs)
        for operation, returns in runs.items():
            self._add_operation(operation, returns)
        self._live = self._live_bytes()

    # --- the step

    def _producers_of_values(self) -> tuple[list[int], list[int]]:
        """Return per value the operation that can recompute it, or -1; per operation, until when it can."""
        step = self._step
        written: dict[int, list[int]] = {}
        for t, values in enumerate(step.writes):
            for value in values:
                written.setdefault(value, []).append(t)
        producers = [-1] * len(step.nbytes)
        valid_until = []
        for t, values in enumerate(step.births):
            for value in values:
                if step.pure[t] and value not in written:
                    producers[value] = t
            later = [w for value in step.reads[t] for w in written.get(value, ()) if w > t]
            valid_until.append(min(later, default=NEVER))
        return producers, valid_until

    def _idle_gaps(self, least_bytes: int) -> Iterator[tuple[int, int, int]]:
        """Yield (value, earlier use, later use) for every use with other operations since the last one."""
        step = self._step
        last: dict[int, int] = {}
        for t in range(len(step.seconds)):
            for value in sorted({*step.reads[t], *step.writes[t], *step.births[t]}):
                if not self._in_arena[value] or step.fixed[value] or step.nbytes[value] < least_bytes:
                    continue
                if t - last.get(value, t) > 1:
                    yield value, last[value], t
                last[value] = t

    def _live_bytes(self) -> Any:
        """Return the live bytes at each operation if no value is evicted; shape (operations,)."""
        n = len(self._step.seconds)
        changes = np.zeros(n + 1, "int64")
        for value, nbytes in enumerate(self._blocks):
            if self._in_arena[value]:
                born = self._step.born[value]
                changes[born] += nbytes
                changes[min(max(self._step.freed[value], born), n - 1) + 1] -= nbytes
        workspace = [_block_bytes(nbytes) if nbytes else 0 for nbytes in self._step.workspace]
        return np.cumsum(changes)[:n] + workspace

    def returns(self, value: int, last_use: int, next_use: int) -> Iterator[Return]:
        """Yield ways to recompute an idle value: a later one needs more operations, for freed operands."""
        end = next_use
        while end > last_use + 1:
            begin, latest, operations = self._operations_for(value, end)
            if latest < end:
                end = latest
                continue
            yield Return(max(begin, last_use), end, frozenset(operations))
            end = begin

    def _operations_for(self, value: int, time: int) -> tuple[int, int, set[int]]:
        """Return begin and end of the times at which the same operations recompute a value; and these."""
        begin, latest, pending = -1, time, [value]
        operations: set[int] = set()
        while pending:
            needed = pending.pop()
            k = self._producers[needed]
            if k < 0:
                return begin, min(latest, self._step.freed[needed] if needed != value else -1), operations
            latest = min(latest, self._valid_until[k])
            if k in operations:
                continue
            operations.add(k)
            for read in self._step.reads[k]:
                if self._in_arena[read] and self._step.freed[read] < time:
                    begin = max(begin, self._step.freed[read])
                    pending.append(read)
        return begin, latest, operations

    # --- the program

    def _add_gap(
        self, value: int, after: int, before: int, spill: float, runs: dict[int, list[tuple[int, Return]]]
    ) -> None:
        nbytes = self._blocks[value]
        spilled = self._program.column(spill * nbytes, integral=True)
        self._savings.append((spilled, after, before, nbytes))
        columns = [spilled]
        saved = nbytes - _block_bytes(self._step.packed_bytes[value])
        if self._step.packed_bytes[value] and saved > 0:
            columns.append(self._program.column(self._step.pack_seconds[value], integral=True))
            self._savings.append((columns[-1], after, before, saved))
        for recomputation in self.returns(value, after, before):
            column = self._program.column(0.0, integral=True)
            self._savings.append((column, after, recomputation.end, nbytes))
            columns.append(column)
            for operation in recomputation.operations:
                runs.setdefault(operation, []).append((column, recomputation))
        self._program.row(columns, [1.0] * len(columns), 1.0)

    def _add_operation(self, operation: int, returns: list[tuple[int, Return]]) -> None:
        """Add columns for runs of an operation, and a row for each recomputation that needs one of them."""
        ends = sorted({recomputation.end for _, recomputation in returns})
        cost = self._step.seconds[operation]
        at_end = {end: self._program.column(cost, integral=False) for end in ends}
        for column, recomputation in returns:
            inside = [at_end[end] for end in ends if recomputation.begin < end <= recomputation.end]
            self._program.row([column, *inside], [1.0, *([-1.0] * len(inside))], 0.0)

    def seconds(self, budget_bytes: int) -> float:
        """Return a bound from below for plans whose arena has that many bytes; infinite if there is none."""
        excess = self._live - budget_bytes
        if excess.max() <= 0:
            return 0.0
        program = _Program(self._program.costs, self._program.integral, list(self._program.rows))
        for columns, factors, short in self._peaks(excess):
            program.row(columns, factors, -short)
        return self._solve(program)

    def _peaks(self, excess: Any) -> Iterator[tuple[list[int], list[float], float]]:
        """Yield the constraints of operations over the budget: per set of idle values, only the tightest."""
        spans = np.array([(after, end) for _, after, end, _ in self._savings]).reshape(-1, 2)
        worst: dict[bytes, int] = {}
        for t in np.flatnonzero(excess > 0).tolist():
            key = ((spans[:, 0] < t) & (t < spans[:, 1])).tobytes()
            if key not in worst or excess[t] > excess[worst[key]]:
                worst[key] = t
        scale = 1e-6  # bytes in MB are what the solver's tolerances suit
        for t in worst.values():
            rows = [(column, nbytes) for column, after, end, nbytes in self._savings if after < t < end]
            yield [c for c, _ in rows], [-scale * nbytes for _, nbytes in rows], scale * float(excess[t])

    def _solve(self, program: _Program) -> float:
        starts = np.cumsum([0, *(len(columns) for columns, _, _ in program.rows)])
        items = np.array([c for columns, _, _ in program.rows for c in columns], "int64")
        factors = np.array([f for _, some, _ in program.rows for f in some], "float64")
        shape = (len(program.rows), len(program.costs))
        matrix = sparse.csr_array((factors, items, starts), shape=shape)
        most = np.array([each for _, _, each in program.rows])
        scale = max(program.costs, default=1.0) or 1.0
        found = optimize.milp(
            np.array(program.costs) / scale,
            integrality=np.array(program.integral),
            bounds=optimize.Bounds(0, 1),
            constraints=optimize.LinearConstraint(matrix, -np.inf, most),
            options={"time_limit": self._time_limit_s, "mip_rel_gap": 1e-4},
        )
        if found.status == 2:
            return float("inf")
        return max(0.0, float(found.mip_dual_bound)) * scale
