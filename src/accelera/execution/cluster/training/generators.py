"""The generators of random numbers that programs share: PyTorch's, NumPy's and Python's."""

from __future__ import annotations

import random
from typing import Any


def generator_states() -> dict[str, Any]:
    """Return their states in this process, those of PyTorch for the CPU and the current GPU."""
    import numpy as np
    import torch

    states = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_generator_states(states: dict[str, Any]) -> None:
    """Set them to what ``generator_states`` returned."""
    import numpy as np
    import torch

    torch.set_rng_state(states["torch"])
    np.random.set_state(states["numpy"])
    random.setstate(states["python"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
