"""Adafactor, whose averages of squares are kept as a row and a column."""

from __future__ import annotations

from typing import Any

from accelera.errors import ArgumentError
from accelera.tensora import dtypes
from accelera.tensora.autograd import no_grad
from accelera.tensora.core import native
from accelera.tensora.linalg import vector_norm
from accelera.tensora.optim.optimizer import Optimizer, Params, State, as_state, zeros_like


class Adafactor(Optimizer):
    """Steps over the root of average squares that are kept as a row and a column (N. Shazeer, M. Stern 2018).

    The state of a matrix of n times m elements has n + m of them. Of tensors with more axes the last two are
    a matrix, and vectors keep all squares.

    Parameters
    ----------
    params
        Tensors, or groups of them.
    lr
        Greatest step relative to the size of the parameter.
    beta2_decay
        Exponent of the number of the step, 0 or less: share of a new square in the averages.
    eps
        Least average square, as the root of it, or None for the type's precision; and the least size of a
        parameter.
    d
        Root of the mean square above which a step is made shorter, at least 1.
    weight_decay
        Shrinks the parameters themselves, by this factor of the learning rate.
    maximize
        Go along the gradient instead of against it.

    Raises
    ------
    ValueError
        If an option is out of range.

    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d}
        super().__init__(params, {**options, "weight_decay": weight_decay, "maximize": maximize})

    def check(self, group: dict[str, Any]) -> None:
        """Raise ValueError if an option of the group is out of range."""
        super().check({name: value for name, value in group.items() if name != "eps"})
        if group["beta2_decay"] > 0:
            raise ArgumentError(f"[Adafactor] beta2_decay={group['beta2_decay']}; give 0 or less")
        if group["d"] < 1:
            raise ArgumentError(f"[Adafactor] d={group['d']}; give at least 1")
        if any(each is not None and each < 0 for each in group["eps"]):
            raise ArgumentError(f"[Adafactor] eps={group['eps']}; give 0 or more")

    def update(self, group: dict[str, Any], params: list[Any], grads: list[Any]) -> None:
        """Write the next step into the parameters, which all have gradients."""
        with no_grad():
            for param, grad in zip(params, grads, strict=True):
                if param not in self.state:
                    self.state[param] = _new_state(param)
                self.state[param]["step"] += 1
                _change(param, -grad if group["maximize"] else grad, self.state[param], group)


def _new_state(param: Any) -> State:
    if param.ndim < 2:
        return {"step": 0, "variance": zeros_like(param)}
    row, column = (*param.shape[:-1], 1), (*param.shape[:-2], 1, param.shape[-1])
    shapes = {"row_var": row, "col_var": column}
    parts = {name: native.full(shape, 0, param.dtype, param.device) for name, shape in shapes.items()}
    return {"step": 0, **{name: as_state(part) for name, part in parts.items()}}


def _change(param: Any, grad: Any, state: State, group: dict[str, Any]) -> None:
    least, least_size = group["eps"]
    least = dtypes.finfo(param.dtype).eps if least is None else least
    size = max(least_size, _root_mean_square(param))
    rate = size * min(group["lr"], state["step"] ** -0.5)
    if group["weight_decay"]:
        param *= 1 - group["lr"] * group["weight_decay"]
    variance = _variance(grad, state, state["step"] ** group["beta2_decay"], least)
    step = grad * native.rsqrt(native.maximum(variance, least * least))
    param -= step * (rate / max(1.0, _root_mean_square(step) / group["d"]))


def _root_mean_square(x: Any) -> float:
    return float(vector_norm(x).item()) / x.size**0.5 if x.size else 0.0


def _variance(grad: Any, state: State, share: float, least: float) -> Any:
    """Average square of the gradient, after this one was taken into it."""
    if "variance" in state:
        state["variance"] += (grad * grad - state["variance"]) * share
        return state["variance"]
    for name, axis in (("row_var", -1), ("col_var", -2)):
        mean = native.square(vector_norm(grad, axis=axis, keepdims=True)) / float(max(grad.shape[axis], 1))
        state[name] += (mean - state[name]) * share
    rows, columns = state["row_var"], state["col_var"]
    mean = native.sum(rows, -2, True) / float(max(rows.shape[-2], 1))
    return native.matmul(rows, columns) / native.maximum(mean, least)
