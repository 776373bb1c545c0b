"""Functions of tensors as programs of JAX, for XLA's devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accelera.errors import ArgumentError, ShapeError, StateError, UnsupportedError
from accelera.tensora.core import native
from accelera.tensora.lowering.jax_steps import JaxBuffers, check_lowered
from accelera.tensora.lowering.program import (
    FunctionProgram,
    PartGradient,
    ProgramBuffer,
    StepProgram,
)
from accelera.tensora.tensor_tree import flatten, rebuild


@dataclass(frozen=True)
class JaxResults:
    """Arrays that `JaxProgram.function` returns."""

    results: list[jax.Array]
    """Results of the function, in the order of its tensors."""
    gradients: dict[str, jax.Array]
    """Gradients of the parameters, by name, that ``backward()`` within the function sets."""
    written: dict[str, jax.Array]
    """New elements of outside tensors that the function writes, by name."""


jax.tree_util.register_dataclass(JaxResults, data_fields=["results", "gradients", "written"], meta_fields=[])


class JaxProgram:
    """Function of tensors, captured once, that XLA compiles and runs on JAX's default device.

    Called like the function, with arguments of the captured shapes and types. Parameters and other tensors
    from outside are copied to the device when they have changed since the last call; gradients and what the
    function writes are copied back. Results are outside of any graph.
    """

    def __init__(self, made: FunctionProgram) -> None:
        check_lowered(made.program)
        self._function_program = made
        self._program = made.program
        self._names = _names(self._program.buffers)
        self._device_arrays: dict[int, tuple[int, Any]] = {}
        self._parts = [_PartFunction(self._program, i) for i in range(len(self._program.parts))]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program for these arguments; return the results of the function.

        Raises
        ------
        ValueError
            If arguments differ in structure, shape or type from the captured ones.
        RuntimeError
            If a parameter has a gradient and had none at the captured call, or the other way round.

        """
        given: list[Any] = []
        structure = flatten((args, kwargs), given)
        arguments = _check_arguments(self._function_program, structure, given)
        self._check_gradients(arguments)
        draws = _draw_array([each._next() for each in self._function_program.generators])
        with jax.enable_x64(True):
            buffers: dict[int, Any] = {}
            for i, part in enumerate(self._parts):
                self._upload(buffers, part.needed, arguments)
                made = part(buffers, draws)
                buffers |= made.buffers
                self._write_back(i, made, arguments)
                if i < len(self._function_program.calls):
                    self._function_program.calls[i][1]()
            results = [_to_tensor(each) for each in made.results]
        return rebuild(self._function_program.returned, iter(results))

    @property
    def parameters(self) -> dict[str, jax.Array]:
        """Tensors from outside that the function reads, by name, as arrays that `function` takes."""
        with jax.enable_x64(True):
            return {name: _to_array(each.tensor) for name, each in self._outside_buffers().items()}

    def function(
        self,
        arguments: Sequence[Any],
        parameters: Mapping[str, Any],
        draws: Any = None,
    ) -> JaxResults:
        """The program as a pure function of arrays, for ``jax.jit``, ``jax.grad`` and optimizers of JAX.

        Parameters
        ----------
        arguments
            Arrays instead of the function's tensors, in their order.
        parameters
            Arrays by name, as `JaxProgram.parameters` gives them.
        draws
            uint64 [n, 2]: seed and number of each of the n draws of random numbers; zeros if none are given.

        Raises
        ------
        NotImplementedError
            If Python takes steps between parts of the program, as optimizers do, or gradients accumulate.
        RuntimeError
            If types of 64 bits are switched off; call it within ``jax.enable_x64(True)``.

        """
        if self._function_program.calls:
            names = ", ".join(name for name, _ in self._function_program.calls)
            raise UnsupportedError(
                f"[to_jax] {names} within the function; lower the function without it, and let an optimizer "
                "of JAX take the step"
            )
        if any(each.kind == "gradient" for each in self._program.buffers):
            raise UnsupportedError(
                "[to_jax] the function adds to gradients that existed before; call zero_grad() at its start"
            )
        if jnp.result_type(int) != jnp.int64:
            raise StateError(
                "[to_jax] JAX's 64 bit types are off; call the function within jax.enable_x64(True)"
            )
        if draws is None:
            draws = jnp.zeros((len(self._function_program.generators), 2), jnp.uint64)
        numbers = {name: i for i, name in self._names.items()}
        buffers = {numbers[name]: value for name, value in parameters.items() if name in numbers}
        for i, buffer in enumerate(self._program.buffers):
            if buffer.kind == "argument":
                buffers[i] = jnp.asarray(arguments[buffer.argument])
            elif buffer.kind == "constant":
                buffers[i] = _to_array(buffer.tensor)
            elif buffer.kind == "outside" and i not in buffers:
                raise ArgumentError(
                    f"[to_jax] no array for parameter {self._names[i]!r}; give all of `parameters`"
                )
        made = self._parts[0].run(buffers, draws)
        leaves = self._program.parts[0].gradients
        return JaxResults(
            made.results,
            {
                self._leaf_name(leaf): value
                for leaf, value in zip(leaves, made.gradients, strict=True)
                if value is not None
            },
            {self._names[i]: made.buffers[i] for i in self._parts[0].written if i in self._names},
        )

    def _leaf_name(self, gradient: PartGradient) -> str:
        if gradient.argument >= 0:
            return f"argument_{gradient.argument}"
        found = (
            n for n, each in self._outside_buffers().items() if _is_same_memory(each.tensor, gradient.leaf)
        )
        return next(found, "unnamed")

    def _outside_buffers(self) -> dict[str, ProgramBuffer]:
        return {name: self._program.buffers[i] for i, name in self._names.items()}

    def _check_gradients(self, arguments: list[Any]) -> None:
        for part in self._program.parts:
            for each in part.gradients:
                if each.was_none and _leaf_of(each, arguments).grad is not None:
                    raise StateError(
                        "[to_jax] a parameter has a gradient, and had none at the capture; set it to None, "
                        "as zero_grad() does"
                    )
        for buffer in self._program.buffers:
            if buffer.kind == "gradient" and _gradient_leaf(buffer, arguments).grad is None:
                raise StateError(
                    "[to_jax] a parameter has no gradient, and had one at the capture; capture it again"
                )

    def _upload(self, buffers: dict[int, Any], needed: list[int], arguments: list[Any]) -> None:
        """Add the arrays that the next part reads; outside tensors are copied only if they have changed."""
        for i in needed:
            buffer = self._program.buffers[i]
            if buffer.kind == "computed":
                continue
            tensor = _flat_tensor(buffer, arguments)
            version, known = self._device_arrays.get(i, (-1, None))
            if buffer.kind not in ("outside", "constant") or version != tensor._version():
                known = _to_array(tensor)
                self._device_arrays[i] = (tensor._version(), known)
            buffers[i] = known

    def _write_back(self, number: int, made: PartArrays, arguments: list[Any]) -> None:
        """Copy what a part has written back to the tensors, and set its gradients."""
        for i in self._parts[number].written:
            memory = _flat_tensor(self._program.buffers[i], arguments)
            memory[...] = _to_tensor(made.buffers[i].reshape(-1))
            self._device_arrays[i] = (memory._version(), made.buffers[i])
        for leaf, value in zip(self._program.parts[number].gradients, made.gradients, strict=True):
            _leaf_of(leaf, arguments).grad = None if value is None else _to_tensor(value)


class PartArrays(NamedTuple):
    """Arrays that a part of a program returns."""

    buffers: dict[int, Any]
    """By buffer number: those that later parts read, and written ones outside of the program."""
    gradients: list[Any]
    """Gradients of the leaves; None for a leaf that has none."""
    results: list[Any]
    """Results of the function, from the last part; empty for the others."""


class _PartFunction:
    """One part of a program, up to a Python call, as a compiled function of the arrays that it reads."""

    def __init__(self, program: StepProgram, number: int) -> None:
        self._program = program
        self._steps = program.parts[number].steps
        self._gradients = [each.window for each in program.parts[number].gradients]
        is_last = number == len(program.parts) - 1
        self._results = program.results if is_last else []
        made = _written_by(program, number, number + 1)
        read = {window.buffer for step in self._steps for window in (*step.inputs, *step.outputs)}
        read |= {window.buffer for window in (*self._gradients, *self._results) if window}
        self.written = sorted(made & set(program.written()))
        self._kept = sorted(made) if not is_last else self.written
        before = _written_by(program, 0, number)
        self.needed = sorted(i for i in read if program.buffers[i].kind != "computed" or i in before)
        """Numbers of the buffers whose arrays it takes."""
        self._compiled = jax.jit(self.run)

    def __call__(self, buffers: Mapping[int, Any], draws: Any) -> PartArrays:
        """Run the compiled part; return its arrays."""
        return self._compiled({i: buffers[i] for i in self.needed}, draws)

    def run(self, buffers: Mapping[int, Any], draws: Any) -> PartArrays:
        """Run the part step by step; this is the function that JAX traces."""
        arrays = JaxBuffers(self._program, dict(buffers), draws)
        arrays.run(self._steps)
        return PartArrays(
            {i: arrays.arrays[i] for i in self._kept},
            [None if window is None else arrays.read(window) for window in self._gradients],
            [arrays.read(window) for window in self._results],
        )


def _written_by(program: StepProgram, first: int, end: int) -> set[int]:
    return {w.buffer for part in program.parts[first:end] for step in part.steps for w in step.outputs}


def _names(buffers: list[ProgramBuffer]) -> dict[int, str]:
    """Return the name of each outside buffer: its own, or "tensor_" and a number."""
    outside = [i for i, each in enumerate(buffers) if each.kind == "outside"]
    return {i: buffers[i].name or f"tensor_{k}" for k, i in enumerate(outside)}


def _check_arguments(made: FunctionProgram, structure: Any, given: list[Any]) -> list[Any]:
    """Return the arguments; ValueError unless structure, shapes, types and layout of written ones fit."""
    if structure != made.structure:
        raise ArgumentError(
            "[to_jax] arguments of another structure than those of the capture; capture the function again"
        )
    for i, (each, like) in enumerate(zip(given, made.arguments, strict=True)):
        if tuple(each.shape) != tuple(like.shape) or each.dtype != like.dtype:
            raise ShapeError(
                f"[to_jax] argument {i} has shape {tuple(each.shape)} and type {each.dtype.name}, and the "
                f"program takes {tuple(like.shape)} and {like.dtype.name}; capture the function again"
            )
    whole = [native.contiguous(each.detach()) for each in given]
    for i in made.program.written():
        buffer = made.program.buffers[i]
        if buffer.kind == "argument" and native.address(whole[buffer.argument]) != native.address(
            given[buffer.argument]
        ):
            raise ArgumentError(
                f"[to_jax] the function writes to argument {buffer.argument}, which is not contiguous; give "
                "a contiguous tensor"
            )
    return given


def _flat_tensor(buffer: ProgramBuffer, arguments: list[Any]) -> Any:
    """Return the current elements of a buffer from before the call, as a flat tensor."""
    if buffer.kind == "argument":
        return native.reshape(native.contiguous(arguments[buffer.argument].detach()), (-1,))
    if buffer.kind == "gradient":
        return native.reshape(native.contiguous(_gradient_leaf(buffer, arguments).grad.detach()), (-1,))
    return buffer.tensor


def _leaf_of(gradient: PartGradient, arguments: list[Any]) -> Any:
    return arguments[gradient.argument] if gradient.argument >= 0 else gradient.leaf


def _gradient_leaf(buffer: ProgramBuffer, arguments: list[Any]) -> Any:
    return arguments[buffer.argument] if buffer.argument >= 0 else buffer.tensor


def _is_same_memory(a: Any, b: Any) -> bool:
    return native.storage_id(a) == native.storage_id(b) and native.address(a) == native.address(b)


def _to_array(tensor: Any) -> Any:
    """Return a copy as an array on JAX's default device, once the transfer has finished."""
    shared = jnp.from_dlpack(native.contiguous(tensor.detach()))
    return jnp.array(shared, copy=True).block_until_ready()


def _to_tensor(array: Any) -> Any:
    """Return a copy of an array as a tensor on the CPU."""
    on_host = jax.device_put(array, jax.devices("cpu")[0]).block_until_ready()
    return native.copy(native.from_dlpack(on_host))


def _draw_array(drawn: list[tuple[int, int]]) -> Any:
    return jnp.asarray(np.array(drawn, np.uint64).reshape((-1, 2)))
