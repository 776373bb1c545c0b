"""A model that computes within less memory than its weights take, and gives the same numbers.

Run: python examples/offload.py
"""

from __future__ import annotations

import os

import torch

import accelera

SMALL = os.environ.get("ACCELERA_EXAMPLE_SMALL") == "1"
WIDTH, LAYERS = (256, 6) if SMALL else (2048, 32)


def main() -> None:
    """Compare the outputs of a model before and after it is offloaded."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    weights_bytes = sum(weight.nbytes for weight in model.parameters())
    x = torch.randn(8, WIDTH)
    with torch.no_grad():
        expected = model(x)
        accelera.offload(model, budget="256MiB")
        result = model(x)
    print(f"weights of {accelera.format_bytes(weights_bytes)} in a budget of 256 MiB")
    print("the same bits:", torch.equal(result, expected))
    print(accelera.offloaded(model).report())


if __name__ == "__main__":
    main()
