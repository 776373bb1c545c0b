"""Optimizers: SGD, Adam and AdamW, whose step over all parameters of a group is one call of C++."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from accelera.tensora.core import Tensor, native

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]

Params = Iterable[Tensor] | Iterable[dict[str, Any]]
State = dict[str, Any]


class Optimizer(ABC):
    """Base of the optimizers: groups of parameters, each with its options, and a state for each parameter.

    Parameters
    ----------
    params
        Tensors, or dictionaries with tensors under ``"params"`` and options of that group.
    defaults
        Options of the groups that do not give their own.

    Raises
    ------
    ValueError
        If there is no parameter, one of them is given twice, or one is no leaf.
    TypeError
        If something else than tensors is given, or an option that the optimizer does not know.

    """

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError(f"{type(self).__name__}: one tensor as params; give a list of them")
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Any, State] = {}
        given: list[Any] = list(params)
        if not given:
            raise ValueError(f"{type(self).__name__}: no parameters; give at least one tensor")
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        for group in groups:
            self.add_param_group(group)

    def __repr__(self) -> str:
        """Each group's options."""
        lines = [type(self).__name__ + " ("]
        for i, group in enumerate(self.param_groups):
            lines += [f"Parameter Group {i}"]
            lines += [f"    {name}: {group[name]}" for name in sorted(group) if name != "params"]
        return "\n".join([*lines, ")"])

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add tensors under ``"params"``, with options of their own."""
        name = type(self).__name__
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        unknown = group.keys() - self.defaults.keys() - {"params"}
        if unknown:
            raise TypeError(f"{name}: unknown options {sorted(unknown)}; known are {sorted(self.defaults)}")
        known = {id(each) for other in self.param_groups for each in other["params"]}
        for each in params:
            if not isinstance(each, Tensor):
                raise TypeError(f"{name}: a {type(each).__name__} among the parameters; give tensors")
            if not each.is_leaf:
                raise ValueError(f"{name}: a parameter was computed from other tensors; give leaves")
            if id(each) in known:
                raise ValueError(f"{name}: a parameter is given twice")
            known.add(id(each))
        made = {**self.defaults, **group, "params": params}
        self.check(made)
        self.param_groups.append(made)

    def check(self, group: dict[str, Any]) -> None:
        """Raise ValueError if an option of the group is out of range."""
        for option in ("lr", "eps", "weight_decay", "momentum"):
            if not group.get(option, 0) >= 0:
                raise ValueError(f"{type(self).__name__}: {option}={group[option]}; give 0 or more")
        for beta in group.get("betas", ()):
            if not 0 <= beta < 1:
                raise ValueError(f"{type(self).__name__}: betas={group['betas']}; give numbers in [0, 1)")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let go of the gradients of all parameters, or fill them with zeros."""
        for group in self.param_groups:
            for param in group["params"]:
                if set_to_none:
                    param.grad = None
                elif param.grad is not None:
                    param.grad.zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change each parameter that has a gradient.

        Parameters
        ----------
        closure
            Called before; computes the loss and the gradients.

        Returns
        -------
        Any
            What the closure returned, or None.

        """
        loss = None if closure is None else closure()
        for group in self.param_groups:
            params = [each for each in group["params"] if each.grad is not None]
            if params:
                self.update(group, params, [each.grad for each in params])
        return loss

    @abstractmethod
    def update(self, group: dict[str, Any], params: list[Any], grads: list[Any]) -> None:
        """Write the next step into the parameters, which all have gradients."""

    def state_dict(self) -> dict[str, Any]:
        """States by the number of their parameter, and the groups' options; the tensors are not copied."""
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for each in group["params"]:
                numbers[id(each)] = len(numbers)
            groups.append({**group, "params": [numbers[id(each)] for each in group["params"]]})
        state = {numbers[id(param)]: dict(each) for param, each in self.state.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over copies of the states and options that `state_dict` returned.

        Raises
        ------
        ValueError
            If groups or parameters are not as many.

        """
        groups = state_dict["param_groups"]
        found, wanted = ([len(group["params"]) for group in each] for each in (groups, self.param_groups))
        if found != wanted:
            raise ValueError(
                f"load_state_dict: groups of {found} parameters for an optimizer with groups of {wanted}"
            )
        self.state = {}
        for group, saved in zip(self.param_groups, groups, strict=True):
            for param, number in zip(group["params"], saved["params"], strict=True):
                if number in state_dict["state"]:
                    self.state[param] = {
                        name: _taken_over(name, value, param)
                        for name, value in state_dict["state"][number].items()
                    }
            group.update({name: value for name, value in saved.items() if name != "params"})


def _taken_over(name: str, value: Any, param: Any) -> Any:
    """Copy of one part of a state, in the type of its parameter."""
    if not isinstance(value, Tensor):
        return value
    if tuple(value.shape) != tuple(param.shape):
        raise ValueError(
            f"load_state_dict: {name} of shape {value.shape} for a parameter of shape {param.shape}"
        )
    return _as_state(native.copy(native.cast(value.detach(), param.dtype)))


def _as_state(tensor: Any) -> Any:
    native.set_role(tensor, "optimizer")
    return tensor


def _zeros_like(param: Any) -> Any:
    return _as_state(native.full(param.shape, 0, param.dtype, param.device))


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
            raise ValueError("SGD: nesterov=True needs momentum above 0 and dampening=0")

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
                self.state.update({each: {"momentum_buffer": _zeros_like(each)} for each in chosen})
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
        return {"step": 0} | {name: _zeros_like(param) for name in names}

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
