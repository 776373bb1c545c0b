"""The accelerator that torch finds on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelera.errors import DeviceError
from accelera.extras import is_there, needed_for

if TYPE_CHECKING:
    import torch


def present_accelerator() -> torch.device | None:
    """Return torch's device of the accelerator that is here, without an index; None where there is none.

    A torch that was built for CUDA names that as its accelerator on machines without a GPU, too. Without
    torch there is none.
    """
    if not is_there("torch"):
        return None
    import torch

    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def checked_name(kind: str, index: str) -> str:
    """Return the full name of an accelerator that this machine has; raises DeviceError when it has not.

    Raises BackendMissingError without torch.
    """
    with needed_for("device"):
        import torch
    asked = f"{kind}:{index}" if index else kind
    found = present_accelerator()
    if found is None or found.type != kind:
        has = f"it finds {found.type}" if found is not None else "it finds no accelerator"
        raise DeviceError(
            f"[device] {asked} was asked for, and torch {torch.__version__} has none here: {has}; install a "
            f"torch built for it with its driver, or use 'cpu'"
        )
    count = torch.accelerator.device_count()
    if index and (not index.isdigit() or int(index) >= count):
        raise DeviceError(f"[device] {asked} was asked for; {kind}:0 to {kind}:{count - 1} exist")
    return f"{kind}:{index or _current_index(found)}"


def _current_index(device: torch.device) -> int:
    import torch

    module = torch.get_device_module(device)
    return int(module.current_device()) if hasattr(module, "current_device") else 0
