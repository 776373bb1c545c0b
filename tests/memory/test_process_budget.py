"""``accelera.budget``: one limit for every component of the process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import accelera
from accelera.errors import ArgumentError, BudgetExceededError
from accelera.memory.ledger import ProcessLedger

MIB = 2**20
SIDE = 1500
RESULT_BYTES = 4 * SIDE**2


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    """Memory that earlier tests left to the garbage collector does not count here."""
    gc.collect()
    yield
    gc.collect()


@pytest.fixture
def operand(tmp_path: Path) -> Path:
    path = tmp_path / "A.npy"
    np.save(path, np.ones((SIDE, SIDE), np.float32))
    return path


def limit(mebibytes: int) -> int:
    """Return a limit of so many MiB above what earlier tests of this process still hold."""
    return accelera.budget_report().used_bytes + mebibytes * MIB


def held(component: str) -> int:
    return accelera.budget_report().component_bytes.get(component, 0)


def test_results_of_the_engine_count_while_they_exist(operand: Path) -> None:
    engine = accelera.MatrixEngine("cpu")
    before = held("engine results")
    with accelera.budget(limit(96)):
        product = engine.matmul(operand, operand)
        assert held("engine results") - before == RESULT_BYTES
        view = product.numpy()[10:20]
        del product
        gc.collect()
        assert held("engine results") - before == RESULT_BYTES, "the view keeps the memory"
        del view
        gc.collect()
        assert held("engine results") == before
    assert held("engine") == 0


def test_budget_of_an_operation_is_a_part_of_the_process_budget(operand: Path, tmp_path: Path) -> None:
    engine = accelera.MatrixEngine("cpu")
    for asked in ("1GiB", None):
        with accelera.budget(limit(48)):
            available = accelera.budget_report().available_bytes
            assert available is not None
            plan = engine.plan(operand, operand, out=tmp_path / "C.npy", budget=asked)
        assert plan.peak_bytes["ram"] <= available


def test_operation_that_does_not_fit_is_refused(operand: Path) -> None:
    with accelera.budget(limit(16)), pytest.raises(BudgetExceededError, match="does not fit a budget of"):
        accelera.MatrixEngine("cpu").matmul(operand, operand)


def test_small_products_in_memory_draw_from_the_budget() -> None:
    torch = pytest.importorskip("torch")
    engine, a = accelera.MatrixEngine("cpu"), torch.ones(1024, 1024)
    before = held("engine results")
    with accelera.budget("1GiB"):
        product = engine.matmul(a, a)
        assert held("engine results") - before == 4 * MIB
        kept = product.tensor().detach().numpy()
        del product
        gc.collect()
        assert held("engine results") - before == 4 * MIB, "NumPy's array keeps the storage"
        del kept
    gc.collect()
    assert held("engine results") == before


def test_tensors_of_tensora_keep_to_the_budget() -> None:
    ts = pytest.importorskip("accelera.tensora")
    with accelera.budget(limit(64)):
        small = ts.ones((1024, 1024))
        assert held("tensora") >= 4 * MIB
        with pytest.raises(MemoryError):
            ts.ones((8192, 8192))
    large = ts.ones((4096, 8192))
    assert large.shape == (4096, 8192)
    assert small.shape == (1024, 1024)


def test_limit_of_tensora_set_by_the_user_stays_in_force() -> None:
    ts = pytest.importorskip("accelera.tensora")
    ts.set_memory_limit(ts.memory_stats().live_bytes + 8 * MIB)
    try:
        with accelera.budget("1GiB"), pytest.raises(MemoryError):
            ts.ones((4096, 4096))
        with pytest.raises(MemoryError):
            ts.ones((4096, 4096))
    finally:
        ts.set_memory_limit(None)
    ts.ones((4096, 4096))


def test_engine_and_tensors_share_the_budget(operand: Path) -> None:
    ts = pytest.importorskip("accelera.tensora")
    engine = accelera.MatrixEngine("cpu")
    with accelera.budget(limit(128)):
        tensor = ts.ones((4096, 4096))
        product = engine.matmul(operand, operand, budget="100MiB")
        with pytest.raises(MemoryError):
            ts.ones((4096, 4096))
        usage = accelera.budget_report()
        assert usage.limit_bytes is not None
        assert usage.used_bytes <= usage.limit_bytes
    assert (tensor.shape, product.shape) == ((4096, 4096), (SIDE, SIDE))


def test_offloaded_model_holds_its_budget_until_it_is_restored() -> None:
    torch = pytest.importorskip("torch")
    before = held("offload")
    with accelera.budget(limit(512)):
        model = accelera.offload(torch.nn.Sequential(torch.nn.Linear(512, 512)).eval(), "64MiB")
        assert held("offload") - before == 64 * MIB
        with pytest.raises(BudgetExceededError), accelera.budget("32MiB"):
            pass
        accelera.offloaded(model).restore()
        assert held("offload") == before


def test_offload_gets_what_is_left() -> None:
    torch = pytest.importorskip("torch")
    before = held("offload")  # models of other tests in this process
    with accelera.budget(limit(80)):
        left = accelera.budget_report().available_bytes
        assert left is not None
        model = accelera.offload(torch.nn.Sequential(torch.nn.Linear(64, 64)).eval(), "1GiB")
        assert held("offload") - before <= left
        accelera.offloaded(model).restore()


def test_intercepted_calls_keep_to_the_budget() -> None:
    torch = pytest.importorskip("torch")
    a = torch.ones(2048, 2048)
    with accelera.budget("1GiB"), accelera.intercepted("512MiB"):
        assert torch.equal(a @ a, torch.full((2048, 2048), 2048.0))
    with (
        accelera.budget(limit(2)),
        accelera.intercepted("512MiB", memory_threshold="1MiB", spill_dir=False),
        pytest.raises(BudgetExceededError),
    ):
        a @ a


def test_batch_reserves_the_memory_of_its_tasks() -> None:
    profile = accelera.WorkloadProfile(task_count=4, memory_per_task=64 * MIB)
    seen: list[int] = []

    def work(_: int) -> int:
        seen.append(held("executor"))
        return 1

    with accelera.budget("1GiB"):
        manager = accelera.StrategyManager.auto(budget="128MiB")
        result = manager.execute([1, 2, 3, 4], work, profile=profile)
    assert result.outputs == [1, 1, 1, 1]
    assert max(seen, default=0) <= 128 * MIB
    assert held("executor") == 0


def test_inner_budget_can_only_be_smaller() -> None:
    with accelera.budget("2GiB"), accelera.budget("50%"):
        assert accelera.budget_report().limit_bytes == 2**30
        with (
            pytest.raises(ArgumentError, match=r"above the 1\.0 GiB of the enclosing"),
            accelera.budget("2GiB"),
        ):
            pass
    assert accelera.budget_report().limit_bytes is None


def test_report_is_a_table_of_components() -> None:
    with accelera.budget("1GiB"):
        report = accelera.budget_report()
        assert [line.split()[0] for line in str(report).splitlines()][-2:] == ["total", "limit"]
        assert "Memory by component" in report._repr_html_()


def test_threads_together_never_pass_the_limit() -> None:
    ledger = ProcessLedger()
    ledger.add_limit(100)
    highest: list[int] = []

    def work(size: int) -> None:
        try:
            with ledger.reserve("work", "thread", size):
                highest.append(ledger.usage().used_bytes)
        except BudgetExceededError:
            pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [1 + n % 60 for n in range(4000)]))
    assert max(highest) <= 100
    assert ledger.usage().used_bytes == 0


@given(st.lists(st.tuples(st.sampled_from(["reserve", "inner", "release"]), st.integers(0, 60)), max_size=30))
def test_account_equals_the_reservations_that_are_held(steps: list[tuple[str, int]]) -> None:
    """Against a model: reservations within a reservation are part of it, and outlive it by themselves."""
    ledger, top, inner = ProcessLedger(), [], []
    ledger.add_limit(100)
    for step, number in steps:
        before = ledger.usage().used_bytes
        try:
            if step == "reserve":
                top.append(ledger.reserve("op", "a", number))
                assert ledger.usage().used_bytes == before + number <= 100
            elif step == "inner" and top:
                outer = top[number % len(top)]
                with outer.covering():
                    inner.append(ledger.reserve("op", "b", number))
                assert outer.left_bytes >= 0
                assert ledger.usage().used_bytes == before
            elif step == "release" and top:
                top.pop(number % len(top)).release()
        except BudgetExceededError:
            assert ledger.usage().used_bytes == before
        assert ledger.usage().used_bytes <= 100
    for each in [*top, *inner]:
        each.release()
    assert ledger.usage().used_bytes == 0
