"""Base of the optimizers: groups of parameters with options, and a state of each parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora.core import Tensor, native
from accelera.tensora.creation import asarray
from accelera.tensora.hooks import HookHandle, add_hook
from accelera.tensora.python_calls import host_call

Params = Iterable[Tensor | tuple[str, Tensor] | dict[str, Any]]
State = dict[str, Any]


class Optimizer(ABC):
    """Base of the optimizers: groups of parameters, each with its options, and a state for each parameter.

    Parameters
    ----------
    params
        Tensors, or pairs of a name and a tensor as `Module.named_parameters` gives them; or dictionaries with
        either under ``"params"`` and options of that group.
    defaults
        Options of the groups that do not give their own.

    Raises
    ------
    ValueError
        If there is no parameter, one of them is given twice, or one is no leaf.
    TypeError
        If something else than tensors is given, or an option that the optimizer does not know.

    """

    separable = True
    """Whether each parameter can be changed by itself, as inside a backward pass."""

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise ArgumentError(f"[{type(self).__name__}] one tensor as params; give a list of them")
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Any, State] = {}
        self._hooks: dict[str, dict[int, Any]] = {kind: {} for kind in _HOOKS}
        given: list[Any] = list(params)
        if not given:
            raise ArgumentError(f"[{type(self).__name__}] no parameters; give at least one tensor")
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        for group in groups:
            self.add_param_group(group)

    def __repr__(self) -> str:
        """Each group's options."""
        lines = [type(self).__name__ + " ("]
        for i, group in enumerate(self.param_groups):
            lines += [f"Parameter Group {i}"]
            options = sorted(group.keys() - {"params", "param_names"})
            lines += [f"    {name}: {group[name]}" for name in options]
        return "\n".join([*lines, ")"])

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add tensors under ``"params"``, with options of their own."""
        name = type(self).__name__
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        group, params = _split_names(name, group, params)
        unknown = group.keys() - self.defaults.keys() - {"params", "param_names"}
        if unknown:
            raise ArgumentError(
                f"[{name}] unknown options {sorted(unknown)}; known are {sorted(self.defaults)}"
            )
        known = {id(each) for other in self.param_groups for each in other["params"]}
        for each in params:
            if not isinstance(each, Tensor):
                raise ArgumentError(f"[{name}] a {type(each).__name__} among the parameters; give tensors")
            if not each.is_leaf:
                raise ArgumentError(f"[{name}] a parameter was computed from other tensors; give leaves")
            if id(each) in known:
                raise ArgumentError(f"[{name}] a parameter is given twice")
            known.add(id(each))
        made = {**self.defaults, **group, "params": params}
        self.check(made)
        self.param_groups.append(made)

    def check(self, group: dict[str, Any]) -> None:
        """Raise ValueError if an option of the group is out of range, and TypeError if it is no number."""
        _check_types(type(self).__name__, group)
        for option in ("lr", "eps", "weight_decay", "momentum"):
            if not group.get(option, 0) >= 0:
                raise ArgumentError(f"[{type(self).__name__}] {option}={group[option]}; give 0 or more")
        for beta in group.get("betas", ()):
            if not 0 <= beta < 1:
                raise ArgumentError(f"[{type(self).__name__}] betas={group['betas']}; give numbers in [0, 1)")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None, or (without `set_to_none`) to zeros."""
        for group in self.param_groups:
            for param in group["params"]:
                if set_to_none:
                    param.grad = None
                elif param.grad is not None:
                    param.grad.zero_()

    @host_call
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
        args: tuple[Any, ...] = (self,) if closure is None else (self, closure)
        kwargs: dict[str, Any] = {}
        for hook in list(self._hooks["step_pre"].values()):
            changed = hook(self, args, kwargs)
            if changed is not None:
                args, kwargs = changed
        result = type(self)._step(*args, **kwargs)
        for hook in list(self._hooks["step_post"].values()):
            hook(self, args, kwargs)
        return result

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
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
        for hook in list(self._hooks["state_dict_pre"].values()):
            hook(self)
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for each in group["params"]:
                numbers[id(each)] = len(numbers)
            groups.append({**group, "params": [numbers[id(each)] for each in group["params"]]})
        state = {numbers[id(param)]: dict(each) for param, each in self.state.items()}
        made = {"state": state, "param_groups": groups}
        for hook in list(self._hooks["state_dict_post"].values()):
            changed = hook(self, made)
            made = made if changed is None else changed
        return made

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over copies of the states and options of a `state_dict`, of PyTorch's optimizers as well.

        Raises
        ------
        ValueError
            If groups or parameters are not as many.

        """
        for hook in list(self._hooks["load_state_dict_pre"].values()):
            changed = hook(self, dict(state_dict))
            state_dict = state_dict if changed is None else changed
        self._load(state_dict)
        for hook in list(self._hooks["load_state_dict_post"].values()):
            hook(self)

    def _load(self, state_dict: dict[str, Any]) -> None:
        saved_groups = state_dict["param_groups"]
        saved_counts, counts = (
            [len(group["params"]) for group in groups] for groups in (saved_groups, self.param_groups)
        )
        if saved_counts != counts:
            raise ArgumentError(
                f"[load_state_dict] groups of {saved_counts} parameters, expected groups of {counts}; give "
                "the state of an optimizer of the same parameters"
            )
        # Everything is checked before the first change, so a refused state leaves the optimizer as it was.
        options = [
            {name: value for name, value in saved.items() if name not in _NOT_TAKEN} for saved in saved_groups
        ]
        states = {}
        for group, saved, values in zip(self.param_groups, saved_groups, options, strict=True):
            self.check({**group, **values})
            for param, number in zip(group["params"], saved["params"], strict=True):
                if number in state_dict["state"]:
                    states[param] = {
                        name: _copy_state_value(name, value, param)
                        for name, value in state_dict["state"][number].items()
                    }
        self.state = states
        for group, values in zip(self.param_groups, options, strict=True):
            group.update(values)

    # --- hooks

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call ``hook(optimizer, args, kwargs)`` before each step; what it returns replaces both.

        As in PyTorch the optimizer is also the first of `args`.
        """
        return add_hook(self._hooks["step_pre"], hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call ``hook(optimizer, args, kwargs)`` after each step."""
        return add_hook(self._hooks["step_post"], hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> HookHandle:
        """Call ``hook(optimizer)`` before each `state_dict`."""
        return add_hook(self._hooks["state_dict_pre"], hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> HookHandle:
        """Call ``hook(optimizer, state_dict)`` after each `state_dict`; what it returns replaces it."""
        return add_hook(self._hooks["state_dict_post"], hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> HookHandle:
        """Call ``hook(optimizer, state_dict)`` before a state is loaded; what it returns takes its place."""
        return add_hook(self._hooks["load_state_dict_pre"], hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> HookHandle:
        """Call ``hook(optimizer)`` after a state was loaded."""
        return add_hook(self._hooks["load_state_dict_post"], hook, prepend)


_HOOKS = (
    "step_pre",
    "step_post",
    "state_dict_pre",
    "state_dict_post",
    "load_state_dict_pre",
    "load_state_dict_post",
)
_NOT_TAKEN = {"params", "foreach", "fused", "capturable", "differentiable"}
"""Of the groups of a saved state: numbers of parameters, and how PyTorch computes."""
_SCALAR_STATES = {"step", "mu_product", "eta", "mu"}
"""Parts of a state that are numbers here, and tensors with one element in PyTorch."""


_NUMBER_OPTIONS = frozenset(
    {"lr", "lr_decay", "eps", "weight_decay", "momentum", "dampening", "alpha", "rho", "lambd", "t0", "d"}
    | {"momentum_decay", "initial_accumulator_value", "beta2_decay"}
)
_PAIR_OPTIONS = frozenset({"betas", "etas", "step_sizes"})


def _is_real_number(value: Any) -> bool:
    return hasattr(value, "__float__")


def _check_types(optimizer: str, group: dict[str, Any]) -> None:
    """Raise TypeError for an option that is not a number, or not a pair of numbers."""
    for option in _NUMBER_OPTIONS & group.keys():
        value = group[option]
        if not _is_real_number(value):
            raise ArgumentError(
                f"[{optimizer}] {option}={value!r:.60} ({type(value).__name__}); give a number"
            )
    for option in _PAIR_OPTIONS & group.keys():
        value = group[option]
        is_pair = isinstance(value, tuple | list) and len(value) == 2
        if not is_pair or not all(map(_is_real_number, value)):
            raise ArgumentError(f"[{optimizer}] {option}={value!r:.60}; give two numbers")


def _split_names(
    optimizer: str, group: dict[str, Any], params: list[Any]
) -> tuple[dict[str, Any], list[Any]]:
    """Return a group with its parameters' names in ``"param_names"``, and the parameters without names."""
    named = [isinstance(each, tuple) for each in params]
    if not any(named):
        return group, params
    if not all(named):
        raise ArgumentError(f"[{optimizer}] only some parameters have names; give all or none")
    return {**group, "param_names": [name for name, _ in params]}, [each for _, each in params]


def _copy_state_value(name: str, value: Any, param: Any) -> Any:
    """Return a copy of one value of a state, tensors in the type of their parameter.

    Raises
    ------
    ValueError
        If the shape does not fit the parameter.

    """
    if name in _SCALAR_STATES:
        number = float(value)
        if name != "step":
            return number
        if not 0 <= number < 2**63:
            raise ArgumentError(f"[load_state_dict] step={number}; give the number of steps, 0 or more")
        return int(number)
    if not hasattr(value, "shape"):
        return value
    value = value if isinstance(value, Tensor) else asarray(value)
    if len(value.shape) != param.ndim or any(
        a not in (1, b) for a, b in zip(value.shape, param.shape, strict=True)
    ):
        raise ShapeError(
            f"[load_state_dict] {name} of shape {value.shape} for a parameter of shape {param.shape}"
        )
    return as_state(native.copy(native.cast(value.detach(), param.dtype)))


def as_state(tensor: Tensor) -> Tensor:
    """Mark a tensor as optimizer state in `memory_stats`, and return it."""
    native.set_role(tensor, "optimizer")
    return tensor


def zeros_like(param: Tensor) -> Tensor:
    """State of zeros, of a parameter's shape and type."""
    return as_state(native.full(param.shape, 0, param.dtype, param.device))
