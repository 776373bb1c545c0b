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
    """Capture of one call of a function, while it goes on."""

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

    def forward(self, function: Callable[[], list[Any]]) -> Any:
        """The captured program, without a way back."""
        before, current.trace = current.trace, self
        try:
            return self._capture.finish(function())
        finally:
            current.trace = before
            self._capture.abandon()

    def run(self, function: Callable[[], Any]) -> tuple[Any, Any, _Gradients | None]:
        """The captured program, what the function returned, and the way back from it."""
        current.trace = self
        try:
            returned = function()
            results: list[Any] = []
            _flatten(returned, results)
            gradients = _Gradients.of(results)
            if gradients is None:
                return self._capture.finish(results), returned, None
            self._capture.end_part()
            found = gradients.capture(self._capture)
            return self._capture.finish([*results, *found]), returned, gradients
        finally:
            current.trace = None
            self._capture.abandon()


def captured(function: Callable[[], list[Any]], arguments: list[Any]) -> Any:
    """Program of the function's tensors, from the arguments; the function runs once."""
    trace = _Trace(arguments)
    return trace.forward(function)


class _Gradients:
    """Gradients of a captured function's leaves, from those of its results."""

    def __init__(self, results: list[Any], wanted: list[int]) -> None:
        self.wanted = wanted
        """Numbers of the results that gradients flow back from."""
        self.outputs = [results[i] for i in wanted]
        self.leaves: list[Any] = native.leaves_of(self.outputs)
        self.reached: list[int] = []
        """Numbers of the leaves that have gradients."""

    @classmethod
    def of(cls, results: list[Any]) -> _Gradients | None:
        wanted = [i for i, each in enumerate(results) if each.requires_grad and native.has_graph(each)]
        return cls(results, wanted) if wanted else None

    def capture(self, capture: Any) -> list[Any]:
        """Add the backward pass to the program; gradients of the leaves that are reached."""
        capture.pause()
        given = [native.full(each.shape, 1, each.dtype, each.device) for each in self.outputs]
        capture.resume()
        capture.add_arguments(given)
        found = self.flow(given)
        self.reached = [i for i, each in enumerate(found) if each is not None]
        return [found[i] for i in self.reached]

    def flow(self, given: list[Any]) -> list[Any]:
        """Gradients of the leaves, or None, by the graph that the captured call left."""
        found: list[Any] = native.backward(self.outputs, given, self.leaves, True, False, False, True)
        return found


class _Program:
    """Captured program of one signature, ready to run again."""

    def __init__(self, captured: Any, trace: _Trace, returned: Any, gradients: _Gradients | None) -> None:
        self.captured = captured
        self.calls = trace.calls
        self._generators = trace.generators
        self._structure = _structure(returned)
        self._n_results = _count(returned)
        self._wanted = gradients.wanted if gradients else []
        self._reached = gradients.reached if gradients else []
        self._n_leaves = len(gradients.leaves) if gradients else 0
        self._shape = native.Replay(captured)
        self._idle = [self._shape]
        self.operations = 0
        self.leaves: list[Any] = []
        """Leaves, or numbers of arguments, that gradients flow to."""

    def fits(self, arguments: list[Any]) -> bool:
        fits: bool = self._shape.fits(arguments)
        return fits

    def __call__(self, arguments: list[Any], leaves: list[Any]) -> Any:
        try:
            replay = self._idle.pop()
        except IndexError:  # all are in use: by other threads, or until their backward passes
            replay = native.Replay(self.captured)
        try:
            replay.begin(arguments, [generator._next() for generator in self._generators])
            replay.run_part()
            for _, call in self.calls:
                call()
                replay.run_part()
            results = replay.results(0, self._n_results)
        except BaseException:
            replay.end()
            self._idle.append(replay)
            raise
        call_over = _CallOver(self._idle, replay)
        if not self._wanted:
            del call_over
            return _rebuild(self._structure, iter(results))

        def backward(*grads: Any) -> tuple[Any, ...]:
            return self._backward(call_over, grads, results)

        return _rebuild(self._structure, iter(_attached(results, self._wanted, leaves, backward)))

    def _backward(self, call: _CallOver, grads: Any, results: list[Any]) -> tuple[Any, ...]:
        replay = call.take()
        try:
            replay.check_unchanged()
            replay.add_arguments(_whole(grads, [results[i] for i in self._wanted]))
            replay.run_part()
            found = replay.results(self._n_results, self._n_results + len(self._reached))
        finally:
            call.give_back(replay)
        given: list[Any] = [None] * self._n_leaves
        for i, gradient in zip(self._reached, found, strict=True):
            given[i] = gradient
        return tuple(given)


class _CallOver:
    """A replay whose memory is let go when the backward pass has run, or nobody can ask for it any more."""

    def __init__(self, idle: list[Any], replay: Any) -> None:
        self._idle = idle
        self._replay = replay

    def take(self) -> Any:
        """The replay, once."""
        if self._replay is None:
            raise RuntimeError(
                "jit: the backward pass of this call ran already, and its memory is gone; "
                "call the function again"
            )
        replay, self._replay = self._replay, None
        return replay

    def give_back(self, replay: Any) -> None:
        replay.end()
        self._idle.append(replay)

    def __del__(self) -> None:
        if self._replay is not None:
            self.give_back(self._replay)


class Jitted:
    """Function whose operations are captured at the first call with a signature, and replayed at later ones.

    The first call runs the function as it is written. Later ones run the captured steps: without Python,
    without those whose results nobody needs, with elementwise ones fused, in memory with planned places.
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
        given: list[Any] = []
        structure = _flatten((args, kwargs), given)
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
        structure = _flatten((args, kwargs), arguments)
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

    def _capture(self, known: list[_Program], given: list[Any], arguments: list[Any], values: Any) -> Any:
        # Gradients that flow through an argument end at a stand-in; from there they go on by the outer graph.
        inner = [_stand_in(each) for each in arguments]
        args, kwargs = _rebuild(_structure(values), iter(inner))
        trace = _Trace(inner)
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
        program = _Program(captured, trace, returned, gradients)
        program.operations = operations
        known.append(program)
        results: list[Any] = []
        _flatten(returned, results)
        if gradients is None:
            return _rebuild(_structure(returned), (_outside(each, inner, arguments) for each in results))
        program.leaves = [_number(each, inner) for each in gradients.leaves]

        def backward(*grads: Any) -> tuple[Any, ...]:
            return tuple(gradients.flow(_whole(grads, gradients.outputs)))

        attached = _attached(results, gradients.wanted, self._leaves_of(program, arguments), backward)
        return _rebuild(_structure(returned), iter(attached))

    @staticmethod
    def _leaves_of(program: _Program, arguments: list[Any]) -> list[Any]:
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


def _report(program: _Program) -> JitReport:
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
            f"jit: a value of type {type(value).__name__} given or returned; use tensors, values that can be "
            "hashed, and lists, tuples and dicts of them"
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


def _count(value: Any) -> int:
    tensors: list[Any] = []
    _flatten(value, tensors)
    return len(tensors)


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


def _attached(
    results: list[Any], wanted: list[int], leaves: list[Any], backward: Callable[..., Any]
) -> list[Any]:
    """The results, of which the wanted ones lead back to the leaves."""
    made = list(results)
    for i, each in zip(
        wanted, native.attach("jit", backward, leaves, [results[i] for i in wanted]), strict=True
    ):
        made[i] = each
    return made


def _whole(grads: Any, outputs: list[Any]) -> list[Any]:
    """Contiguous gradients, zeros where none came."""
    return [
        native.full(each.shape, 0, each.dtype, each.device)
        if grad is None
        else native.contiguous(grad.detach())
        for grad, each in zip(grads, outputs, strict=True)
    ]


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
