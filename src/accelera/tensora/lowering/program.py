"""Captured programs as plain records, which are lowered to programs of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from accelera.errors import UnsupportedError
from accelera.tensora.captured_program import FunctionTrace
from accelera.tensora.core import Tensor, native
from accelera.tensora.dtypes import itemsize
from accelera.tensora.lowering.window import BufferWindow
from accelera.tensora.tensor_tree import flatten, rebuild, structure_of


@dataclass(frozen=True)
class StepParams:
    """Parameters of a step besides its tensors; each entry of the op table documents the fields it reads."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    c: tuple[int, ...]
    x: float
    y: float
    dtype: Any
    flag: bool
    mode: int


@dataclass(frozen=True)
class ProgramStep:
    """One entry of the op table, on windows of buffers."""

    name: str
    params: StepParams
    inputs: tuple[BufferWindow, ...]
    outputs: tuple[BufferWindow, ...]
    draw: int
    """Index of the program's draw, for a step that draws random numbers; otherwise -1."""
    computed_in: Any
    """Element type that the operands of an elementwise step are converted to."""


@dataclass(frozen=True)
class ProgramBuffer:
    """Memory of a program, a flat row of elements of one type."""

    kind: str
    """argument, outside, gradient, constant or computed"""
    size: int
    dtype: Any
    argument: int = -1
    tensor: Any = None
    """Elements of an outside or constant buffer; for a gradient, its leaf unless that is an argument."""
    name: str = ""
    """Name of the parameter that an outside buffer holds; empty if it has none."""


@dataclass(frozen=True)
class PartGradient:
    """Gradient that a part of a program sets on a leaf when it ends: a window, or None."""

    leaf: Any
    argument: int
    was_none: bool
    window: BufferWindow | None


@dataclass(frozen=True)
class ProgramPart:
    """Steps up to a call that Python makes, and the gradients they set."""

    steps: tuple[ProgramStep, ...]
    gradients: tuple[PartGradient, ...]


class StepProgram:
    """Steps of the op table that a function ran, for inputs of the captured shapes and types.

    Parameters
    ----------
    captured
        The program, simplified and not fused.
    names
        Tensors from outside, by name.

    """

    def __init__(self, captured: Any, names: Mapping[str, Any] | None = None) -> None:
        self.buffers: list[ProgramBuffer] = []
        steps = _with_buffer_types([_parse_step(each) for each in captured.steps()])
        windows = [window for step in steps for window in (*step.inputs, *step.outputs)]
        parts = captured.parts()
        gradients = [window for _, given in parts for *_, window in given if window]
        results = captured.results()
        windows += [_parse_window(each) for each in (*gradients, *(window for window, *_ in results))]
        moved = self._add_buffers(captured.buffers(), windows, names or {})
        self.parts: list[ProgramPart] = []
        begin = 0
        for end, given in parts:
            made = tuple(
                PartGradient(leaf, argument, was_none, moved[_parse_window(window)] if window else None)
                for leaf, argument, was_none, window in given
            )
            self.parts.append(
                ProgramPart(tuple(_with_windows(step, moved) for step in steps[begin:end]), made)
            )
            begin = end
        self.results = [moved[_parse_window(window)] for window, *_ in results]

    @property
    def steps(self) -> list[ProgramStep]:
        """All steps."""
        return [step for part in self.parts for step in part.steps]

    def written(self) -> list[int]:
        """Return the numbers of the buffers that exist before the call and that steps write."""
        written = {window.buffer for step in self.steps for window in step.outputs}
        return sorted(i for i in written if self.buffers[i].kind not in ("computed", "constant"))

    def _add_buffers(
        self, given: list[Any], windows: list[BufferWindow], names: Mapping[str, Any]
    ) -> dict[BufferWindow, BufferWindow]:
        """Add the buffers that windows use; return each window as a window of the added buffers.

        An outside buffer is split into the ranges that are used, each a buffer of its own.
        """
        moved: dict[BufferWindow, BufferWindow] = {}
        of_buffer: dict[int, list[BufferWindow]] = {}
        for window in dict.fromkeys(windows):
            of_buffer.setdefault(window.buffer, []).append(window)
        for number, uses in sorted(of_buffer.items()):
            kind, nbytes, argument, tensor = given[number]
            if kind != "outside":
                dtype = next((each.dtype for each in uses if each.dtype.name != "uint8"), uses[0].dtype)
                size = nbytes // itemsize(dtype)
                if kind == "constant":
                    tensor = native.storage_elements(tensor, dtype, 0, size)
                new = ProgramBuffer(kind, size, dtype, argument, tensor)
                self._add_buffer(uses, new, 0, moved)
                continue
            for group in _overlap_groups(uses):
                low, high = min(each.span()[0] for each in group), max(each.span()[1] for each in group)
                part = native.storage_elements(tensor, group[0].dtype, low, high - low)
                name = next((n for n, each in names.items() if _covers(each, part)), "")
                self._add_buffer(
                    group, ProgramBuffer(kind, high - low, part.dtype, -1, part, name), low, moved
                )
        return moved

    def _add_buffer(
        self,
        uses: list[BufferWindow],
        buffer: ProgramBuffer,
        low: int,
        moved: dict[BufferWindow, BufferWindow],
    ) -> None:
        for each in uses:
            moved[each] = replace(each, buffer=len(self.buffers), offset=each.offset - low)
        self.buffers.append(buffer)


@dataclass(frozen=True)
class FunctionProgram:
    """Program of a function, with its signature and the Python calls between its parts."""

    program: StepProgram
    arguments: list[Any]
    """Tensors that it was captured with."""
    structure: Any
    """Key of the arguments without their tensors; see `tensor_tree.flatten`."""
    returned: Any
    """Value that the function returned, with placeholders for tensors; see `tensor_tree.structure_of`."""
    calls: list[tuple[str, Callable[[], Any]]]
    """Calls that Python makes between the parts."""
    generators: list[Any]


def capture_program(
    function: Callable[..., Any], *args: Any, names: Mapping[str, Any] | None = None, **kwargs: Any
) -> FunctionProgram:
    """Call the function once, and return the captured program.

    Parameters
    ----------
    function
        Computes with tensors, as `accelera.tensora.jit` says.
    names
        Parameters and other tensors from outside, by name.

    Raises
    ------
    RuntimeError
        If the function needs elements of a tensor that it computes.

    """
    given: list[Any] = []
    structure = flatten((args, kwargs), given)
    arguments = [native.copy(each.detach()) for each in given]
    for each, copied in zip(given, arguments, strict=True):
        copied.requires_grad = each.requires_grad
    inner_args, inner_kwargs = rebuild(structure_of((args, kwargs)), iter(arguments))
    trace = FunctionTrace(arguments)
    returned: list[Any] = []

    def run() -> list[Tensor]:
        returned.append(function(*inner_args, **inner_kwargs))
        results: list[Tensor] = []
        flatten(returned[0], results)
        return results

    captured = trace.forward(run)
    captured.simplify()
    program = StepProgram(captured, names)
    return FunctionProgram(
        program, arguments, structure, structure_of(returned[0]), trace.calls, trace.generators
    )


def _parse_window(given: Any) -> BufferWindow:
    buffer, dtype, shape, strides, offset = given
    return BufferWindow(buffer, dtype, tuple(shape), tuple(strides), offset)


def _parse_step(given: Any) -> ProgramStep:
    return ProgramStep(
        given["name"],
        StepParams(**given["params"]),
        tuple(map(_parse_window, given["inputs"])),
        tuple(map(_parse_window, given["outputs"])),
        given["draw"],
        given["computed_in"],
    )


def _with_buffer_types(steps: list[ProgramStep]) -> list[ProgramStep]:
    """Return the steps, with fills by constant bytes turned into fills by elements of the buffer's type."""
    types = {
        window.buffer: window.dtype
        for step in steps
        for window in (*step.inputs, *step.outputs)
        if window.dtype.name != "uint8"
    }
    made = []
    for step in steps:
        wanted = types.get(step.outputs[0].buffer)
        if step.name == "cast" and step.outputs[0].dtype.name == "uint8" and wanted is not None:
            inputs, outputs = ((_as_type(each[0], wanted),) for each in (step.inputs, step.outputs))
            step = replace(step, inputs=inputs, outputs=outputs, computed_in=wanted)
        made.append(step)
    return made


def _as_type(window: BufferWindow, dtype: Any) -> BufferWindow:
    return replace(window, dtype=dtype, shape=(window.size // itemsize(dtype),), strides=(1,), offset=0)


def _with_windows(step: ProgramStep, moved: dict[BufferWindow, BufferWindow]) -> ProgramStep:
    inputs = tuple(moved[each] for each in step.inputs)
    return replace(step, inputs=inputs, outputs=tuple(moved[each] for each in step.outputs))


def _overlap_groups(windows: list[BufferWindow]) -> list[list[BufferWindow]]:
    """Group windows by overlap: windows of different groups share no element.

    Raises
    ------
    NotImplementedError
        If one group has several element types.

    """
    groups: list[list[BufferWindow]] = []
    end = -1
    for each in sorted(windows, key=lambda each: each.span()[0] * itemsize(each.dtype)):
        low, high = (place * itemsize(each.dtype) for place in each.span())
        if groups and (low < end or low == high):
            groups[-1].append(each)
        else:
            groups.append([each])
        end = max(end, high)
    for group in groups:
        if len({each.dtype for each in group}) > 1:
            found = ", ".join(sorted({each.dtype.name for each in group}))
            raise UnsupportedError(
                f"[lowering] memory from outside of the function is read as {found}; give it one element type"
            )
    return groups


def _covers(tensor: Any, part: Any) -> bool:
    return (
        tensor.size == part.size
        and tensor.dtype == part.dtype
        and native.storage_id(tensor) == native.storage_id(part)
        and native.address(tensor) == native.address(part)
    )
