"""Captured programs as programs of other libraries: JAX and ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelera._extras import needed_for
from accelera.errors import ArgumentError
from accelera.tensora.lowering.program import capture_program
from accelera.tensora.nn.module import Module

if TYPE_CHECKING:
    import onnx

    from accelera.tensora.lowering.jax_program import JaxProgram

__all__ = ["export_onnx", "to_jax"]


def to_jax(
    function: Callable[..., Any], *args: Any, names: Mapping[str, Any] | None = None, **kwargs: Any
) -> JaxProgram:
    """Capture a function of tensors, and lower its program to JAX.

    Parameters
    ----------
    function
        A module, or a function as `accelera.tensora.jit` takes it: a forward pass, or a training step with
        ``backward()``. It is called once.
    args, kwargs
        Its arguments; later ones have the same shapes and types.
    names
        Parameters and other tensors from outside, by name; those of a module are known.

    Returns
    -------
    JaxProgram
        Called like the function, and run by XLA; `JaxProgram.function` is the same for arrays of JAX.

    Raises
    ------
    BackendMissingError
        If JAX is not installed.
    NotImplementedError
        If an operation of the function has no form in JAX.
    RuntimeError
        If the function needs elements of a tensor that it computes.

    """
    with needed_for("to_jax"):
        from accelera.tensora.lowering.jax_program import JaxProgram
    return JaxProgram(capture_program(function, *args, names=names_of(function, names), **kwargs))


def names_of(function: Callable[..., Any], names: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Tensors by name: those given, or a module's parameters and buffers."""
    if names is not None or not isinstance(function, Module):
        return names or {}
    return dict(function.named_parameters()) | dict(function.named_buffers())


def export_onnx(
    function: Callable[..., Any],
    args: Any,
    path: str | PathLike[str] | None = None,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> onnx.ModelProto:
    """Capture a function of tensors, and write its program as a model of ONNX.

    Parameters
    ----------
    function
        A module, or a function of tensors that computes a forward pass. It is called once.
    args
        Its argument, or a tuple of them: tensors of the shapes and types that the model will take.
    path
        File to write; none is written if None. Tensors of a model of more than 2 GiB go to ``<path>.data``.
    input_names, output_names
        Names of the model's inputs and outputs; ``input``, ``input_1`` and so on if None.

    Returns
    -------
    onnx.ModelProto
        Operations of opset 21, parameters by their names, checked by ONNX.

    Raises
    ------
    BackendMissingError
        If ONNX is not installed.
    NotImplementedError
        If an operation has no form in ONNX, draws random numbers, or writes to tensors from outside.
    ValueError
        If there are more or fewer names than tensors.

    """
    with needed_for("export_onnx"):
        from accelera.tensora.lowering.onnx_export import OnnxExport, save
    given = args if isinstance(args, tuple) else (args,)
    made = capture_program(function, *given, names=names_of(function, None))
    inputs = _wanted_names("input", input_names, len(made.arguments))
    outputs = _wanted_names("output", output_names, len(made.program.results))
    model = OnnxExport(made, inputs, outputs).model()
    if path is not None:
        save(model, Path(path))
    return model


def _wanted_names(kind: str, names: Sequence[str] | None, n: int) -> Sequence[str]:
    if names is None:
        return [kind if i == 0 else f"{kind}_{i}" for i in range(n)]
    if len(names) != n or len(set(names)) != n:
        raise ArgumentError(
            f"[export_onnx] {kind}_names={list(names)} for {n} tensors; give as many names, each once"
        )
    return names
