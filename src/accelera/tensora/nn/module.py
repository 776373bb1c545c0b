"""Base of networks: parameters, buffers and modules by attribute, with hooks and states."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from accelera.errors import ArgumentError, DTypeError, StateError, UnknownAttributeError, UnsupportedError
from accelera.tensora import dtypes
from accelera.tensora.core import DType, Tensor, native
from accelera.tensora.hooks import HookHandle, add_hook
from accelera.tensora.nn.parameter import Parameter
from accelera.tensora.typing import Device, DTypeLike

Self = TypeVar("Self", bound="Module")
Named = Iterator[tuple[str, Any]]


class LoadResult:
    """Keys of a state that did not match: `missing_keys` of the module, `unexpected_keys` of the state."""

    def __init__(self, missing_keys: list[str], unexpected_keys: list[str]) -> None:
        self.missing_keys = missing_keys
        self.unexpected_keys = unexpected_keys

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"LoadResult(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


class Module:
    """Base of all networks, with the interface of `torch.nn.Module`.

    A subclass calls ``super().__init__()``, assigns parameters and modules to attributes, and defines
    ``forward``. Keys of its state are those of the PyTorch module with the same attributes.
    """

    training: bool

    def __init__(self) -> None:
        own = self.__dict__
        own["training"] = True
        own["_parameters"] = {}
        own["_buffers"] = {}
        own["_modules"] = {}
        own["_not_saved"] = set()
        own["_forward_pre_hooks"] = {}
        own["_forward_hooks"] = {}
        own["_backward_pre_hooks"] = {}
        own["_backward_hooks"] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output; each subclass defines this."""
        raise UnsupportedError(f"[{type(self).__name__}] forward is not defined; a module needs one")

    # --- attributes

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        if "_parameters" not in own:
            if isinstance(value, Parameter | Module):
                raise AttributeError(
                    f"[{type(self).__name__}] call super().__init__() before {name!r} is assigned"
                )
            object.__setattr__(self, name, value)
        elif isinstance(value, Parameter):
            self._unregister(name, "_parameters")
            own["_parameters"][name] = value
        elif isinstance(value, Module):
            self._unregister(name, "_modules")
            own["_modules"][name] = value
        elif name in own["_parameters"]:
            if value is not None:
                raise ArgumentError(
                    f"[{type(self).__name__}] {name!r} is a parameter, given a {type(value).__name__}; "
                    "give an nn.Parameter or None"
                )
            own["_parameters"][name] = None
        elif name in own["_modules"]:
            if value is not None:
                raise ArgumentError(f"[{type(self).__name__}] {name!r} is a module; give a Module or None")
            own["_modules"][name] = None
        elif name in own["_buffers"]:
            _check_buffer(type(self).__name__, name, value)
            own["_buffers"][name] = value
        else:
            object.__setattr__(self, name, value)

    def _unregister(self, name: str, kept: str = "") -> None:
        """Remove a name from the attributes and all registries, except from the registry `kept`."""
        own = self.__dict__
        own.pop(name, None)
        for kind in ("_parameters", "_buffers", "_modules"):
            if kind != kept:
                own[kind].pop(name, None)
        own["_not_saved"].discard(name)

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        for kind in ("_parameters", "_buffers", "_modules"):
            if kind in own and name in own[kind]:
                return own[kind][name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        own = self.__dict__
        if any(name in own[kind] for kind in ("_parameters", "_buffers", "_modules")):
            self._unregister(name)
        else:
            object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter; None holds its place.

        Raises
        ------
        KeyError
            If the name is empty, has a dot, or is taken.
        TypeError
            If it is no Parameter.

        """
        self._check_name(name, self._parameters)
        if param is not None and not isinstance(param, Parameter):
            raise ArgumentError(
                f"[register_parameter] {name!r} is a {type(param).__name__}; give an nn.Parameter"
            )
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is no parameter; it is part of the state if `persistent`.

        Raises
        ------
        KeyError
            If the name is empty, has a dot, or is taken.
        TypeError
            If it is no tensor.

        """
        self._check_name(name, self._buffers)
        _check_buffer("register_buffer", name, tensor)
        self._buffers[name] = tensor
        if not persistent:
            self._not_saved.add(name)

    def register_module(self, name: str, module: Module | None) -> None:
        """Add a module; None holds its place."""
        self.add_module(name, module)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a module; None holds its place.

        Raises
        ------
        KeyError
            If the name is empty, has a dot, or is taken.
        TypeError
            If it is no module.

        """
        self._check_name(name, self._modules)
        if module is not None and not isinstance(module, Module):
            raise ArgumentError(f"[add_module] {name!r} is a {type(module).__name__}; give a Module")
        self._modules[name] = module

    def _check_name(self, name: str, among: dict[str, Any]) -> None:
        if not isinstance(name, str):
            raise ArgumentError(f"[{type(self).__name__}] {name!r} as a name; give a string")
        if not name or "." in name:
            raise ArgumentError(
                f"[{type(self).__name__}] {name!r} as a name; give one that is not empty and has no dot"
            )
        if hasattr(self, name) and name not in among:
            raise ArgumentError(
                f"[{type(self).__name__}] the attribute {name!r} exists already; give another name"
            )

    # --- iteration

    def named_modules(
        self, memo: set[int] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Iterate over this module and all inside it, each once, with the path of its attributes."""
        memo = set() if memo is None else memo
        if id(self) in memo:
            return
        if remove_duplicate:
            memo.add(id(self))
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                path = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(memo, path, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """Iterate over this module and all inside it."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Iterate over the modules that are attributes of this one, each once."""
        seen: set[int] = set()
        for name, module in self._modules.items():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def children(self) -> Iterator[Module]:
        """Iterate over the modules that are attributes of this one."""
        return (module for _, module in self.named_children())

    def _named(self, kind: str, prefix: str, recurse: bool, remove_duplicate: bool) -> Named:
        seen: set[int] = set()
        modules = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else [(prefix, self)]
        )
        for path, module in modules:
            for name, value in getattr(module, kind).items():
                if value is None or (remove_duplicate and id(value) in seen):
                    continue
                seen.add(id(value))
                yield (f"{path}.{name}" if path else name), value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Named:
        """Iterate over parameters with their paths; a shared one is listed once."""
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        """Iterate over parameters; a shared one is listed once."""
        return (value for _, value in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Named:
        """Iterate over buffers with their paths."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Any]:
        """Iterate over buffers."""
        return (value for _, value in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """Return the module at a path as ``"layers.0.norm"``.

        Raises
        ------
        AttributeError
            If there is none.

        """
        module: Any = self
        for name in target.split(".") if target else []:
            found = getattr(module, name, None)
            if not isinstance(found, Module):
                raise UnknownAttributeError(
                    f"[get_submodule] {type(module).__name__} has no module {name!r} of {target!r}"
                )
            module = found
        return module

    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter at a path; AttributeError if there is none."""
        return self._lookup(target, "_parameters", "parameter")

    def get_buffer(self, target: str) -> Tensor:
        """Return the buffer at a path; AttributeError if there is none."""
        return self._lookup(target, "_buffers", "buffer")

    def _lookup(self, target: str, kind: str, word: str) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if name not in getattr(module, kind):
            raise UnknownAttributeError(f"[get_{word}] {type(module).__name__} has no {word} {name!r}")
        return getattr(module, kind)[name]

    # --- changes of all parameters

    def apply(self: Self, function: Callable[[Module], None]) -> Self:
        """Call a function with all modules inside, then with this one."""
        for module in self.children():
            module.apply(function)
        function(self)
        return self

    def train(self: Self, mode: bool = True) -> Self:
        """Set training (or evaluation) of this module and all inside it."""
        if not isinstance(mode, bool):
            raise ArgumentError(f"[train] mode={mode!r}; give True or False")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self: Self) -> Self:
        """Set evaluation: dropout does nothing, and batch norm takes its running statistics."""
        return self.train(False)

    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        """Set whether parameters collect gradients."""
        for param in self.parameters():
            param.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None, or (without `set_to_none`) to zeros."""
        for param in self.parameters():
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad.zero_()

    def to(self: Self, *args: Any, device: Device | None = None, dtype: DTypeLike | None = None) -> Self:
        """Move parameters and buffers to a device, and the floating-point ones to a type.

        Raises
        ------
        TypeError
            If an argument is neither a device nor a type, or the type is no floating-point one.

        """
        for arg in args:
            if isinstance(arg, Tensor):
                device, dtype = arg.device, arg.dtype
            elif isinstance(arg, str) and arg.split(":")[0] in ("cpu", "cuda"):
                device = arg
            else:
                dtype = arg
        wanted = None if dtype is None else dtypes.as_dtype(dtype)
        if wanted is not None and not dtypes.isdtype(wanted, ("real floating", "complex floating")):
            raise DTypeError(f"[to] parameters of type {wanted}; give a floating-point type")
        for module in self.modules():
            module._convert(device, wanted)
        return self

    def _convert(self, device: Device | None, dtype: DType | None) -> None:
        def converted(value: Tensor) -> Tensor:
            wanted = (
                dtype
                if dtype and dtypes.isdtype(value.dtype, ("real floating", "complex floating"))
                else None
            )
            made = value.detach()
            if wanted is not None:
                made = native.cast(made, wanted)
            return made if device is None else made.to(str(device))

        for value in self._parameters.values():
            if value is None:
                continue
            grad = value.grad
            native.set_data(value, converted(value))
            native.set_role(value, "parameter")
            if grad is not None:
                value.grad = converted(grad)
        for name, value in self._buffers.items():
            if value is not None:
                self._buffers[name] = converted(value)

    def float(self: Self) -> Self:
        """Convert floating-point parameters and buffers to float32."""
        return self.to(dtype=dtypes.float32)

    def double(self: Self) -> Self:
        """Convert floating-point parameters and buffers to float64."""
        return self.to(dtype=dtypes.float64)

    def half(self: Self) -> Self:
        """Convert floating-point parameters and buffers to float16."""
        return self.to(dtype=dtypes.float16)

    def bfloat16(self: Self) -> Self:
        """Convert floating-point parameters and buffers to bfloat16."""
        return self.to(dtype=dtypes.bfloat16)

    def cpu(self: Self) -> Self:
        """Move parameters and buffers to the CPU."""
        return self.to(device="cpu")

    def cuda(self: Self, device: int | str = 0) -> Self:
        """Move parameters and buffers to a CUDA device."""
        return self.to(device=f"cuda:{device}" if isinstance(device, int) else device)

    # --- state

    def get_extra_state(self) -> Any:
        """Return more of the state than tensors, which `set_extra_state` takes; by default there is none."""
        raise UnsupportedError(
            f"[{type(self).__name__}] get_extra_state is not defined; define both of the pair"
        )

    def set_extra_state(self, state: Any) -> None:
        """Restore a state that `get_extra_state` returned."""
        raise UnsupportedError(
            f"[{type(self).__name__}] set_extra_state is not defined; define both of the pair"
        )

    def state_dict(self, *, prefix: str = "", keep_vars: bool = False) -> dict[str, Any]:
        """Return parameters and persistent buffers by their paths; their memory is shared, not copied."""
        state: dict[str, Any] = {}
        for path, module in self.named_modules(prefix=prefix.rstrip("."), remove_duplicate=False):
            start = f"{path}." if path else ""
            for name, value in itertools.chain(module._parameters.items(), module._saved_buffers()):
                if value is not None:
                    state[start + name] = value if keep_vars else value.detach()
            if type(module).get_extra_state is not Module.get_extra_state:
                state[start + "_extra_state"] = module.get_extra_state()
        return state

    def _saved_buffers(self) -> Named:
        return ((name, value) for name, value in self._buffers.items() if name not in self._not_saved)

    def load_state_dict(
        self, state_dict: dict[str, Any], strict: bool = True, assign: bool = False
    ) -> LoadResult:
        """Take the tensors of a state by name.

        Parameters
        ----------
        state_dict
            Tensors, or arrays that become some, by the paths that `state_dict` has.
        strict
            Whether keys must be the same.
        assign
            Take the tensors themselves instead of copying their elements.

        Raises
        ------
        RuntimeError
            If shapes differ, or keys of a strict load; all of them are named, and nothing was changed.

        """
        targets: dict[str, tuple[Module, str]] = {}
        for path, module in self.named_modules(remove_duplicate=False):
            start = f"{path}." if path else ""
            module._prepare_load(state_dict, start)
            for name, value in itertools.chain(module._parameters.items(), module._saved_buffers()):
                if value is not None:
                    targets[start + name] = (module, name)
            if type(module).set_extra_state is not Module.set_extra_state:
                targets[start + "_extra_state"] = (module, "")
        missing = [key for key in targets if key not in state_dict]
        unexpected = [key for key in state_dict if key not in targets]
        problems = _shape_problems(targets, state_dict)
        if strict:
            problems += [f"missing keys: {', '.join(missing)}"] if missing else []
            problems += [f"unexpected keys: {', '.join(unexpected)}"] if unexpected else []
        if problems:
            raise StateError(f"[load_state_dict] {type(self).__name__}: " + "; ".join(problems))
        for key, (module, name) in targets.items():
            if key in state_dict:
                module._load_one(name, state_dict[key], assign)
        return LoadResult(missing, unexpected)

    def _prepare_load(self, state_dict: dict[str, Any], start: str) -> None:
        """Prepare to load a state whose keys begin with `start`; lazy modules take their extents from it."""

    def _load_one(self, name: str, value: Any, assign: bool) -> None:
        if not name:
            self.set_extra_state(value)
            return
        kind = self._parameters if name in self._parameters else self._buffers
        tensor = _as_tensor(value)
        if assign:
            old = kind[name]
            kind[name] = (
                Parameter(tensor.detach(), old.requires_grad) if isinstance(old, Parameter) else tensor
            )
        else:
            kind[name].detach()[...] = native.cast(tensor.detach(), kind[name].dtype)

    # --- calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self.__dict__
        if not (
            own["_forward_pre_hooks"]
            or own["_forward_hooks"]
            or own["_backward_hooks"]
            or own["_backward_pre_hooks"]
        ):
            return self.forward(*args, **kwargs)
        return self._call_with_hooks(args, kwargs)

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        for hook, with_kwargs in list(self._forward_pre_hooks.values()):
            if with_kwargs:
                result = hook(self, args, kwargs)
                if result is not None:
                    args, kwargs = result
            else:
                result = hook(self, args)
                if result is not None:
                    args = result if isinstance(result, tuple) else (result,)
        backward = _BackwardHooks(self) if self._backward_hooks or self._backward_pre_hooks else None
        if backward:
            args = backward.inputs(args)
        output = self.forward(*args, **kwargs)
        for hook, with_kwargs in list(self._forward_hooks.values()):
            result = hook(self, args, kwargs, output) if with_kwargs else hook(self, args, output)
            if result is not None:
                output = result
        return backward.outputs(output) if backward else output

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Call ``hook(module, args)`` before each forward; what it returns takes the arguments' place."""
        return add_hook(self._forward_pre_hooks, (hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Call ``hook(module, args, output)`` after each forward; what it returns replaces the output."""
        return add_hook(self._forward_hooks, (hook, with_kwargs), prepend)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> HookHandle:
        """Call ``hook(module, grad_output)`` when the gradients of the outputs are known."""
        return add_hook(self._backward_pre_hooks, hook, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> HookHandle:
        """Call ``hook(module, grad_input, grad_output)`` when the gradients of the inputs are known."""
        return add_hook(self._backward_hooks, hook, prepend)

    # --- words

    def extra_repr(self) -> str:
        """Return the text between the parentheses of the representation."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): " + repr(module).replace("\n", "\n  ") for name, module in self._modules.items()]
        extra = self.extra_repr()
        if not lines:
            return f"{type(self).__name__}({extra})"
        return f"{type(self).__name__}(\n  " + "\n  ".join(([extra] if extra else []) + lines) + "\n)"


def _check_buffer(where: str, name: str, value: Any) -> None:
    if value is not None and not isinstance(value, Tensor):
        raise ArgumentError(
            f"[{where}] the buffer {name!r} is a {type(value).__name__}; give a Tensor or None"
        )


def _as_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    from accelera.tensora.creation import asarray

    return asarray(value)


def _shape_problems(targets: dict[str, tuple[Module, str]], state: dict[str, Any]) -> list[str]:
    problems = []
    for key, (module, name) in targets.items():
        if key not in state or not name:
            continue
        wanted = tuple(getattr(module, name).shape)
        found = tuple(state[key].shape)
        if wanted != found:
            problems.append(f"{key} has shape {found} in the state, {wanted} in the module")
    return problems


class _BackwardHooks:
    """Gradients of one call of a module, for its backward hooks."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._grad_outputs: list[Any] = []
        self._grad_inputs: list[Any] = []

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments, whose gradients are caught once all of them are known."""
        tracked = [i for i, each in enumerate(args) if isinstance(each, Tensor) and each.requires_grad]
        self._grad_inputs = [None] * len(args)
        self._waits_for_inputs = bool(tracked)
        if not tracked:
            return args
        passed = native.attach(
            f"{type(self._module).__name__}BackwardHook",
            lambda *grads: self._on_input_grads(tracked, grads),
            [args[i] for i in tracked],
            [args[i] for i in tracked],
        )
        made = list(args)
        for i, each in zip(tracked, passed, strict=True):
            made[i] = each
        return tuple(made)

    def _on_input_grads(self, tracked: list[int], grads: tuple[Any, ...]) -> tuple[Any, ...]:
        for i, grad in zip(tracked, grads, strict=True):
            self._grad_inputs[i] = grad
        self._run_hooks(tuple(self._grad_inputs))
        return tuple(self._grad_inputs[i] for i in tracked)

    def _run_hooks(self, grad_inputs: tuple[Any, ...]) -> None:
        for hook in list(self._module._backward_hooks.values()):
            result = hook(self._module, grad_inputs, tuple(self._grad_outputs))
            if result is not None and self._waits_for_inputs:
                grad_inputs = self._replacement("backward hook", result, grad_inputs)
                self._grad_inputs = list(grad_inputs)

    def _replacement(self, kind: str, result: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the gradients that a hook returned in place of `grads`; raise if they do not fit."""
        replacements = result if isinstance(result, tuple) else (result,)
        where = f"{kind} of {type(self._module).__name__}"
        for each in replacements:
            if each is not None and not isinstance(each, Tensor):
                raise ArgumentError(
                    f"[{where}] returned {each!r:.60} ({type(each).__name__}); expected a Tensor, None, or a "
                    "tuple of them"
                )
        if len(replacements) != len(grads):
            raise StateError(f"[{where}] returned {len(replacements)} gradients, expected {len(grads)}")
        return replacements

    def outputs(self, output: Any) -> Any:
        """Return the output, at whose gradients the hooks begin."""
        many = isinstance(output, tuple | list)
        outputs = list(output) if many else [output]
        tracked = [i for i, each in enumerate(outputs) if isinstance(each, Tensor) and each.requires_grad]
        self._grad_outputs = [None] * len(outputs)
        if not tracked:
            return output
        passed = native.attach(
            f"{type(self._module).__name__}BackwardPreHook",
            lambda *grads: self._on_output_grads(tracked, grads),
            [outputs[i] for i in tracked],
            [outputs[i] for i in tracked],
        )
        for i, each in zip(tracked, passed, strict=True):
            outputs[i] = each
        return type(output)(outputs) if many else outputs[0]

    def _on_output_grads(self, tracked: list[int], grads: tuple[Any, ...]) -> tuple[Any, ...]:
        for i, grad in zip(tracked, grads, strict=True):
            self._grad_outputs[i] = grad
        for hook in list(self._module._backward_pre_hooks.values()):
            result = hook(self._module, tuple(self._grad_outputs))
            if result is not None:
                grads = tuple(self._grad_outputs)
                self._grad_outputs = list(self._replacement("backward pre-hook", result, grads))
        if not self._waits_for_inputs:
            self._run_hooks((None,) * len(self._grad_inputs))
        return tuple(self._grad_outputs[i] for i in tracked)
