"""Allocation scope of an offloaded model: where in a program new tensors count against its budget.

A scope is open in a thread during a forward pass of the model, during a step of its optimizer, and during
single operations on its weights. In a backward pass the autograd graph decides: the scope opens when the
pass reaches an output of the model, one of its saved tensors or one of its weights, in the thread that runs
the node, and closes when the pass reaches an input of the model or ends. Recomputation, nested backward
passes and hooks in between belong to the model; what the program computes from the outputs does not.
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
        if self.open_for_backward():
            return None
        return self._push("")

    def open_for_backward(self) -> bool:
        """Open it until the end of the backward pass that runs in this thread; return whether it opened.

        Nothing happens without a backward pass, and where it is open already. A nested pass, such as that of
        a reentrant checkpoint, leaves it open for the outer one.
        """
        if torch._C._current_graph_task_id() == -1:
            return False
        _THREAD.end_closed_elsewhere()
        if any(entry.scope is self or self in entry.scope.parts for entry in _THREAD.entries[-1:]):
            return False
        entry = self._push("", of_backward=True)
        self._resume_guard()
        end = _BackwardEnd()
        weakref.finalize(end, entry.close).atexit = False
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(end)
        return True

    def close_for_backward(self) -> None:
        """Close it in this thread if ``open_for_backward`` opened it: the pass has left the model."""
        for entry in reversed(_THREAD.entries):
            if entry.of_backward and entry.scope is self:
                entry.close()
                return

    def end_lingering(self) -> None:
        """Close what lingers of it in this thread."""
        _THREAD.end_lingering(self)

    def _push(self, phase: str, *, of_backward: bool = False) -> ScopeEntry:
        entry = ScopeEntry(self, phase, of_backward=of_backward)
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

    def _suspend_guard(self) -> None:
        if self._guard is not None:
            self._guard.suspend()

    def _resume_guard(self) -> None:
        if self._guard is not None:
            self._guard.resume("training")


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

    def _suspend_guard(self) -> None:
        for part in self._parts:
            part._suspend_guard()

    def _resume_guard(self) -> None:
        for part in self._parts:
            part._resume_guard()


@final
class _BackwardEnd:
    """Callback of a backward pass; autograd drops it when the pass is over, also by an error."""

    def __call__(self) -> None:
        """Do nothing: the end of this object closes the entry."""


@final
class ScopeEntry:
    """One time for which a scope is open in one thread."""

    __slots__ = (
        "__weakref__",
        "_closed_elsewhere",
        "_owner",
        "_phase",
        "lingers",
        "of_backward",
        "scope",
    )

    def __init__(self, scope: AllocationScope, phase: str, *, of_backward: bool = False) -> None:
        self.scope = scope
        self.lingers = False
        self.of_backward = of_backward
        """Whether it is open for a backward pass, and not for a part of the program."""
        self._closed_elsewhere = False
        self._phase = phase
        self._owner = threading.get_ident()

    def linger(self) -> None:
        """Stay open until ``close``, or until another model runs in this thread."""
        if len(_THREAD.entries) > 1:
            self.close()
            return
        self.lingers = True
        _WATCH.change(1)

    def suspend(self) -> None:
        """Close it after a forward pass; the phase of the guard goes on with the backward pass."""
        self._phase = ""
        self.scope._suspend_guard()
        self.close()

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
        if self._phase or self.of_backward:
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
        self.end_closed_elsewhere()
        for entry in [each for each in self.entries if each.lingers]:
            if scope is None or scope in entry.scope.parts:
                entry._end()

    def end_closed_elsewhere(self) -> None:
        """Remove the entries that another thread closed."""
        for entry in [each for each in self.entries if each._closed_elsewhere]:
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
