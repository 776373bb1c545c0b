"""Capture of a function's operations, and their replay by C++ in memory that is planned before."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from accelera.tensora.core import Tensor, native
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


class _Trace:
    """Capture that goes on."""

    def __init__(self, arguments: list[Any]) -> None:
        self.calls: list[tuple[str, Callable[[], Any]]] = []
        self.generators: list[Any] = []
        self._capture = native.Capture(arguments)

    def host_call(self, call: Callable[[], Any], name: str) -> Any:
        self._capture.end_part()
        self._capture.pause()
        current.trace = None
        try:
            result = call()
        finally:
            current.trace = self
            self._capture.resume()
        self.calls.append((name, call))
        return result

    def draw(self, generator: Any, seed: int, number: int) -> None:
        self.generators.append(generator)
        self._capture.draw(seed, number)

    def program(self, function: Callable[[], Any]) -> tuple[Any, Any]:
        """The captured program, and what the function returned."""
        current.trace = self
        try:
            returned = function()
            results: list[Any] = []
            _flatten(returned, results)
            return self._capture.finish(results), returned
        finally:
            current.trace = None
            self._capture.abandon()


class _Program:
    """Captured program of one signature, ready to run again."""

    def __init__(self, captured: Any, trace: _Trace, returned: Any, optimize: bool) -> None:
        operations = captured.n_steps
        if optimize:
            captured.optimize()
        captured.place()
        self._captured = captured
        self._replay = native.Replay(captured)
        self._calls = trace.calls
        self._generators = trace.generators
        self._structure = returned
        self._operations = operations
        self.busy = False

    def fits(self, arguments: list[Any]) -> bool:
        return not self.busy and self._replay.fits(arguments)

    def __call__(self, arguments: list[Any]) -> Any:
        self.busy = True
        try:
            self._replay.begin(arguments, [generator._next() for generator in self._generators])
            self._replay.run_part()
            for _, call in self._calls:
                call()
                self._replay.run_part()
            return _rebuild(self._structure, iter(self._replay.end()))
        finally:
            self._replay.abandon()
            self.busy = False

    def report(self) -> JitReport:
        captured = self._captured
        return JitReport(
            operations=self._operations,
            steps=captured.n_steps,
            arena_bytes=captured.arena_bytes,
            kept_bytes=captured.kept_bytes,
            workspace_bytes=captured.workspace_bytes,
            peak_bytes=captured.peak_bytes,
            least_bytes=captured.least_bytes,
            python_calls=tuple(name for name, _ in self._calls),
            program=str(captured),
        )


class Jitted:
    """Function whose operations are captured at the first call with a signature, and replayed at later ones.

    The first call runs the function as it is written. Later ones run the captured steps: without Python, without
    those whose results nobody needs, with elementwise ones fused, in one block of memory with planned places.
    """

    def __init__(self, function: Callable[..., Any], *, optimize: bool = True) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._optimize = optimize
        self._programs: dict[Hashable, list[_Program]] = {}
        self._modules: list[Module] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Results of the function; tensors among them are outside of any graph."""
        if current.trace is not None or native.is_eager_only():
            return self._function(*args, **kwargs)
        arguments: list[Any] = []
        key = self._key((args, kwargs), arguments)
        program = self._program(key, arguments)
        if program is not None:
            return program(arguments)
        known = self._programs.setdefault(key, [])
        if len(known) >= MOST_PROGRAMS:
            return self._function(*args, **kwargs)
        return self._capture(known, arguments, args, kwargs)

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
        key = self._key((args, kwargs), arguments)
        programs = self._programs.get(key)
        if not programs:
            raise RuntimeError(
                f"jit: {self._name} was not called with such arguments yet; call it once, then ask for its report"
            )
        return programs[-1].report()

    @property
    def _name(self) -> str:
        return getattr(self._function, "__qualname__", repr(self._function))

    def _program(self, key: Hashable, arguments: list[Any]) -> _Program | None:
        for program in self._programs.get(key, ()):
            if program.fits(arguments):
                return program
        return None

    def _capture(self, known: list[_Program], arguments: list[Any], args: Any, kwargs: Any) -> Any:
        trace = _Trace(arguments)
        captured, returned = trace.program(lambda: self._function(*args, **kwargs))
        detached = _detached(returned)
        known.append(_Program(captured, trace, _structure(returned), self._optimize))
        return detached

    def _key(self, given: Any, arguments: list[Any]) -> Hashable:
        structure = _flatten(given, arguments)
        first: dict[int, int] = {}
        tensors = tuple(
            (
                each.shape,
                each.dtype,
                each.strides,
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
        When the function needs elements of a tensor that it computes, as ``if``, ``item()`` and sizes that depend
        on elements do.

    """
    if function is None:
        return functools.partial(jit, optimize=optimize)
    return Jitted(function, optimize=optimize)


class _Place:
    """Stands for a tensor in a structure."""

    def __repr__(self) -> str:
        return "tensor"


_PLACE = _Place()


def _flatten(value: Any, tensors: list[Any]) -> Hashable:
    """What is no tensor, as a key; the tensors go to the list."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return _PLACE
    if isinstance(value, (tuple, list)):
        return type(value), tuple(_flatten(each, tensors) for each in value)
    if isinstance(value, dict):
        return dict, tuple((name, _flatten(each, tensors)) for name, each in value.items())
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"jit: a value of type {type(value).__name__} given or returned; use tensors, values that can be hashed, "
            "and lists, tuples and dicts of them"
        ) from None
    return type(value), value


def _structure(value: Any) -> Any:
    """The same value with places instead of tensors."""
    if isinstance(value, Tensor):
        return _PLACE
    if isinstance(value, dict):
        return {name: _structure(each) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return _sequence(type(value), [_structure(each) for each in value])
    return value


def _rebuild(structure: Any, tensors: Any) -> Any:
    if structure is _PLACE:
        return next(tensors)
    if isinstance(structure, dict):
        return {name: _rebuild(each, tensors) for name, each in structure.items()}
    if isinstance(structure, (tuple, list)):
        return _sequence(type(structure), [_rebuild(each, tensors) for each in structure])
    return structure


def _detached(value: Any) -> Any:
    tensors: list[Any] = []
    _flatten(value, tensors)
    return _rebuild(
        _structure(value),
        (each.detach() if each.requires_grad and not each.is_leaf else each for each in tensors),
    )


def _sequence(kind: type, items: list[Any]) -> Any:
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


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
