"""A small GPT-style model that generates and trains, in memory or offloaded; prints one line of JSON.

``python -m benchmarks.offload_gpt HOW DEVICE [--small]`` with HOW ``"in memory"`` or ``accelera``.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from torch import nn

from accelera.memory import process_memory, reset_peak


def main(how: str, device: str, *, small: bool) -> dict[str, Any]:
    """Generate some tokens and train some steps; return seconds, peaks and losses."""
    torch.set_num_threads(2)
    steps, tokens = (3, 4) if small else (50, 32)
    model = _model(small).to("cpu" if how == "accelera" else device)
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    batch = torch.randint(0, 500, (2, 32), generator=torch.Generator().manual_seed(2)).to(device)
    if how == "accelera":
        from accelera import offload

        # Weights, gradients and AdamW's two states are four times the weights.
        budget = max(64 << 20, int(1.5 * weights))
        model = offload(model, budget=budget, device=device)
    reset_peak()
    generated_s, text = _generated(model, batch[:1, :8], tokens)
    trained_s, losses = _trained(model, batch, steps)
    return {
        "contender": how,
        "weights_bytes": weights,
        "token_s": generated_s / tokens,
        "step_s": trained_s / steps,
        "tokens": text,
        "losses": losses,
        "peak_bytes": process_memory().peak_bytes,
    }


def _model(small: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    width, layers = (64, 2) if small else (768, 8)
    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=width // 32, vocab_size=500 if small else 16000, n_positions=256,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def _generated(model: Any, prompt: torch.Tensor, tokens: int) -> tuple[float, list[int]]:
    model.eval()
    began = time.perf_counter()
    with torch.no_grad():
        out = model.generate(prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    return time.perf_counter() - began, out[0].tolist()


def _trained(model: Any, batch: torch.Tensor, steps: int) -> tuple[float, list[float]]:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []
    began = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return time.perf_counter() - began, losses


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], small="--small" in sys.argv)))
