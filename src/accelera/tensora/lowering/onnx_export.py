"""Export of captured programs as ONNX models."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from accelera.errors import UnsupportedError
from accelera.tensora.core import native
from accelera.tensora.lowering.onnx_elementwise import FORMULAS, lowered_elementwise
from accelera.tensora.lowering.onnx_graph import GraphValue, OnnxGraph, element_type, numpy_type
from accelera.tensora.lowering.onnx_networks import NETWORKS
from accelera.tensora.lowering.onnx_operations import OPERATIONS, written
from accelera.tensora.lowering.program import FunctionProgram, ProgramStep, StepProgram
from accelera.tensora.lowering.window import BufferWindow, box_of

OPSET = 21
IR_VERSION = 10
LARGEST_MESSAGE = 2**31 - 2**20
"""Most bytes of a model in one file, as protobuf limits it."""
LOWERED = OPERATIONS | NETWORKS


class OnnxExport:
    """ONNX graph of a captured function, built step by step."""

    def __init__(self, made: FunctionProgram, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self.graph = OnnxGraph()
        self._program = made.program
        _check_exportable(made)
        self._values: dict[int, GraphValue] = {}
        shapes = _initializer_shapes(self._program)
        self.inputs = _arguments(self.graph, made, inputs)
        for i, buffer in enumerate(self._program.buffers):
            if buffer.kind == "argument":
                self._values[i] = self.inputs[buffer.argument]
            elif buffer.kind in ("outside", "constant"):
                array = _to_array(buffer.tensor).reshape(shapes.get(i, (buffer.size,)))
                value = self.graph.initializer if buffer.name else self._constant
                self._values[i] = value(buffer.name, array)
        for step in self._program.steps:
            self._lower_step(step)
        self.outputs = [
            self._rename(self.read(window), name)
            for window, name in zip(self._program.results, outputs, strict=True)
        ]

    def _constant(self, _name: str, array: np.ndarray) -> GraphValue:
        return self.graph.constant(array)

    def _lower_step(self, step: ProgramStep) -> None:
        inputs = [self.read(each) for each in step.inputs]
        if step.name in LOWERED:
            made = LOWERED[step.name](step, *inputs)
        else:
            dtype = step.outputs[0].dtype.name
            made = lowered_elementwise(step.name, inputs, step.computed_in.name, dtype)
        results = made if isinstance(made, (tuple, list)) else (made,)
        for window, result in zip(step.outputs, results, strict=False):
            self.write(window, result.to(window.dtype.name))

    def read(self, window: BufferWindow) -> GraphValue:
        """Return the elements of a window, in its shape."""
        value, graph = self._values[window.buffer], self.graph
        if window.size == 0:
            return graph.constant(np.zeros(window.shape, numpy_type(window.dtype.name)))
        if _is_whole_buffer(window, value.size):
            return value.reshape(window.shape)
        box = box_of(window, value.size)
        if box is None:
            return graph.gather(value.reshape((value.size,)), window.places(), 0)
        if box.skipped or box.padded:
            flat = value.reshape((value.size,))
            flat = graph.slice(flat, [box.skipped], [value.size - box.skipped])
            value = graph.pad(flat, [0], [box.padded])
        part = graph.slice(value.reshape(box.levels), box.starts, box.sizes)
        part = part.reshape(box.kept).transpose(box.order)
        return graph.flip(part, box.reversed_axes).reshape(box.expanded).expand(window.shape)

    def write(self, window: BufferWindow, value: GraphValue) -> None:
        """Replace the elements of a window."""
        size = self._program.buffers[window.buffer].size
        value = value.reshape(window.shape) if value.size == window.size else value.expand(window.shape)
        if _is_whole_buffer(window, size):
            self._values[window.buffer] = value
        elif window.size:
            before = self._values.get(window.buffer)
            flat = self.graph.zeros((size,), value.dtype) if before is None else before.reshape((size,))
            self._values[window.buffer] = written(flat, value, window)

    def _rename(self, value: GraphValue, name: str) -> GraphValue:
        identity = self.graph.add("Identity", [value], value.shape, value.dtype)
        self.graph.nodes[-1].output[0] = name
        return GraphValue(self.graph, name, identity.shape, identity.dtype)

    def model(self) -> onnx.ModelProto:
        """Return the model; `onnx.checker` has checked it unless it is too large."""
        graph = helper.make_graph(
            self.graph.nodes,
            "accelera",
            [_value_info(each) for each in self.inputs],
            [_value_info(each) for each in self.outputs],
            _used_initializers(self.graph),
        )
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(
            graph, producer_name="accelera", opset_imports=[opset], ir_version=IR_VERSION
        )
        if model.ByteSize() < LARGEST_MESSAGE:
            onnx.checker.check_model(model, full_check=True)
        return model


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a model; if it is too large for one file, its tensors go to ``<name>.data`` beside it."""
    is_large = model.ByteSize() >= LARGEST_MESSAGE
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        new = Path(folder) / path.name
        if is_large:
            onnx.save_model(model, new, save_as_external_data=True, location=f"{path.name}.data")
        else:
            onnx.save_model(model, new)
        for each in sorted(Path(folder).iterdir(), reverse=True):  # the model after its data
            os.replace(each, path.parent / each.name)


def _check_exportable(made: FunctionProgram) -> None:
    if made.calls:
        raise UnsupportedError(
            f"[export_onnx] the function calls {made.calls[0][0]}; export a forward pass, without optimizer"
        )
    if made.generators:
        raise UnsupportedError(
            "[export_onnx] the function draws random numbers, as dropout does in training; call model.eval() "
            "first"
        )
    if made.program.written():
        raise UnsupportedError(
            "[export_onnx] the function writes to its arguments or to tensors from outside, as batch "
            "normalization does in training; call model.eval() first"
        )
    known = FORMULAS.keys() | LOWERED.keys()
    missing = sorted({step.name for step in made.program.steps} - known)
    if missing:
        raise UnsupportedError(
            f"[export_onnx] no form in ONNX of {', '.join(missing)}; leave them out of the function, and do "
            "them before or after the model"
        )


def _arguments(graph: OnnxGraph, made: FunctionProgram, names: Sequence[str]) -> list[GraphValue]:
    values = []
    for name, each in zip(names, made.arguments, strict=True):
        if each.dtype.name.startswith("complex"):
            raise UnsupportedError(f"[export_onnx] argument {name!r} is {each.dtype.name}; give real numbers")
        values.append(GraphValue(graph, graph.unique(name), tuple(each.shape), each.dtype.name))
    return values


def _initializer_shapes(program: StepProgram) -> dict[int, tuple[int, ...]]:
    """Return the shape in which a step reads each whole buffer: for a parameter, its own shape."""
    return {
        window.buffer: window.shape
        for step in reversed(program.steps)
        for window in step.inputs
        if _is_whole_buffer(window, program.buffers[window.buffer].size)
    }


def _is_whole_buffer(window: BufferWindow, size: int) -> bool:
    """Return whether a window is the whole buffer, in row-major order."""
    return window.size == size and window.offset == 0 and window.is_row


def _to_array(tensor: Any) -> np.ndarray:
    dtype = tensor.dtype.name
    wide = native.cast(tensor, native.dtype.float32) if dtype in ("bfloat16", "float16") else tensor
    return np.array(wide).astype(numpy_type(dtype))


def _value_info(value: GraphValue) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, element_type(value.dtype), value.shape)


def _used_initializers(graph: OnnxGraph) -> list[onnx.TensorProto]:
    read = {name for node in graph.nodes for name in node.input}
    return [each for each in graph.initializers if each.name in read]
