"""What training takes is measured in a fresh process and held to the budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.children import answer_of

BUDGETS_MIB = (48, 128)
PROGRAM = """
import json, sys, threading, time
import torch
from torch import nn
from torch.nn import functional
import accelera
from accelera.memory import process_memory

torch.set_num_threads(1)
WORDS, WIDTH = 20000, 512

def step(model, optimizer, tokens):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()

def made(words, width):
    middle = nn.Linear(width, width)
    return nn.Sequential(nn.Embedding(words, width), middle, nn.GELU(), nn.Linear(width, words))

small = made(10, 4)
step(small, torch.optim.AdamW(small.parameters()), torch.randint(0, 10, (2, 3)))
model = accelera.offload(made(WORDS, WIDTH), f"{sys.argv[1]}MiB", record=True)
before = process_memory().anon_bytes
peaks, over = [0], threading.Event()

def watch():
    while not over.is_set():
        peaks[0] = max(peaks[0], process_memory().anon_bytes - before)
        time.sleep(0.001)

watcher = threading.Thread(target=watch)
watcher.start()
tokens = torch.randint(0, WORDS, (2, 17))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
try:
    losses = [step(model, optimizer, tokens) for _ in range(2)]
finally:
    over.set()
    watcher.join()
report = accelera.offloaded(model).report()
print(json.dumps({
    "losses": losses,
    "peak": peaks[0],
    "blocks": report.peak_bytes,
    "capacity": report.capacity_bytes,
    "largest": max(parameter.numel() * 4 for parameter in model.parameters()),
    "gradients": all(parameter.grad is not None for parameter in model.parameters()),
}))
"""


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="anonymous memory is read from /proc"
)
@pytest.mark.parametrize("budget_mib", BUDGETS_MIB)
def test_weights_and_states_of_several_times_the_budget_stay_within_it(budget_mib: int) -> None:
    found = answer_of("-c", PROGRAM, str(budget_mib))
    assert found["largest"] * 4 > 1.2 * budget_mib * 2**20
    assert found["blocks"] <= found["capacity"]
    assert found["peak"] <= budget_mib * 2**20
    assert found["losses"][1] < found["losses"][0]
    assert found["gradients"]
