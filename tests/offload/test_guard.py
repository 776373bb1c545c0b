"""What a process holds besides its blocks makes blocks leave, before the budget is exceeded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from accelera.errors import BudgetExceededError
from accelera.memory import Use
from accelera.offload.keeping.guard import Guard, held_on
from accelera.offload.keeping.keeper import Keeper

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, torch
from accelera.memory import process_memory, reset_peak
from accelera.memory import Use
from accelera.offload.keeping.keeper import Keeper

SIZE, BUDGET = 8 << 20, 96 << 20
torch.ones(1 << 20) @ torch.ones(1 << 20)
keeper = Keeper(80 << 20, budget_bytes=BUDGET, block_bytes=SIZE, recorder=True)
blocks = [keeper.adopt(torch.full((SIZE,), i, dtype=torch.uint8), str(i))[0] for i in range(14)]
with keeper.use([Use(blocks[0])]):
    pass
before = process_memory().anon_bytes - SIZE
reset_peak()
held = []
for number in range(70):
    if number in range(20, 26):
        held.append(torch.ones(6 << 20, dtype=torch.uint8))
    if number == 50:
        held.clear()
    with keeper.use([Use(blocks[number % 14])]) as (memory,):
        assert bool((memory == number % 14).all())
peak = process_memory().peak_bytes - before - process_memory().file_bytes
print(json.dumps({"peak": peak, "budget": BUDGET, "resident": keeper.report().peak_bytes}))
"""


def test_the_peak_of_a_process_stays_within_the_budget() -> None:
    """Blocks alone take 80 MiB of 96; beside 36 MiB of others they must give up 20."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True, timeout=840
    )
    found = json.loads(done.stdout)
    assert found["resident"] == 80 << 20
    assert found["peak"] <= found["budget"] + (4 << 20)


def test_nothing_is_withheld_within_the_reserve() -> None:
    held = [1000]
    guard = Guard(500, 400, lambda: held[0])
    assert guard.withheld_bytes(0) == 0
    held[0] = 1000 + 350 + 100
    assert guard.withheld_bytes(350) == 0
    held[0] += 30
    assert guard.withheld_bytes(350) == 30
    assert guard.peak_bytes == 480


def test_the_least_that_was_seen_is_where_counting_begins() -> None:
    """Weights that were in memory before they were adopted are given back later."""
    held = [1000]
    guard = Guard(500, 400, lambda: held[0])
    guard.withheld_bytes(0)
    held[0] = 200
    assert guard.withheld_bytes(0) == 0
    held[0] = 200 + 101
    assert guard.withheld_bytes(0) == 1


def test_what_a_process_holds_is_counted() -> None:
    count = held_on(torch.device("cpu"))
    before = count()
    kept = torch.ones(40 << 20, dtype=torch.uint8)
    assert count() - before >= kept.nbytes - (4 << 20)


def test_a_process_that_took_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [0]
    monkeypatch.setattr("accelera.offload.keeping.keeper.held_on", lambda _: lambda: taken[0])
    keeper = Keeper(1000, budget_bytes=1200)
    block = keeper.create(300, "w")
    with keeper.use([Use(block, False, True)]):
        pass
    taken[0] = 10_000
    other = keeper.create(300, "other")
    with pytest.raises(BudgetExceededError, match="holds beyond its reserve"), keeper.use([Use(other)]):
        pass
    taken[0] = 0
    with keeper.use([Use(other, False, True)]):
        pass
    keeper.close()


def test_what_is_coming_is_withheld_before_it_is_there() -> None:
    guard = Guard(500, 400, lambda: 1000)
    assert guard.withheld_bytes(0, 100) == 0
    assert guard.withheld_bytes(0, 130) == 30


def test_growth_that_was_not_foreseen_is_expected_again() -> None:
    held = [1000]
    guard = Guard(500, 400, lambda: held[0], learns=True)
    guard.withheld_bytes(0, 20)
    held[0] += 60
    guard.withheld_bytes(0, settled=False)
    assert guard.margin_bytes == 0
    assert guard.withheld_bytes(0) == 0
    assert guard.margin_bytes == 40
    held[0] += 1000
    guard.withheld_bytes(0)
    assert guard.margin_bytes == 50, "at most half of the reserve"
