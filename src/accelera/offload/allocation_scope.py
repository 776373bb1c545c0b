"""Allocation scope of an offloaded model: where in a program new tensors count against its budget.

A scope is open in a thread during a forward pass of the model, during a step of its optimizer, and during
single operations on its weights. After a forward pass with gradients it *lingers*: the loss and the backward
pass are the model's as well. It ends with the backward pass, when nothing refers to the graph any more, or
when another model begins to run in this thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any, final

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from accelera._native import Arena, leave_arena
from accelera.offload.memory_guard import MemoryGuard


class AllocationScope:
    """Charges what threads allocate to the memory of one model.

    Without an arena nothing is charged, and ``guard`` only hears of phases.
    """

    def __init__(self, arena: Arena | None, guard: MemoryGuard | None) -> None:
        self.arena = arena
        """Memory of the model; None where it is not counted."""
        self._guard = guard

    @property
    def parts(self) -> tuple[AllocationScope, ...]:
        """The scopes that are open when this one is."""
        return (self,)

    def open(self, phase: str) -> ScopeEntry:
        """Open it in this thread for a part of a step; what lingers ends."""
        _THREAD.end_lingering()
        return self._push(phase)

    def open_for_use(self) -> ScopeEntry | None:
        """Open it for one operation, unless it is open or there is nothing to charge."""
        entries = _THREAD.entries
        if self.arena is None or (entries and entries[-1].scope is self):
            return None
        return self._push("")

    def end_lingering(self) -> None:
        """Close what lingers of it in this thread."""
        _THREAD.end_lingering(self)

    def _push(self, phase: str) -> ScopeEntry:
        entry = ScopeEntry(self, phase)
        _THREAD.entries.append(entry)
        self._charge()
        if phase:
            self._notify_guard(phase)
        return entry

    def _charge(self) -> None:
        if self.arena is not None:
            self.arena.enter()
        else:
            leave_arena(0)

    def _notify_guard(self, phase: str) -> None:
        if self._guard is not None:
            self._guard.enter(phase)


@final
class JointScope(AllocationScope):
    """The scopes of one model over several devices: open together, and one at a time charges a thread."""

    def __init__(self, parts: Sequence[AllocationScope]) -> None:
        super().__init__(parts[0].arena, None)
        self._parts = tuple(parts)
        self._threads = threading.local()

    @property
    def parts(self) -> tuple[AllocationScope, ...]:
        """The scopes of the devices."""
        return self._parts

    @property
    def current(self) -> int:
        """Number of the part that charges this thread."""
        return getattr(self._threads, "current", 0)

    def charge(self, part: int) -> int:
        """Let another part charge this thread while this scope is the innermost; return the one before."""
        before, self._threads.current = self.current, part
        _THREAD.apply()
        return before

    def _charge(self) -> None:
        self._parts[self.current]._charge()

    def _notify_guard(self, phase: str) -> None:
        for part in self._parts:
            part._notify_guard(phase)


@final
class ScopeEntry:
    """One time for which a scope is open in one thread."""

    __slots__ = ("__weakref__", "_closed_elsewhere", "_graph", "_owner", "_phase", "lingers", "scope")

    def __init__(self, scope: AllocationScope, phase: str) -> None:
        self.scope = scope
        self.lingers = False
        self._graph: Any = None
        self._closed_elsewhere = False
        self._phase = phase
        self._owner = threading.get_ident()

    @property
    def is_open(self) -> bool:
        """Whether this thread's allocations are charged for it."""
        return self in _THREAD.entries

    def linger(self, graph: Any = None) -> None:
        """Stay open until ``close``, until ``graph`` is gone, or until another model runs in this thread."""
        if len(_THREAD.entries) > 1:
            self.close()
            return
        self.lingers = True
        _WATCH.change(1)
        if graph is not None:
            self._graph = weakref.finalize(graph, self.close)
            self._graph.atexit = False

    def until_end_of(self, backward: object) -> None:
        """Stay open until ``backward`` is gone, which nothing but a running backward pass refers to.

        The graph may be gone earlier: its nodes let go of what they saved one by one.
        """
        if self._graph is not None:
            self._graph.detach()
        weakref.finalize(backward, self.close).atexit = False

    def close(self) -> None:
        """Close it; may be called again, and from another thread, for which it takes effect later."""
        if threading.get_ident() != self._owner:
            self._closed_elsewhere = True
        elif self in _THREAD.entries:
            self._end()

    def _end(self) -> None:
        _THREAD.entries.remove(self)
        _THREAD.apply()
        if self.lingers:
            _WATCH.change(-1)
        if self._phase:
            self.scope._notify_guard("")


class _Thread(threading.local):
    """Open scopes of one thread, the innermost last."""

    def __init__(self) -> None:
        self.entries: list[ScopeEntry] = []

    def apply(self) -> None:
        """Let the innermost scope charge what is allocated."""
        if self.entries:
            self.entries[-1].scope._charge()
        else:
            leave_arena(0)

    def end_lingering(self, scope: AllocationScope | None = None) -> None:
        """Close the entries that linger, of one scope or of all."""
        for entry in [each for each in self.entries if each.lingers or each._closed_elsewhere]:
            if scope is None or scope in entry.scope.parts:
                entry._end()


_THREAD = _Thread()


@final
class _LingerWatch:
    """Ends what lingers in a thread as soon as another module with weights begins to run there.

    The hook of all modules is there only while something lingers.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._lingering = 0
        self._hook: Any = None

    def change(self, count: int) -> None:
        """Add to the number of entries that linger."""
        with self._lock:
            self._lingering += count
            if self._lingering and self._hook is None:
                self._hook = register_module_forward_pre_hook(_module_begins)
            elif not self._lingering and self._hook is not None:
                self._hook.remove()
                self._hook = None


def _module_begins(module: torch.nn.Module, _: Any) -> None:
    entries = _THREAD.entries
    if entries and entries[-1].lingers and next(module.parameters(), None) is not None:
        _THREAD.end_lingering()


_WATCH = _LingerWatch()
