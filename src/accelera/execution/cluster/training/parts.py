"""The parts of a training: their states, common to all ranks or a rank's own, and how they are put back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

State = dict[str, Any]


def check_parts(parts: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for a part whose state cannot be had."""
    for name, part in parts.items():
        if not all(hasattr(part, method) for method in _methods(part)):
            raise TypeError(
                f"[train] {name}={part!r}: a part has state_dict() and load_state_dict(), as modules,"
                f" optimizers, schedulers and samplers do, or is a torch.Generator"
            )


def states_of(parts: Mapping[str, Any]) -> tuple[State, State]:
    """Return what all ranks have in common, and what is this rank's own.

    Common are parameters and what optimizers hold; buffers of modules and all else are each rank's own.
    """
    import torch

    common: State = {}
    own: State = {}
    for name, part in parts.items():
        state = getattr(part, _methods(part)[0])()
        if isinstance(part, torch.nn.Module):
            shared = {key for key, _ in part.named_parameters(remove_duplicate=False)}
            common[name] = {key: value for key, value in state.items() if key in shared}
            own[name] = {key: value for key, value in state.items() if key not in shared}
        else:
            (common if isinstance(part, torch.optim.Optimizer) else own)[name] = state
    return common, own


def load_parts(parts: Mapping[str, Any], common: State, own: State) -> None:
    """Give ``parts`` the states that ``states_of`` returned; tensors in them may be over files.

    Raises
    ------
    KeyError
        When there is no state of a part.
    """
    import torch

    for name, part in parts.items():
        if name not in common and name not in own:
            raise KeyError(
                f"[train] the checkpoint has no part {name!r}, but {', '.join(sorted({*common, *own}))}"
            )
        if isinstance(part, torch.nn.Module):
            part.load_state_dict({**common[name], **own[name]})
        elif isinstance(part, torch.optim.Optimizer):
            part.load_state_dict(common[name])
            _from_files(part)
        else:
            getattr(part, _methods(part)[1])(own[name])


def parameters_of(parts: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the parameters of all modules among ``parts``, each once."""
    return list({id(one): one for module in _modules(parts) for one in module.parameters()}.values())


def buffers_of(parts: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the buffers of all modules among ``parts``, each once."""
    return list({id(one): one for module in _modules(parts) for one in module.buffers()}.values())


def _modules(parts: Mapping[str, Any]) -> list[torch.nn.Module]:
    import torch

    return [part for part in parts.values() if isinstance(part, torch.nn.Module)]


def _methods(part: Any) -> tuple[str, str]:
    import torch

    is_generator = isinstance(part, torch.Generator)
    return ("get_state", "set_state") if is_generator else ("state_dict", "load_state_dict")


def _from_files(optimizer: torch.optim.Optimizer) -> None:
    """Bring states over files into memory, but those of offloaded parameters, which their pool takes over."""
    import torch

    for parameter, state in optimizer.state.items():
        if type(parameter.data) is torch.Tensor:
            state.update(
                {key: value.clone() for key, value in state.items() if isinstance(value, torch.Tensor)}
            )
