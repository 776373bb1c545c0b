"""One account of host memory for the whole process: what each component holds, and the limit of ``budget``.

Components reserve bytes before they allocate them: the engine for a run and for its result, ``offload``
for a model, interception for a result, the executor for a batch. Tensora allocates in C++: it reports its
bytes, and follows a limit that the ledger adjusts.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, final

from accelera._fork_locks import ForkSafeLock
from accelera._result_html import MemoryBar, result_html
from accelera.errors import ArgumentError, BudgetExceededError
from accelera.memory.probe import host_memory
from accelera.units import format_bytes, parse_limit


@dataclass(frozen=True)
class BudgetUsage:
    """Host memory by component, at one moment."""

    limit_bytes: int | None
    """The smallest limit of ``accelera.budget`` in force; None outside of one."""
    component_bytes: Mapping[str, int]
    """Bytes that each component holds: ``"engine"``, ``"offload"``, ``"tensora"`` and so on."""

    @property
    def used_bytes(self) -> int:
        """Bytes of all components together."""
        return sum(self.component_bytes.values())

    @property
    def available_bytes(self) -> int | None:
        """Bytes below the limit that no component holds; None without a limit."""
        return None if self.limit_bytes is None else max(0, self.limit_bytes - self.used_bytes)

    def table(self) -> str:
        """Return a line for each component, the total, and the limit."""
        rows = [*sorted(self.component_bytes.items()), ("total", self.used_bytes)]
        if self.limit_bytes is not None:
            rows.append(("limit", self.limit_bytes))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {format_bytes(size):>10}" for name, size in rows)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        bar = MemoryBar("host memory", self.component_bytes, self.limit_bytes)
        return result_html("Memory by component", self.table(), [bar])


class MeasuredComponent(Protocol):
    """A component that allocates by itself and follows a limit."""

    def used_bytes(self) -> int:
        """Return the bytes that it holds now."""

    def restrict(self, limit_bytes: int | None) -> None:
        """Hold at most ``limit_bytes`` from now on; None: as many as it likes."""


@final
class Reservation:
    """Bytes that one component holds until ``release``."""

    def __init__(
        self, ledger: ProcessLedger, component: str, nbytes: int, parent: Reservation | None
    ) -> None:
        self.component = component
        self.nbytes = nbytes
        self.parent = parent
        """The reservation that these bytes are a part of; None: they count by themselves."""
        self.children: set[Reservation] = set()
        self._ledger = ledger

    @property
    def left_bytes(self) -> int:
        """Bytes of this reservation that no child holds."""
        return self.nbytes - sum(child.nbytes for child in list(self.children))

    def release(self) -> None:
        """Return the bytes; further calls do nothing. May be called by a finalizer in any thread."""
        self._ledger.ended.append(self)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._ledger.settle()

    @contextmanager
    def covering(self) -> Iterator[None]:
        """Context whose reservations, also those of threads that inherit it, are part of this one."""
        token = _covering.set(self)
        try:
            yield
        finally:
            _covering.reset(token)


_covering: ContextVar[Reservation | None] = ContextVar("accelera_covering_reservation", default=None)


@final
class ProcessLedger:
    """The reservations of the process, and the limits in force."""

    def __init__(self) -> None:
        self.ended: deque[Reservation] = deque()
        """Reservations that were released; their bytes count until ``settle``."""
        self._lock = ForkSafeLock(reentrant=True)
        self._limits: list[int] = []
        self._active: set[Reservation] = set()
        self._measured: dict[str, MeasuredComponent] = {}

    def settle(self) -> None:
        """Return the bytes of released reservations."""
        with self._lock:
            self._settle()

    def usage(self) -> BudgetUsage:
        """Return what each component holds now."""
        with self._lock:
            self._settle()
            return self._usage()

    def limit_bytes(self) -> int | None:
        """Return the smallest limit in force; None without one."""
        return min(self._limits, default=None)

    def available_bytes(self) -> int | None:
        """Return the bytes that this thread may reserve now; None without a limit."""
        with self._lock:
            self._settle()
            return self._available_bytes()

    def reserve(self, op: str, component: str, nbytes: int) -> Reservation:
        """Reserve ``nbytes`` for ``component``; ``op`` is for messages.

        Raises
        ------
        BudgetExceededError
            The limit leaves less.
        """
        with self._lock:
            self._settle()
            available = self._available_bytes()
            if available is not None and nbytes > available:
                raise self._refusal(op, nbytes, available)
            reservation = Reservation(self, component, nbytes, self._parent())
            if reservation.parent is not None:
                reservation.parent.children.add(reservation)
            self._active.add(reservation)
            self._restrict()
            return reservation

    def reserve_while(self, op: str, component: str, nbytes: int, owner: Any) -> None:
        """Reserve ``nbytes`` for as long as ``owner`` exists."""
        weakref.finalize(owner, self.reserve(op, component, nbytes).release).atexit = False

    def measure(self, component: str, measured: MeasuredComponent) -> None:
        """Count the bytes of a component that allocates by itself, and restrict it from now on."""
        with self._lock:
            self._measured[component] = measured
            self._restrict()

    def add_limit(self, limit_bytes: int) -> None:
        """Put a limit in force.

        Raises
        ------
        ArgumentError
            It is above the limit in force.
        BudgetExceededError
            Components hold more already.
        """
        with self._lock:
            self._settle()
            outer, usage = self.limit_bytes(), self._usage()
            if outer is not None and limit_bytes > outer:
                raise ArgumentError(
                    f"[budget] {format_bytes(limit_bytes)} is above the {format_bytes(outer)} of the "
                    "enclosing accelera.budget; an inner budget can only be smaller"
                )
            if usage.used_bytes > limit_bytes:
                raise BudgetExceededError(
                    f"[budget] {format_bytes(limit_bytes)} is less than the process holds already: "
                    f"{_listed(usage)}; release some of it, or give at least {usage.used_bytes:,} bytes",
                    needed_bytes=usage.used_bytes,
                    budget_bytes=limit_bytes,
                )
            self._limits.append(limit_bytes)
            self._restrict()

    def remove_limit(self, limit_bytes: int) -> None:
        """Lift a limit that ``add_limit`` put in force."""
        with self._lock:
            self._limits.remove(limit_bytes)
            self._restrict()

    def _settle(self) -> None:
        if not self.ended:
            return
        while self.ended:
            self._end(self.ended.popleft())
        self._restrict()

    def _end(self, reservation: Reservation) -> None:
        if reservation not in self._active:
            return
        self._active.remove(reservation)
        if reservation.parent is not None:
            reservation.parent.children.discard(reservation)
        for child in list(reservation.children):  # such as the result of a task: it outlives its batch
            child.parent = reservation.parent
            if child.parent is not None:
                child.parent.children.add(child)

    def _parent(self) -> Reservation | None:
        covering = _covering.get()
        return covering if covering in self._active else None

    def _usage(self) -> BudgetUsage:
        held: Counter[str] = Counter()
        for reservation in list(self._active):
            if reservation.parent is None:
                held[reservation.component] += reservation.nbytes
        for component, measured in self._measured.items():
            held[component] += measured.used_bytes()
        return BudgetUsage(self.limit_bytes(), {name: size for name, size in held.items() if size})

    def _available_bytes(self) -> int | None:
        parent = self._parent()
        return self._usage().available_bytes if parent is None else max(0, parent.left_bytes)

    def _restrict(self) -> None:
        limit = self.limit_bytes()
        for component, measured in self._measured.items():
            held = self._usage().component_bytes
            others = sum(size for name, size in held.items() if name != component)
            measured.restrict(None if limit is None else max(1, limit - others))

    def _refusal(self, op: str, nbytes: int, available_bytes: int) -> BudgetExceededError:
        usage = self._usage()
        limit = usage.limit_bytes or usage.used_bytes
        needed = limit - available_bytes + nbytes
        return BudgetExceededError(
            f"[{op}] needs {format_bytes(nbytes)}, more than the {format_bytes(available_bytes)} that "
            f"accelera.budget leaves ({_listed(usage)}); release some of it, or raise the budget to at least "
            f"{needed:,} bytes",
            needed_bytes=nbytes,
            budget_bytes=available_bytes,
        )


def _listed(usage: BudgetUsage) -> str:
    held = ", ".join(f"{name} {format_bytes(size)}" for name, size in sorted(usage.component_bytes.items()))
    return held or "nothing is held"


LEDGER = ProcessLedger()
"""The account of this process."""


@contextmanager
def budget(limit: int | float | str) -> Iterator[None]:
    """Limit the host memory of the whole process until the end of the block.

    Every part of Accelera draws from it: operations of the engine and their results in memory, offloaded
    models, intercepted calls of PyTorch, batches of tasks, and tensors of Tensora. The ``budget=`` of an
    operation is a part of it; an operation that asks for more than is left, or has no ``budget=``, gets what
    is left. Memory that the process holds already counts. Memory of GPUs, of worker processes and of other
    libraries does not.

    Parameters
    ----------
    limit
        Bytes, ``"8GiB"``, or a share of the machine's memory such as ``"50%"`` (within another budget, of
        that budget). An inner budget can only be smaller.

    Raises
    ------
    ArgumentError
        ``limit`` is no size above 0, or is above the limit of the enclosing budget.
    BudgetExceededError
        The process holds more already.

    Examples
    --------
    >>> import accelera
    >>> with accelera.budget("1GiB"):
    ...     print(accelera.budget_report().limit_bytes)
    1073741824
    """
    limit_bytes = parse_limit("budget", limit, lambda: LEDGER.limit_bytes() or host_memory().limit_bytes)
    LEDGER.add_limit(limit_bytes)
    try:
        yield
    finally:
        LEDGER.remove_limit(limit_bytes)


def budget_report() -> BudgetUsage:
    """Return the host memory that each component of Accelera holds now; it prints as a table."""
    return LEDGER.usage()
