"""Captured programs as programs of other libraries: JAX and ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from accelera.extras import needed_for
from accelera.tensora.lowering.program import capture_program
from accelera.tensora.nn.module import Module

if TYPE_CHECKING:
    from accelera.tensora.lowering.jax_program import JaxProgram

__all__ = ["to_jax"]


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
