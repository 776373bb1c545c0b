"""Changes to gradients and parameters of a whole network."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from accelera.errors import ShapeError, StateError
from accelera.tensora import linalg, manipulation
from accelera.tensora.autograd import no_grad
from accelera.tensora.core import Tensor, native


def _grads(parameters: Any) -> list[Any]:
    some = [parameters] if isinstance(parameters, Tensor) else parameters
    return [each.grad for each in some if each.grad is not None]


def get_total_norm(
    tensors: Iterable[Any], norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Return the norm of all elements of tensors as of one vector.

    Raises
    ------
    RuntimeError
        If it is not finite and `error_if_nonfinite`.

    """
    norms = [linalg.vector_norm(each.detach(), ord=norm_type) for each in tensors]
    if not norms:
        return native.full((), 0, native.to_dtype("float32"), "cpu")
    total = linalg.vector_norm(manipulation.stack(norms), ord=norm_type)
    if error_if_nonfinite and not math.isfinite(float(total)):
        raise StateError(
            f"[get_total_norm] the norm of order {norm_type} is {float(total)}; some gradient is not finite"
        )
    return total


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale gradients in place so that their norm together is at most `max_norm`.

    Parameters
    ----------
    parameters
        Tensors, or one.
    max_norm
        Greatest norm.
    norm_type
        Order of the norm.
    error_if_nonfinite
        Whether a norm that is not finite is an error.

    Returns
    -------
    Tensor
        The norm before.

    Raises
    ------
    RuntimeError
        If the norm is not finite and `error_if_nonfinite`.

    """
    grads = _grads(parameters)
    total = get_total_norm(grads, norm_type, error_if_nonfinite)
    factor = native.clip(max_norm / (total + 1e-6), 0.0, 1.0)
    with no_grad():
        for grad in grads:
            grad *= native.cast(factor, grad.dtype)
    return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Limit each element of the gradients in place to the range from ``-clip_value`` to `clip_value`."""
    with no_grad():
        for grad in _grads(parameters):
            grad[...] = native.clip(grad, -float(clip_value), float(clip_value))


def parameters_to_vector(parameters: Iterable[Any]) -> Tensor:
    """Return all elements of parameters as one vector."""
    return native.concat([native.reshape(each, (-1,)) for each in parameters], 0)


def vector_to_parameters(vector: Tensor, parameters: Iterable[Any]) -> None:
    """Write the elements of one vector into parameters.

    Raises
    ------
    ValueError
        If there are more or fewer.

    """
    some = list(parameters)
    total = sum(each.size for each in some)
    if vector.ndim != 1 or vector.size != total:
        raise ShapeError(
            f"[vector_to_parameters] a vector of shape {tuple(vector.shape)} for {total} numbers"
        )
    begin = 0
    for each in some:
        part = vector.detach()[begin : begin + each.size]
        each.detach()[...] = native.reshape(part, tuple(each.shape))
        begin += each.size
