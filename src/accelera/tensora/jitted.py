"""Capture of a function's operations, and their replay by C++ in memory that is planned before."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from accelera.tensora.captured_program import FunctionTrace, ReplayedProgram, attached, whole
from accelera.tensora.core import native
from accelera.tensora.nested import flatten, rebuild, structure_of
from accelera.tensora.nn.module import Module
from accelera.tensora.tracing import current

__all__ = ["JitReport", "Jitted", "jit"]

MOST_PROGRAMS = 16
"""Programs of one function; with more signatures it runs as it is written."""


@dataclass(frozen=True)
class JitReport:
    """Program that a call of a jitted function takes, before it runs."""

    operations: int
    """That the function took when it was captured."""
    steps: int
    """That a call takes: some operations are gone, others run together."""
    arena_bytes: int
    """Memory of what ends with the call, in places that were planned."""
    kept_bytes: int
    """Memory of results and gradients."""
    workspace_bytes: int
    """Most that one operation needs besides."""
    peak_bytes: int
    """Most bytes that a call allocates: the sum of the three."""
    least_bytes: int
    """Bytes of the arena that hold something at the same time; no plan needs less."""
    python_calls: tuple[str, ...]
    """Steps of optimizers and schedules, which Python takes between parts of the program."""
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
        return f"{head}{calls}\n{self.program}"


class Jitted:
    """Function whose operations are captured at the first call with a signature, and replayed at later ones.

    The first call runs the function as it is written. Later ones run the captured steps: without Python,
    without those whose results nobody needs, with elementwise ones fused, in memory with planned places.
    """

    def __init__(self, function: Callable[..., Any], *, optimize: bool = True) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._optimize = optimize
        self._programs: dict[Hashable, list[ReplayedProgram]] = {}
        self._modules: list[Module] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Results of the function; tensors among them are outside of any graph."""
        if current.trace is not None or native.is_eager_only():
            return self._function(*args, **kwargs)
        given: list[Any] = []
        structure = flatten((args, kwargs), given)
        arguments = _apart(given)
        key = self._key(structure, arguments)
        known = self._programs.setdefault(key, [])
        for program in known:
            if program.fits(arguments):
                return program(arguments, self._leaves_of(program, arguments))
        if len(known) >= MOST_PROGRAMS:
            return self._function(*args, **kwargs)
        return self._capture(known, given, arguments, (args, kwargs))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method of the instance."""
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
        programs = self._programs.get(self._key(structure, _apart(arguments)))
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
        # Gradients that flow through an argument end at a stand-in; from there they go on by the outer graph.
        inner = [_stand_in(each) for each in arguments]
        args, kwargs = rebuild(structure_of(values), iter(inner))
        trace = FunctionTrace(inner)
        captured, returned, gradients = trace.run(lambda: self._function(*args, **kwargs))
        if captured.on_device:
            raise NotImplementedError(
                f"jit: {self._name} computes on a CUDA device; captured programs run on the CPU only"
            )
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
        program = ReplayedProgram(captured, trace, returned, gradients)
        program.operations = operations
        known.append(program)
        results: list[Any] = []
        flatten(returned, results)
        if gradients is None:
            return rebuild(structure_of(returned), (_outside(each, inner, arguments) for each in results))
        program.leaves = [_number(each, inner) for each in gradients.leaves]

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
                first.setdefault(native.storage_id(each), i),
            )
            for i, each in enumerate(arguments)
        )
        return structure, tensors, native.grad_enabled(), self._module_state()

    def _module_state(self) -> Hashable:
        if self._modules is None:
            self._modules = _modules_of(self._function)
        return tuple(
            (
                module.training,
                tuple(map(id, module._parameters.values())),
                tuple(map(id, module._buffers.values())),
            )
            for module in self._modules
        )


def jit(function: Callable[..., Any] | None = None, *, optimize: bool = True) -> Any:
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
        return functools.partial(jit, optimize=optimize)
    return Jitted(function, optimize=optimize)


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
        program=str(captured),
    )


def _apart(arguments: list[Any]) -> list[Any]:
    """The arguments, contiguous; copies of those that share memory with another in part."""
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


def _stand_in(argument: Any) -> Any:
    """Leaf in place of a tensor that was computed in a graph."""
    if not argument.requires_grad or argument.is_leaf:
        return argument
    leaf = argument.detach()
    leaf.requires_grad = True
    return leaf


def _number(leaf: Any, arguments: list[Any]) -> Any:
    """The number of the argument that the leaf is, or the leaf."""
    return next((i for i, each in enumerate(arguments) if each is leaf), leaf)


def _outside(result: Any, inner: list[Any], arguments: list[Any]) -> Any:
    """A result without its graph, which is used up; an argument itself where it is one."""
    for each, argument in zip(inner, arguments, strict=True):
        if result is each:
            return argument
    return result if result.is_leaf else result.detach()


def _modules_of(function: Callable[..., Any]) -> list[Module]:
    """Modules that the function is, or refers to by names from outside."""
    found: list[Any] = [function, getattr(function, "__self__", None)]
    plain = inspect.unwrap(function)
    plain = getattr(plain, "__func__", plain)
    if inspect.isfunction(plain):
        names = inspect.getclosurevars(plain)
        found += [*names.nonlocals.values(), *names.globals.values()]
    modules: dict[int, Module] = {}
    for each in found:
        if isinstance(each, Module):
            modules.update({id(module): module for module in each.modules()})
    return list(modules.values())
