"""SGD, Adam and AdamW, whose step over all parameters of a group is one call of C++."""

from __future__ import annotations

from typing import Any

from accelera.errors import ArgumentError
from accelera.tensora.core import native
from accelera.tensora.optim.optimizer import Optimizer, Params, State, zeros_like


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if wanted (Sutskever et al. 2013, for Nesterov's).

    Parameters
    ----------
    params
        Tensors, or groups of them.
    lr
        Learning rate.
    momentum
        Share of the last step's direction that is kept.
    dampening
        Share of the gradient that does not enter the direction.
    weight_decay
        Factor of the parameter that is added to its gradient.
    nesterov
        Look ahead along the momentum; needs momentum and no dampening.
    maximize
        Go along the gradient instead of against it.

    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**options, "nesterov": nesterov, "maximize": maximize})

    def check(self, group: dict[str, Any]) -> None:
        """Raise ValueError if an option of the group is out of range."""
        super().check(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ArgumentError("[SGD] nesterov=True needs momentum above 0 and dampening=0")

    def update(self, group: dict[str, Any], params: list[Any], grads: list[Any]) -> None:
        """Write the next step into the parameters, which all have gradients."""
        options = {name: value for name, value in group.items() if name != "params"}
        if group["momentum"] == 0:
            native.sgd_step(params, grads, [], options | {"first": False})
            return
        # The first direction of a parameter is its gradient, undampened.
        known = [each in self.state for each in params]
        for first in (True, False):
            some = [i for i, each in enumerate(known) if each != first]
            if not some:
                continue
            chosen = [params[i] for i in some]
            if first:
                self.state.update({each: {"momentum_buffer": zeros_like(each)} for each in chosen})
            buffers = [self.state[each]["momentum_buffer"] for each in chosen]
            native.sgd_step(chosen, [grads[i] for i in some], buffers, options | {"first": first})


class Adam(Optimizer):
    """Adam: steps of the size of the learning rate, along moving averages (D. Kingma and J. Ba 2014).

    Parameters
    ----------
    params
        Tensors, or groups of them.
    lr
        Learning rate.
    betas
        Share of the moving averages of the gradient and of its square that each step keeps.
    eps
        Added to the root of the average square.
    weight_decay
        Factor of the parameter that is added to its gradient.
    amsgrad
        Divide by the largest average square so far (S. Reddi et al. 2018).
    maximize
        Go along the gradient instead of against it.

    """

    decoupled = False
    """Whether the weight decay shrinks the parameter itself instead of entering the averages."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "amsgrad": amsgrad, "maximize": maximize})

    def update(self, group: dict[str, Any], params: list[Any], grads: list[Any]) -> None:
        """Write the next step into the parameters, which all have gradients."""
        by_step: dict[int, list[int]] = {}
        for i, param in enumerate(params):
            state = self.state.get(param)
            if state is None:
                state = self.state[param] = self._new_state(param, group["amsgrad"])
            state["step"] += 1
            by_step.setdefault(state["step"], []).append(i)
        for step, some in by_step.items():
            states = [self.state[params[i]] for i in some]
            native.adam_step(
                [params[i] for i in some],
                [grads[i] for i in some],
                [each["exp_avg"] for each in states],
                [each["exp_avg_sq"] for each in states],
                [each["max_exp_avg_sq"] for each in states] if group["amsgrad"] else [],
                self._options(group, step),
            )

    @staticmethod
    def _new_state(param: Any, amsgrad: bool) -> State:
        names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if amsgrad else [])]
        return {"step": 0} | {name: zeros_like(param) for name in names}

    def _options(self, group: dict[str, Any], step: int) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {
            **{name: group[name] for name in ("lr", "eps", "weight_decay", "maximize")},
            "beta1": beta1,
            "beta2": beta2,
            "correction1": 1 - beta1**step,
            "correction2": 1 - beta2**step,
            "decoupled": self.decoupled,
        }


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters themselves (I. Loshchilov and F. Hutter 2019).

    The parameters are those of `Adam`; the weight decay is 0.01 if none is given.
    """

    decoupled = True

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)
