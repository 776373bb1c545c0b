"""Modes of torch that a thread has set: gradients, inference, autocast and the default device."""

from __future__ import annotations

from typing import Any

from accelera._extras import loaded_module


def torch_modes() -> list[tuple[Any, tuple[Any, ...]]]:
    """Return constructors of torch's modes that differ from a new thread's; none while torch is loading."""
    torch = loaded_module("torch")
    try:
        if torch is None:
            return []
        modes: list[tuple[Any, tuple[Any, ...]]] = [
            (torch.autocast, (kind, torch.get_autocast_dtype(kind)))
            for kind in ("cpu", "cuda")
            if torch.is_autocast_enabled(kind)
        ]
        if torch.is_inference_mode_enabled():
            modes.append((torch.inference_mode, ()))
            if torch.is_grad_enabled():
                modes.append((torch.enable_grad, ()))
        elif not torch.is_grad_enabled():
            modes.append((torch.no_grad, ()))
        device = torch.get_default_device()
        if device.type != "cpu":
            modes.append((torch.device, (str(device),)))
    except AttributeError:  # another module of this name
        return []
    return modes
