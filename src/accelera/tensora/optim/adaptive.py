"""Optimizers of tensor operations: with a rate of each element, of signs only, or with averages."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

from accelera.errors import ArgumentError
from accelera.tensora.autograd import no_grad
from accelera.tensora.core import Tensor, native
from accelera.tensora.optim.optimizer import Optimizer, Params, State, as_state, zeros_like


class _ElementwiseOptimizer(Optimizer):
    """Optimizer that changes parameters one after the other, each element by itself."""

    def update(self, group: dict[str, Any], params: list[Any], grads: list[Any]) -> None:
        """Write the next step into the parameters, which all have gradients."""
        with no_grad():
            for param, given in zip(params, grads, strict=True):
                grad = -given if group.get("maximize") else given
                state = self.state.get(param)
                if state is None:
                    state = self.state[param] = {"step": 0, **self.new_state(param, group)}
                state["step"] += 1
                if group.get("weight_decay") and not group.get("decoupled_weight_decay"):
                    grad = grad + group["weight_decay"] * param
                elif group.get("weight_decay"):
                    param *= 1 - group["lr"] * group["weight_decay"]
                self.change(param, grad, state, group)

    @abstractmethod
    def new_state(self, param: Any, group: dict[str, Any]) -> State:
        """Return the state of a parameter before its first step."""

    @abstractmethod
    def change(self, param: Any, grad: Any, state: State, group: dict[str, Any]) -> None:
        """Write the next step into one parameter and its state."""


def _average(average: Any, value: Any, kept: float) -> None:
    """Move an average towards a value, in place."""
    average *= kept
    average += (1 - kept) * value


class RMSprop(_ElementwiseOptimizer):
    """Steps over the root of an average square of the gradient (G. Hinton 2012).

    Parameters
    ----------
    params
        Tensors, or groups of them.
    lr
        Learning rate.
    alpha
        Share of the average square that each step keeps.
    eps
        Added to the root.
    weight_decay
        Factor of the parameter that is added to its gradient.
    momentum
        Share of the last step's direction that is kept.
    centered
        Take the variance of the gradient instead of its square (A. Graves 2013).
    maximize
        Go along the gradient instead of against it.

    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            params, {**options, "momentum": momentum, "centered": centered, "maximize": maximize}
        )

    def check(self, group: dict[str, Any]) -> None:
        """Raise ValueError if an option of the group is out of range."""
        super().check(group)
        if not group["alpha"] >= 0:
            raise ArgumentError(f"[RMSprop] alpha={group['alpha']}; give 0 or more")

    def new_state(self, param: Tensor, group: dict[str, Any]) -> State:
        """Return the state of a parameter before its first step."""
        names = ["square_avg"]
        names += ["momentum_buffer"] if group["momentum"] else []
        names += ["grad_avg"] if group["centered"] else []
        return {name: zeros_like(param) for name in names}

    def change(self, param: Tensor, grad: Tensor, state: State, group: dict[str, Any]) -> None:
        """Write the next step into one parameter and its state."""
        square = state["square_avg"]
        _average(square, grad * grad, group["alpha"])
        if group["centered"]:
            _average(state["grad_avg"], grad, group["alpha"])
            square = square - state["grad_avg"] * state["grad_avg"]
        direction = grad / (native.sqrt(square) + group["eps"])
        if group["momentum"]:
            state["momentum_buffer"] *= group["momentum"]
            state["momentum_buffer"] += direction
            direction = state["momentum_buffer"]
        param -= group["lr"] * direction


class Adagrad(_ElementwiseOptimizer):
    """Steps over the root of the sum of squares of the gradient (J. Duchi et al. 2011).

    Parameters
    ----------
    params
        Tensors, or groups of them.
    lr, lr_decay
        Learning rate, and by how much each step divides it further.
    weight_decay
        Factor of the parameter that is added to its gradient.
    initial_accumulator_value
        First sum.
    eps
        Added to the root.
    maximize
        Go along the gradient instead of against it.

    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        options["initial_accumulator_value"] = initial_accumulator_value
        super().__init__(params, {**options, "maximize": maximize})

    def check(self, group: dict[str, Any]) -> None:
        """Raise ValueError if an option of the group is out of range."""
        super().check(group)
        for option in ("lr_decay", "initial_accumulator_value"):
            if not group[option] >= 0:
                raise ArgumentError(f"[Adagrad] {option}={group[option]}; give 0 or more")

    def new_state(self, param: Tensor, group: dict[str, Any]) -> State:
        """Return the state of a parameter before its first step."""
        first = group["initial_accumulator_value"]
        return {"sum": as_state(native.full(param.shape, first, param.dtype, param.device))}

    def change(self, param: Tensor, grad: Tensor, state: State, group: dict[str, Any]) -> None:
        """Write the next step into one parameter and its state."""
        rate = group["lr"] / (1 + (state["step"] - 1) * group["lr_decay"])
        state["sum"] += grad * grad
        param -= rate * (grad / (native.sqrt(state["sum"]) + group["eps"]))


class Adadelta(_ElementwiseOptimizer):
    """Steps whose size follows that of earlier ones (M. Zeiler 2012).

    Parameters
    ----------
    params
        Tensors, or groups of them.
    lr
        Factor of each step.
    rho
        Share of the average squares that each step keeps.
    eps
        Added to them.
    weight_decay
        Factor of the parameter that is added to its gradient.
    maximize
        Go along the gradient instead of against it.

    """

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, options)

    def check(self, group: dict[str, Any]) -> None:
        """Raise ValueError if an option of the group is out of range."""
        super().check(group)
        if not 0 <= group["rho"] <= 1:
            raise ArgumentError(f"[Adadelta] rho={group['rho']}; give a number in [0, 1]")

    def new_state(self, param: Tensor, group: dict[str, Any]) -> State:
        """Return the state of a parameter before its first step."""
        return {"square_avg": zeros_like(param), "acc_delta": zeros_like(param)}

    def change(self, param: Tensor, grad: Tensor, state: State, group: dict[str, Any]) -> None:
        """Write the next step into one parameter and its state."""
        _average(state["square_avg"], grad * grad, group["rho"])
        size = native.sqrt(state["acc_delta"] + group["eps"]) / native.sqrt(
            state["square_avg"] + group["eps"]
        )
        step = size * grad
        _average(state["acc_delta"], step * step, group["rho"])
        param -= group["lr"] * step


class Adamax(_ElementwiseOptimizer):
    """Adam with the largest gradient so far instead of the average square (D. Kingma and J. Ba 2014).

    Parameters
    ----------
    params
        Tensors, or groups of them.
    lr
        Learning rate.
    betas
        Share of the average gradient and of the largest one that each step keeps.
    eps
        Added to the largest gradient.
    weight_decay
        Factor of the parameter that is added to its gradient.
    maximize
        Go along the gradient instead of against it.

    """

    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, options)

    def new_state(self, param: Tensor, group: dict[str, Any]) -> State:
        """Return the state of a parameter before its first step."""
        return {"exp_avg": zeros_like(param), "exp_inf": zeros_like(param)}

    def change(self, param: Tensor, grad: Tensor, state: State, group: dict[str, Any]) -> None:
        """Write the next step into one parameter and its state."""
        beta1, beta2 = group["betas"]
        _average(state["exp_avg"], grad, beta1)
        state["exp_inf"][...] = native.maximum(beta2 * state["exp_inf"], native.abs(grad) + group["eps"])
        param -= group["lr"] / (1 - beta1 ** state["step"]) * (state["exp_avg"] / state["exp_inf"])


class _MomentOptimizer(_ElementwiseOptimizer):
    """Averages of the gradient and of its square, with a weight decay of either kind."""

    def new_state(self, param: Any, group: dict[str, Any]) -> State:
        """Return the state of a parameter before its first step."""
        return {"exp_avg": zeros_like(param), "exp_avg_sq": zeros_like(param)}

    @staticmethod
    def average(grad: Any, state: State, group: dict[str, Any]) -> None:
        """Take a gradient into the averages."""
        beta1, beta2 = group["betas"]
        _average(state["exp_avg"], grad, beta1)
        _average(state["exp_avg_sq"], grad * grad, beta2)


class NAdam(_MomentOptimizer):
    """Adam with Nesterov's momentum (T. Dozat 2016).

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
    momentum_decay
        Pace at which the momentum grows to the first beta.
    decoupled_weight_decay
        Let the weight decay shrink the parameters themselves.
    maximize
        Go along the gradient instead of against it.

    """

    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        options |= {"momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, {**options, "maximize": maximize})

    def check(self, group: dict[str, Any]) -> None:
        """Raise ValueError if an option of the group is out of range."""
        super().check(group)
        if not group["momentum_decay"] >= 0:
            raise ArgumentError(f"[NAdam] momentum_decay={group['momentum_decay']}; give 0 or more")

    def new_state(self, param: Tensor, group: dict[str, Any]) -> State:
        """Return the state of a parameter before its first step."""
        return {"mu_product": 1.0, **super().new_state(param, group)}

    def change(self, param: Tensor, grad: Tensor, state: State, group: dict[str, Any]) -> None:
        """Write the next step into one parameter and its state."""
        beta1, beta2 = group["betas"]
        step, decay = state["step"], group["momentum_decay"]
        now = beta1 * (1.0 - 0.5 * 0.96 ** (step * decay))
        later = beta1 * (1.0 - 0.5 * 0.96 ** ((step + 1) * decay))
        state["mu_product"] *= now
        self.average(grad, state, group)
        root = native.sqrt(state["exp_avg_sq"] / (1 - beta2**step)) + group["eps"]
        param -= group["lr"] * (1 - now) / (1 - state["mu_product"]) * (grad / root)
        param -= group["lr"] * later / (1 - state["mu_product"] * later) * (state["exp_avg"] / root)


class RAdam(_MomentOptimizer):
    """Adam whose first steps go along the average gradient alone (L. Liu et al. 2020).

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
    decoupled_weight_decay
        Let the weight decay shrink the parameters themselves.
    maximize
        Go along the gradient instead of against it.

    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        options |= {"decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize}
        super().__init__(params, options)

    def change(self, param: Tensor, grad: Tensor, state: State, group: dict[str, Any]) -> None:
        """Write the next step into one parameter and its state."""
        beta1, beta2 = group["betas"]
        step = state["step"]
        self.average(grad, state, group)
        direction = state["exp_avg"] / (1 - beta1**step)
        correction = 1 - beta2**step
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * step * beta2**step / correction
        if length > 5:
            ratio = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            root = native.sqrt(state["exp_avg_sq"]) + group["eps"]
            direction = direction * (math.sqrt(correction) * math.sqrt(ratio) / root)
        param -= group["lr"] * direction


class Lion(_ElementwiseOptimizer):
    """Steps along the sign of an average gradient (X. Chen et al. 2023).

    Parameters
    ----------
    params
        Tensors, or groups of them.
    lr
        Learning rate; usually a third to a tenth of Adam's.
    betas
        Share of the average in the direction of a step, and share that the average keeps.
    weight_decay
        Shrinks the parameters themselves, by this factor of the learning rate.
    maximize
        Go along the gradient instead of against it.

    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, {**options, "decoupled_weight_decay": True, "maximize": maximize})

    def new_state(self, param: Tensor, group: dict[str, Any]) -> State:
        """Return the state of a parameter before its first step."""
        return {"exp_avg": zeros_like(param)}

    def change(self, param: Tensor, grad: Tensor, state: State, group: dict[str, Any]) -> None:
        """Write the next step into one parameter and its state."""
        beta1, beta2 = group["betas"]
        average = state["exp_avg"]
        param -= group["lr"] * native.sign(average * beta1 + grad * (1 - beta1))
        _average(average, grad, beta2)


class ASGD(_ElementwiseOptimizer):
    """Stochastic gradient descent with an average of the parameters (B. Polyak and A. Juditsky 1992).

    Parameters
    ----------
    params
        Tensors, or groups of them.
    lr
        Learning rate.
    lambd
        Decay of the parameters.
    alpha
        Exponent of the learning rate's decay.
    t0
        Step at which averaging begins.
    weight_decay
        Factor of the parameter that is added to its gradient.
    maximize
        Go along the gradient instead of against it.

    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay}
        super().__init__(params, {**options, "maximize": maximize})

    def new_state(self, param: Tensor, group: dict[str, Any]) -> State:
        """Return the state of a parameter before its first step."""
        return {"eta": group["lr"], "mu": 1.0, "ax": zeros_like(param)}

    def change(self, param: Tensor, grad: Tensor, state: State, group: dict[str, Any]) -> None:
        """Write the next step into one parameter and its state."""
        param *= 1 - group["lambd"] * state["eta"]
        param -= state["eta"] * grad
        if state["mu"] == 1:
            state["ax"][...] = param
        else:
            state["ax"] += (param - state["ax"]) * state["mu"]
        state["eta"] = group["lr"] / (1 + group["lambd"] * group["lr"] * state["step"]) ** group["alpha"]
        state["mu"] = 1 / max(1, state["step"] - group["t0"])


class Rprop(_ElementwiseOptimizer):
    """Steps whose size grows while the gradient keeps its sign (M. Riedmiller and H. Braun 1993).

    Parameters
    ----------
    params
        Tensors, or groups of them.
    lr
        First size of the steps.
    etas
        Factors of the size after a change of sign, and without one.
    step_sizes
        Least and greatest size.
    maximize
        Go along the gradient instead of against it.

    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "etas": etas, "step_sizes": step_sizes, "maximize": maximize})

    def check(self, group: dict[str, Any]) -> None:
        """Raise ValueError if an option of the group is out of range."""
        super().check(group)
        low, high = group["etas"]
        if not 0 < low < 1 < high:
            raise ArgumentError(f"[Rprop] etas={group['etas']}; give one below 1 and one above")

    def new_state(self, param: Tensor, group: dict[str, Any]) -> State:
        """Return the state of a parameter before its first step."""
        size = as_state(native.full(param.shape, group["lr"], param.dtype, param.device))
        return {"prev": zeros_like(param), "step_size": size}

    def change(self, param: Tensor, grad: Tensor, state: State, group: dict[str, Any]) -> None:
        """Write the next step into one parameter and its state."""
        low, high = group["etas"]
        sign = native.sign(grad * state["prev"])
        shrunk, grown, same = (native.full((), x, grad.dtype, grad.device) for x in (low, high, 1))
        factor = native.where(sign > 0, grown, native.where(sign < 0, shrunk, same))
        state["step_size"][...] = native.clip(state["step_size"] * factor, *group["step_sizes"])
        kept = native.where(sign < 0, native.full((), 0, grad.dtype, grad.device), grad)
        param -= native.sign(kept) * state["step_size"]
        state["prev"][...] = kept
