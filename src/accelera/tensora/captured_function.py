"""Capture of a function's operations, and their replay by C++ in memory planned in advance."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from accelera.tensora.captured_program import FunctionTrace, ReplayedProgram, attached, whole
from accelera.tensora.core import native
from accelera.tensora.nn.module import Module
from accelera.tensora.python_calls import current
from accelera.tensora.tensor_tree import flatten, rebuild, structure_of

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


class Jitted:
    """Function whose operations are captured at the first call with a signature, and replayed at later ones.

    The first call runs the function eagerly. Later calls replay the captured steps without Python: dead steps
    are removed, elementwise ones are fused, and temporaries lie at planned offsets of one arena.
    """

    def __init__(self, function: Callable[..., Any], *, optimize: bool = True, graphs: bool = True) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._optimize = optimize
        self._graphs = graphs
        self._programs: dict[Hashable, list[ReplayedProgram]] = {}
        self._n_programs = 0
        self._modules: _ModuleGuard | None = None
        self._argument_guards: dict[int, _ModuleGuard] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, or replay the captured program that fits the arguments; return the results."""
        if current.trace is not None or native.is_eager_only():
            return self._function(*args, **kwargs)
        given: list[Any] = []
        structure = flatten((args, kwargs), given)
        arguments = _without_overlap(given)
        key = self._key(structure, arguments)
        known = self._programs.setdefault(key, [])
        for program in known:
            if program.fits(arguments):
                return program(arguments, self._leaves_of(program, arguments))
        if self._n_programs >= MOST_PROGRAMS:
            return self._function(*args, **kwargs)
        return self._capture(known, given, arguments, (args, kwargs))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind the function to an instance, as a method."""
        return self if instance is None else functools.partial(self, instance)

    def report(self, *args: Any, **kwargs: Any) -> JitReport:
        """Steps and bytes of a call with these arguments, which must have been made once.

        Raises
        ------
        RuntimeError
            If there was no such call yet.

        """
        arguments: list[Any] = []
        structure = flatten((args, kwargs), arguments)
        programs = self._programs.get(self._key(structure, _without_overlap(arguments)))
        if not programs:
            raise RuntimeError(
                f"jit: {self._name} was not called with such arguments yet; call it once, then ask "
                "for its report"
            )
        return _report(programs[-1])

    @property
    def _name(self) -> str:
        return getattr(self._function, "__qualname__", repr(self._function))

    def _capture(
        self, known: list[ReplayedProgram], given: list[Any], arguments: list[Any], values: Any
    ) -> Any:
        # Captured gradients end at detached leaves; from there the graph outside of the function goes on.
        inner = [_as_leaf(each) for each in arguments]
        args, kwargs = rebuild(structure_of(values), iter(inner))
        trace = FunctionTrace(inner)
        captured, returned, gradients = trace.run(lambda: self._function(*args, **kwargs))
        operations = captured.n_steps
        for i in captured.written_arguments():
            if arguments[i] is not given[i]:
                raise RuntimeError(
                    f"jit: {self._name} writes in place to argument {i}, which is not contiguous or shares "
                    "memory with another; give it a contiguous tensor of its own"
                )
        if self._optimize:
            captured.simplify()
            captured.fuse()
        captured.place()
        program = ReplayedProgram(captured, trace, returned, gradients, graphs=self._graphs)
        program.operations = operations
        known.append(program)
        self._n_programs += 1
        results: list[Any] = []
        flatten(returned, results)
        if gradients is None:
            return rebuild(structure_of(returned), (_detached(each, inner, arguments) for each in results))
        program.leaves = [_argument_index(each, inner) for each in gradients.leaves]

        def backward(*grads: Any) -> tuple[Any, ...]:
            return tuple(gradients.flow(whole(grads, gradients.outputs)))

        made = attached(results, gradients.wanted, self._leaves_of(program, arguments), backward)
        return rebuild(structure_of(returned), iter(made))

    @staticmethod
    def _leaves_of(program: ReplayedProgram, arguments: list[Any]) -> list[Any]:
        return [arguments[each] if isinstance(each, int) else each for each in program.leaves]

    def _key(self, structure: Hashable, arguments: list[Any]) -> Hashable:
        first: dict[int, int] = {}
        tensors = tuple(
            (
                each.shape,
                each.dtype,
                str(each.device),
                each.requires_grad,
                each.is_leaf,
                first.setdefault(native.storage_id(each), i),
            )
            for i, each in enumerate(arguments)
        )
        modes = native.grad_enabled(), native.thread_count()
        return structure, tensors, modes, self._module_state(structure)

    def _module_state(self, structure: Hashable) -> Hashable:
        if self._modules is None:
            self._modules = _ModuleGuard(_referenced_objects(self._function))
        states = [self._modules.state()]
        for each in _static_objects(structure):
            # The objects live as long as the programs that they are part of the signature of.
            if id(each) not in self._argument_guards:
                self._argument_guards[id(each)] = _ModuleGuard([each])
            states.append(self._argument_guards[id(each)].state())
        return tuple(states)


def jit(function: Callable[..., Any] | None = None, *, optimize: bool = True, graphs: bool = True) -> Any:
    """Capture a function of tensors once for each signature, and run the captured program from then on.

    Parameters
    ----------
    function
        Computes with tensors: a network's forward pass, or a whole training step with ``backward()`` and an
        optimizer's ``step()``. What it does besides with Python happens at captured calls only; numbers and
        arrays that it reads from outside are those of the captured call. Parameters and other tensors from
        outside are read, and written, where they are.
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
        When the function needs elements of a tensor that it computes, as ``if``, ``item()`` and sizes that
        depend on elements do.

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


def _without_overlap(arguments: list[Any]) -> list[Any]:
    """Return the arguments contiguous, with a copy of each that overlaps another one only in part."""
    made: list[Any] = []
    known: dict[int, Any] = {}
    for each in arguments:
        whole = native.contiguous(each)
        other = known.setdefault(native.storage_id(whole), whole)
        if other is not whole and (
            native.address(other) != native.address(whole) or other.shape != whole.shape
        ):
            whole = native.copy(whole)
        made.append(whole)
    return made


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


def _detached(result: Any, inner: list[Any], arguments: list[Any]) -> Any:
    """Return a result detached from its graph, or the argument if the function returned that."""
    for each, argument in zip(inner, arguments, strict=True):
        if result is each:
            return argument
    return result if result.is_leaf else result.detach()


class _ModuleGuard:
    """Guard of a captured program: the state of all modules that some objects refer to."""

    def __init__(self, roots: list[Any]) -> None:
        self._roots = _find_modules(roots)
        self._all_modules: list[Module] = []
        self._structure: Hashable = None

    def state(self) -> Hashable:
        """Return a key of the training modes, parameters, buffers and submodules of all modules."""
        if self._structure != self._ids() or not self._all_modules:
            self._all_modules = list(
                {id(inner): inner for each in self._roots for inner in each.modules()}.values()
            )
            self._structure = self._ids()
        return self._structure, tuple(
            (
                module.training,
                tuple(map(id, module._parameters.values())),
                tuple(map(id, module._buffers.values())),
            )
            for module in self._all_modules
        )

    def _ids(self) -> Hashable:
        return tuple(tuple(map(id, module._modules.values())) for module in self._all_modules)


def _referenced_objects(function: Callable[..., Any]) -> list[Any]:
    """Return a function, its ``__self__``, and the values of its closure and global variables."""
    found: list[Any] = [function, getattr(function, "__self__", None)]
    plain = inspect.unwrap(function)
    plain = getattr(plain, "__func__", plain)
    if inspect.isfunction(plain):
        names = inspect.getclosurevars(plain)
        found += [*names.nonlocals.values(), *names.globals.values()]
    return found


def _find_modules(values: Iterable[Any]) -> list[Module]:
    """Return the modules among values, in containers and in attributes, at most two levels deep."""
    modules: dict[int, Module] = {}

    def look(value: Any, depth: int) -> None:
        if isinstance(value, Module):
            modules[id(value)] = value
        elif isinstance(value, (list, tuple, set)) and depth:
            for each in value:
                look(each, depth - 1)
        elif isinstance(value, dict) and depth:
            for each in value.values():
                look(each, depth - 1)
        elif depth and not isinstance(value, (type, ModuleType)) and hasattr(value, "__dict__"):
            for each in list(vars(value).values()):
                look(each, depth - 1)

    for each in values:
        look(each, 2)
    return list(modules.values())


def _static_objects(structure: Any) -> list[Any]:
    """Return the values of a signature that have attributes: neither tensors nor plain numbers or strings."""
    kind, value = structure if isinstance(structure, tuple) else (None, None)
    if kind is dict:
        return [found for _, each in value for found in _static_objects(each)]
    if isinstance(kind, type) and issubclass(kind, (tuple, list)):
        return [found for each in value for found in _static_objects(each)]
    return [value] if hasattr(value, "__dict__") else []
