"""Budgets in which nothing could run are refused at the call; those just above are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelera import BudgetExceededError, offload, offload_checkpoint, offloaded, plan_offload
from accelera.devices import get_device
from accelera.offload.budgets import require_floor
from tests.children import answer_of

TOO_SMALL = (1, "1", "1KiB", "16MiB")
PROGRAM = """
import gc, json, sys, torch
from torch import nn
from accelera import offload, offloaded
from accelera.memory import process_memory, reset_peak

torch.set_num_threads(2)
model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(32))).eval()
x = torch.randn(64, 1024)
with torch.no_grad():
    expected = torch.ones(64, 1024).copy_(model(x)) if sys.argv[2] == "warm" else None
offload(model, sys.argv[1])
gc.collect()
before = process_memory()
reset_peak()
with torch.no_grad():
    found = [model(x) for _ in range(3)][-1]
after = process_memory()
files = max(0, after.file_bytes - before.file_bytes)
print(json.dumps({
    "peak": after.peak_bytes - before.rss_bytes - files,
    "evictions": offloaded(model).report().evictions,
    "right": expected is None or torch.allclose(found, expected, atol=1e-5),
}))
"""


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).eval()


@pytest.mark.parametrize("budget", TOO_SMALL)
@pytest.mark.parametrize("train", [False, True])
def test_a_budget_in_which_nothing_fits_is_refused_with_nothing_moved(budget: Any, train: bool) -> None:
    model = _model().train(train)
    with pytest.raises(BudgetExceededError, match=r"\[offload\].*raise it to at least \d+ bytes"):
        offload(model, budget)
    assert all(type(each) is nn.Parameter for each in model.parameters())


@pytest.mark.parametrize("budget", TOO_SMALL)
def test_a_checkpoint_is_refused_as_a_model_is(budget: Any, tmp_path: Path) -> None:
    save_file(_model().state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(BudgetExceededError, match=r"\[offload_checkpoint\].*raise it to at least"):
        offload_checkpoint(tmp_path, _model, budget=budget)


def test_the_budget_that_is_named_does() -> None:
    model, x = _model(), torch.randn(4, 512)
    with torch.no_grad():
        expected = model(x)
        with pytest.raises(BudgetExceededError) as refused:
            offload(model, 1)
        least = refused.value.needed_bytes
        with pytest.raises(BudgetExceededError):
            offload(model, least - 1)
        torch.testing.assert_close(offload(model, least)(x), expected)
    assert str(least) in str(refused.value)
    offloaded(model).close()


def test_the_floor_is_that_of_a_plan() -> None:
    with pytest.raises(BudgetExceededError) as refused:
        offload(_model(), 1)
    with pytest.raises(BudgetExceededError) as planned:
        plan_offload(_model(), torch.randn(1, 512), 1, train=False)
    assert abs(refused.value.needed_bytes - planned.value.needed_bytes) <= 1 << 20


def test_a_row_that_no_cut_makes_shorter_counts() -> None:
    wide = nn.Linear(1 << 20, 2, device="meta")
    with pytest.raises(BudgetExceededError) as refused:
        require_floor("offload", 1, wide.parameters(), get_device("cpu"), train=False)
    assert refused.value.needed_bytes > 4 * wide.weight[0].nbytes


def test_what_the_host_takes_does_not_count_on_an_accelerator() -> None:
    accelerator = get_device("sim")
    assert not accelerator.host_memory
    require_floor("offload", 12 << 20, _model().parameters(), accelerator, train=False)
    with pytest.raises(BudgetExceededError):
        require_floor("offload", 1 << 20, _model().parameters(), accelerator, train=False)


@pytest.mark.parametrize(("budget_mib", "warm"), [(32, "warm"), (48, "cold"), (64, "cold")])
def test_small_budgets_are_kept(budget_mib: int, warm: str) -> None:
    """Also in a process that has computed nothing yet."""
    told = answer_of("-c", PROGRAM, f"{budget_mib}MiB", warm)
    assert told["right"]
    assert told["evictions"] > 0, "the model must not fit the pool"
    assert 0 < told["peak"] <= budget_mib << 20
