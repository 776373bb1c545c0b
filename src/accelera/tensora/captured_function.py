"""Capture of a function's operations, and their replay by C++ in memory planned in advance."""

from __future__ import annotations

import functools
import math
import operator
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, overload

import numpy as np

from accelera.errors import StateError
from accelera.tensora.call_observer import CallObserver
from accelera.tensora.captured_program import (
    FunctionTrace,
    Gradients,
    ReplayedProgram,
    attached,
    unique_tensors,
)
from accelera.tensora.core import native
from accelera.tensora.python_calls import Rehearsal, current
from accelera.tensora.state_walk import StateWalk, has_no_state
from accelera.tensora.tensor_tree import flatten, rebuild, structure_of

Given = ParamSpec("Given")
Returned = TypeVar("Returned")

__all__ = ["JitReport", "Jitted", "jit"]

MOST_PROGRAMS = 16
"""Most captured programs of one function; calls with further signatures run eagerly."""


@dataclass(frozen=True)
class JitReport:
    """Program that a call of a jitted function takes, before it runs."""

    operations: int
    """Operations that were captured."""
    steps: int
    """Steps of a replay: fewer than the operations, some of which are removed or fused."""
    arena_bytes: int
    """Memory of temporaries, at planned offsets; a CUDA device and the CPU together."""
    kept_bytes: int
    """Memory of results and gradients."""
    workspace_bytes: int
    """Largest scratch memory of one operation; scratch memory on a CUDA device is not counted."""
    peak_bytes: int
    """Most bytes that a call allocates: the sum of the three."""
    least_bytes: int
    """Most bytes of temporaries that live at the same time: a lower bound for `arena_bytes`."""
    python_calls: tuple[str, ...]
    """Steps of optimizers and schedulers, which Python runs between parts of the program."""
    graph_steps: int
    """Steps that CUDA graphs launch from the third call on; known after the second."""
    graph_bytes: int
    """Device memory that these graphs keep between calls."""
    program: str
    """A line for each step."""

    def __str__(self) -> str:
        """Figures, and the program."""
        head = (
            f"{self.operations} operations in {self.steps} steps; peak {self.peak_bytes} bytes: arena "
            f"{self.arena_bytes} (least {self.least_bytes}), results {self.kept_bytes}, "
            f"workspace {self.workspace_bytes}"
        )
        calls = f"; Python between: {', '.join(self.python_calls)}" if self.python_calls else ""
        graphs = f"; {self.graph_steps} steps in CUDA graphs" if self.graph_steps else ""
        return f"{head}{graphs}{calls}\n{self.program}"


class Jitted(Generic[Given, Returned]):
    """Function whose operations are captured at the first call with a signature, and replayed at later ones.

    The first call runs the function eagerly. Later calls replay the captured steps without Python: dead steps
    are removed, elementwise ones are fused, and temporaries lie at planned offsets of one arena.
    """

    def __init__(
        self, function: Callable[Given, Returned], *, optimize: bool = True, graphs: bool = True
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._optimize = optimize
        self._graphs = graphs
        self._programs: dict[Hashable, list[ReplayedProgram]] = {}
        self._n_programs = 0
        self._refusals: dict[Hashable, str] = {}
        """Reasons why calls with a signature run as written."""
        self._uses: dict[Hashable, set[tuple[int, ...]]] = {}
        """Subsets of the results that get gradients, where these are not all."""
        self._refused_once: set[Hashable] = set()
        """Signatures whose last call could not be captured."""
        self._rehearsed: set[Hashable] = set()
        """Signatures with arguments of an outer graph, for which a call has shown that it can be captured."""

    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> Returned:
        """Call the function, or replay the captured program that fits the arguments; return the results."""
        if current.trace is not None or native.is_eager_only():
            return self._function(*args, **kwargs)
        arguments: list[Any] = []
        key = self._key(flatten((args, kwargs), arguments), arguments)
        if key is None:
            return self._function(*args, **kwargs)
        for program in self._programs.get(key, ()):
            if not program.fits(arguments):
                continue
            if not program.new_uses:
                return program(arguments, self._leaves_of(program, arguments))
            self._replace(key, program)
            break
        if key in self._refusals or self._n_programs >= MOST_PROGRAMS:
            return self._function(*args, **kwargs)
        return self._capture(key, arguments, (args, kwargs))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind the function to an instance, as a method."""
        return self if instance is None else functools.partial(self, instance)

    def report(self, *args: Any, **kwargs: Any) -> JitReport:
        """Steps and bytes of a call with these arguments, which must have been made once.

        Raises
        ------
        RuntimeError
            If there was no such call yet, or it was not captured.

        """
        arguments: list[Any] = []
        key = self._key(flatten((args, kwargs), arguments), arguments)
        programs = self._programs.get(key, ())
        if not programs:
            if key in self._refusals:
                raise StateError(
                    f"[jit] {self._name} runs as written with such arguments: {self._refusals[key]}; "
                    "only captured calls have a report"
                )
            raise StateError(
                f"[jit] {self._name} was not called with such arguments yet; call it once, then ask "
                "for its report"
            )
        return _report(next((each for each in programs if each.guard.changed() is None), programs[-1]))

    @property
    def _name(self) -> str:
        return _name_of(self._function)

    def _capture(self, key: Hashable, arguments: list[Any], values: tuple[Any, Any]) -> Any:
        # Captured gradients end at detached leaves; from there the graph outside of the function goes on.
        leaves = {id(each): _as_leaf(each) for each in arguments}
        inner = [leaves[id(each)] for each in arguments]
        if any(map(operator.is_not, inner, arguments)):
            # Tensors that the function leaves elsewhere must have the graph outside: this call finds out.
            if key not in self._rehearsed:
                return self._rehearse(key, arguments, values)
            values = rebuild(structure_of(values), iter(inner))
        args, kwargs = values
        walk = self._walk(key)
        trace = FunctionTrace(inner)
        with CallObserver(walk) as observer:
            captured, returned, gradients = trace.run(
                lambda: self._function(*args, **kwargs), self._uses.get(key, ())
            )
        walk.guard.close()
        if gradients is not None:
            gradients.sources = [_argument_index(each, inner) for each in gradients.leaves]
        program = ReplayedProgram(captured, trace, returned, gradients, walk.guard)
        has_escaped = _pass_gradients_on(inner, arguments)
        reasons = _reasons(observer, walk, trace, values, key, inner) or program.unguarded_tensors()
        if reasons:
            self._refuse(key, reasons[0])
        elif has_escaped:
            self._refusals[key] = "gradients of tensors that the caller computes"
        elif not program.shares_memory(arguments):
            # CUDA graphs copy arguments as ranges of memory, which for strided ones include other elements.
            self._add(key, program, graphs=self._graphs and all(each.is_contiguous() for each in inner))
        return _results_of_capture(returned, gradients, inner, arguments)

    def _rehearse(self, key: Hashable, arguments: list[Any], values: tuple[Any, Any]) -> Any:
        """Call the function as it is written, and find out whether it can be captured."""
        args, kwargs = values
        walk, rehearsal = self._walk(key), Rehearsal()
        with CallObserver(walk) as observer:
            returned = rehearsal.run(lambda: self._function(*args, **kwargs))
        if reasons := _reasons(observer, walk, rehearsal, values, key, arguments):
            self._refuse(key, reasons[0], stack_level=5)
        else:
            self._rehearsed.add(key)
        return returned

    def _add(self, key: Hashable, program: ReplayedProgram, *, graphs: bool) -> None:
        """Optimize a program, and keep it for further calls with the signature."""
        program.operations = program.captured.n_steps
        if self._optimize:
            program.captured.simplify()
            program.captured.fuse()
        program.captured.place()
        program.prepare(graphs=graphs)
        self._programs.setdefault(key, []).append(program)
        self._n_programs += 1
        self._refused_once.discard(key)

    def _replace(self, key: Hashable, program: ReplayedProgram) -> None:
        """Drop a program, so that the next one has backward passes for the results that are used."""
        self._uses.setdefault(key, set()).update(program.new_uses)
        self._programs[key].remove(program)
        self._n_programs -= 1

    def _refuse(self, key: Hashable, reason: str, stack_level: int = 4) -> None:
        """Let calls with a signature run as written, and warn, if two in sequence cannot be captured."""
        if key not in self._refused_once:
            # The first call may fill a cache, or import a module.
            self._refused_once.add(key)
            return
        self._refusals[key] = reason
        warnings.warn(
            f"[jit] {self._name} runs as written, because it depends on or changes {reason}, which a replay "
            "cannot follow. Pass the value as an argument, return it, or keep it in a tensor that is written "
            "in place.",
            RuntimeWarning,
            stacklevel=stack_level,
        )

    def _record_state(self, walk: StateWalk, path: str) -> None:
        """Record the state of the function instead of that of the captured programs."""
        walk.visit(self._function, path)

    def _walk(self, key: Any) -> StateWalk:
        """Return the state that is known before the call: of the function, and of arguments with state."""
        walk = StateWalk()
        walk.visit(self._function, _name_of(self._function))
        for each in _static_objects(key[0]):
            walk.visit(each, _name_of(each))
        return walk

    @staticmethod
    def _leaves_of(program: ReplayedProgram, arguments: list[Any]) -> list[Any]:
        return [arguments[each] if isinstance(each, int) else each for each in program.leaves]

    @staticmethod
    def _key(structure: Hashable, arguments: list[Any]) -> Hashable:
        """Return the signature of a call; None if no program can express how its arguments share memory."""
        signature = native.signature_of(arguments)
        if signature is None:
            return None
        # Equal objects may differ in what their comparison leaves out, and zeros in their sign.
        objects = tuple([_identity_of(each) for each in _static_objects(structure)])
        modes = native.grad_enabled(), native.thread_count(), native.default_float()
        return structure, signature, objects, modes


@overload
def jit(
    function: Callable[Given, Returned], *, optimize: bool = True, graphs: bool = True
) -> Jitted[Given, Returned]: ...


@overload
def jit(
    function: None = None, *, optimize: bool = True, graphs: bool = True
) -> Callable[[Callable[Given, Returned]], Jitted[Given, Returned]]: ...


def jit(function: Callable[..., Any] | None = None, *, optimize: bool = True, graphs: bool = True) -> Any:
    """Capture a function of tensors once for each signature, and run the captured program from then on.

    Parameters
    ----------
    function
        Computes with tensors: a network's forward pass, or a whole training step with ``backward()`` and an
        optimizer's ``step()``. Parameters and other tensors from outside are read, and written, where they
        are. When other state that the function reads has changed, it is captured again.
    optimize
        Whether the program is simplified and fused; False runs the operations one by one.
    graphs
        Whether steps on a CUDA device are put into CUDA graphs, which keep their memory between calls.

    Returns
    -------
    Jitted
        Called like the function; `Jitted.report` tells steps and bytes.

    Raises
    ------
    RuntimeError
        If the function needs elements of a tensor that it computes, as ``if``, ``item()`` and sizes that
        depend on elements do.

    Warns
    -----
    RuntimeWarning
        If calls with a signature run as written, because no guard can follow the state that the function
        reads, or the function changes it.

    """
    if function is None:
        return functools.partial(jit, optimize=optimize, graphs=graphs)
    return Jitted(function, optimize=optimize, graphs=graphs)


def _report(program: ReplayedProgram) -> JitReport:
    captured = program.captured
    return JitReport(
        operations=program.operations,
        steps=captured.n_steps,
        arena_bytes=captured.arena_bytes,
        kept_bytes=captured.kept_bytes,
        workspace_bytes=captured.workspace_bytes,
        peak_bytes=captured.peak_bytes,
        least_bytes=captured.least_bytes,
        python_calls=tuple(name for name, _ in program.calls),
        graph_steps=program.first.graph_steps,
        graph_bytes=program.first.graph_bytes,
        program=str(captured),
    )


def _as_leaf(argument: Any) -> Any:
    """Return an argument, detached as a new leaf if it was computed in an autograd graph."""
    if not argument.requires_grad or argument.is_leaf:
        return argument
    leaf = argument.detach()
    leaf.requires_grad = True
    return leaf


def _argument_index(leaf: Any, arguments: list[Any]) -> Any:
    """Return the index of the argument that the leaf is, or the leaf itself if it is none."""
    return next((i for i, each in enumerate(arguments) if each is leaf), leaf)


def _pass_gradients_on(inner: list[Any], arguments: list[Any]) -> bool:
    """Pass gradients that the function has computed on to the graphs of its arguments, if there are any."""
    has_any = False
    for leaf, argument in {
        id(each): (each, given) for each, given in zip(inner, arguments, strict=True)
    }.values():
        if leaf is not argument and leaf.grad is not None:
            argument.backward(leaf.grad)
            has_any = True
    return has_any


def _reasons(
    observer: CallObserver,
    walk: StateWalk,
    trace: FunctionTrace | Rehearsal,
    values: tuple[Any, Any],
    key: Any,
    arguments: list[Any],
) -> list[str]:
    """Return names of what a replay could not repeat of a call that has run."""
    if unguarded := [*observer.impure, *walk.unguarded, *trace.unguarded]:
        return unguarded
    tensors: list[Any] = []
    try:
        is_same = flatten(values, tensors) == key[0]
    except TypeError:
        is_same = False
    if not is_same or len(tensors) != len(arguments) or any(map(operator.is_not, tensors, arguments)):
        return ["a list or dictionary that is an argument"]
    return walk.changed()


def _results_of_capture(
    returned: Any, gradients: Gradients | None, inner: list[Any], arguments: list[Any]
) -> Any:
    """Return the results of a captured call, attached to the graph outside of the function."""
    results, positions = unique_tensors(returned)
    if gradients is None:
        made = [_detached(each, inner, arguments) for each in results]
        return rebuild(structure_of(returned), (made[i] for i in positions))
    leaves = [arguments[each] if isinstance(each, int) else each for each in gradients.sources]
    given = {id(each): argument for each, argument in zip(inner, arguments, strict=True)}
    made = attached(results, gradients.wanted, leaves, gradients.flow)
    made = [given.get(id(each), each) for each in made]
    return rebuild(structure_of(returned), (made[i] for i in positions))


def _name_of(value: Any) -> str:
    """Return the name of a function, or of the type of another object."""
    return str(getattr(value, "__qualname__", type(value).__name__))


def _detached(result: Any, inner: list[Any], arguments: list[Any]) -> Any:
    """Return a result detached from its graph, or the argument if the function returned that."""
    for each, argument in zip(inner, arguments, strict=True):
        if result is each:
            return argument
    return result if result.is_leaf else result.detach()


def _static_objects(structure: Any) -> list[Any]:
    """Return the values of a signature that have attributes: neither tensors nor plain numbers or strings."""
    kind, value = structure if isinstance(structure, tuple) else (None, None)
    if kind is dict:
        return [found for _, each in value for found in _static_objects(each)]
    if isinstance(kind, type) and issubclass(kind, (tuple, list)):
        return [found for each in value for found in _static_objects(each)]
    if isinstance(value, frozenset):
        return [value, *(each for each in value if _has_identity(each))]
    return [value] if _has_identity(value) else []


def _has_identity(value: Any) -> bool:
    """Return whether a function may distinguish equal values: objects with attributes, and zeros."""
    if isinstance(value, (float, np.floating)):
        return bool(value == 0)
    if has_no_state(value):
        return False
    return hasattr(value, "__dict__") or hasattr(type(value), "__slots__")


def _identity_of(value: Any) -> Any:
    return math.copysign(1.0, value) if isinstance(value, (float, np.floating)) else id(value)
