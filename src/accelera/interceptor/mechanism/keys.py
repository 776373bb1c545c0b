"""The dispatch keys at which an operator is caught."""

from __future__ import annotations

import torch

from accelera.interceptor.mechanism.operators import is_above_autograd


def keys_of(name: str) -> tuple[str, ...]:
    """Return the keys of an operator, for the CPU and for the accelerator that torch was built for."""
    backends = backend_keys()
    if not is_above_autograd(name):
        return backends
    return (*backends, *(f"Autograd{backend}" for backend in backends))


def backend_keys() -> tuple[str, ...]:
    """Return ``("CPU",)``, or ``("CPU", "CUDA")`` and the like."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return ("CPU",)
    return ("CPU", _KEYS.get(accelerator.type, accelerator.type.upper()))


_KEYS = {"privateuseone": "PrivateUse1"}
