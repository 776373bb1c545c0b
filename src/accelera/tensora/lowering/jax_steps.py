"""Steps of a captured program in JAX, on buffers that are arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

from accelera.errors import UnsupportedError
from accelera.tensora.lowering.jax_elementwise import FORMULAS
from accelera.tensora.lowering.jax_networks import NETWORKS, widened
from accelera.tensora.lowering.jax_operations import OPERATIONS
from accelera.tensora.lowering.jax_random import RANDOM
from accelera.tensora.lowering.jax_windows import WINDOWS
from accelera.tensora.lowering.program import ProgramStep, StepProgram
from accelera.tensora.lowering.window import BufferWindow, WindowBox, box_of

LOWERED = OPERATIONS | NETWORKS | WINDOWS
"""Entries that are no formulas and draw no numbers, by name."""


def check_lowered(program: StepProgram) -> None:
    """Raise NotImplementedError if an operation of the program has no form in JAX."""
    known = FORMULAS.keys() | LOWERED.keys() | RANDOM.keys()
    missing = sorted({step.name for step in program.steps} - known)
    if missing:
        raise UnsupportedError(
            f"[to_jax] no form in JAX of {', '.join(missing)}; leave them out of the function, and "
            "do them before or after it"
        )


class JaxBuffers:
    """Arrays of a program's buffers, while a part of it is traced or runs."""

    def __init__(self, program: StepProgram, arrays: dict[int, Any], draws: Any) -> None:
        self.arrays = arrays
        self._program = program
        self._draws = draws

    def run(self, steps: Iterable[ProgramStep]) -> None:
        """Run the steps in order."""
        for step in steps:
            inputs = [self.read(each) for each in step.inputs]
            made = self._lower(step, inputs)
            results = made if isinstance(made, (tuple, list)) else (made,)
            for window, result in zip(step.outputs, results, strict=False):
                self.write(window, result)

    def _lower(self, step: ProgramStep, inputs: list[Any]) -> Any:
        if step.name in RANDOM:
            fixed = np.array(step.params.b, np.int64).view(np.uint64)
            draw = jnp.asarray(fixed) if step.draw < 0 else self._draws[step.draw]
            return RANDOM[step.name](step, *inputs, draw)
        if step.name in LOWERED:
            return LOWERED[step.name](step, *inputs)
        operands = [each.astype(step.computed_in.name) for each in inputs]
        if step.name != "nextafter":
            operands = [widened(each) for each in operands]
        return FORMULAS[step.name](*operands)

    def read(self, window: BufferWindow) -> Any:
        """Return the elements of a window, in its shape."""
        array = self.arrays[window.buffer]
        if window.size == 0:
            return jnp.zeros(window.shape, array.dtype)
        box = box_of(window, array.size)
        if box is None:
            return array.reshape(-1)[window.places()]
        if box.skipped or box.padded:
            array = jnp.pad(array.reshape(-1)[box.skipped :], (0, box.padded))
        part = array.reshape(box.levels)
        if box.is_cut:
            part = part[_slices(box)]
        part = part.reshape(box.kept).transpose(box.order)
        if box.reversed_axes:
            part = jnp.flip(part, box.reversed_axes)
        return jnp.broadcast_to(part.reshape(box.expanded), window.shape)

    def write(self, window: BufferWindow, value: Any) -> None:
        """Replace the elements of a window."""
        if window.size == 0 and window.buffer in self.arrays:
            return
        size = self._program.buffers[window.buffer].size
        value = jnp.broadcast_to(value.astype(window.dtype.name), window.shape)
        box = box_of(window, size)
        if box is not None and not (box.skipped or box.padded):
            value = _to_box(box, value)
            if not box.is_cut:
                self.arrays[window.buffer] = value
                return
            base = self._array_or_zeros(window, size).reshape(box.levels)
            self.arrays[window.buffer] = base.at[_slices(box)].set(value)
        else:
            self.arrays[window.buffer] = (
                self._array_or_zeros(window, size).reshape(-1).at[window.places()].set(value)
            )

    def _array_or_zeros(self, window: BufferWindow, size: int) -> Any:
        if window.buffer in self.arrays:
            return self.arrays[window.buffer]
        return jnp.zeros((size,), window.dtype.name)


def _slices(box: WindowBox) -> tuple[slice, ...]:
    return tuple(slice(start, start + size) for start, size in zip(box.starts, box.sizes, strict=True))


def _to_box(box: WindowBox, value: Any) -> Any:
    """Return the elements of a window in the shape and order of its box."""
    kept = [box.kept[i] for i in box.order]
    value = value.reshape(kept)
    if box.reversed_axes:
        value = jnp.flip(value, box.reversed_axes)
    back = tuple(int(i) for i in np.argsort(box.order))
    return value.transpose(back).reshape(box.sizes)
