"""On and off: nesting, threads, exceptions, settings; afterwards torch is as it was."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

import accelera
from accelera.devices import cpu, get_device
from accelera.errors import AcceleraError, DTypeError, SettingError, UnknownNameError
from accelera.interceptor import accelera_matmul, api, hooks, should_intercept
from accelera.interceptor.config import active_config, config_of
from accelera.memory import manager
from accelera.memory._internal import HostMemory
from tests.interceptor.forcing import counted
from tests.threads import run_in_threads

X = torch.ones(2000, 3)


@pytest.fixture(autouse=True)
def _torch_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> object:
    for name in ("BUDGET", "MIN_SIZE", "MEMORY_THRESHOLD_GB", "SPILL"):
        monkeypatch.delenv(f"ACCELERA_{name}", raising=False)
    operators = [f"aten::{name}" for name in hooks.OPERATORS]
    gc.collect()  # registrations of tests before, which end with their libraries
    before = [torch._C._dispatch_dump(name) for name in operators]
    yield
    assert active_config() is None
    assert [torch._C._dispatch_dump(name) for name in operators] == before


def looked_at() -> int:
    with counted() as seen:
        X + 1
    return seen[0].total.calls


def test_enable_and_disable() -> None:
    accelera.enable("1GiB", 0, 0)
    try:
        assert looked_at() == 1
        accelera.enable("1GiB", 10**6, 0)
        assert looked_at() == 0
    finally:
        accelera.disable()
    assert looked_at() == 0
    accelera.disable()


def test_blocks_nest_and_put_back_what_was_active_config() -> None:
    with accelera.intercepted("1GiB", 0, 0):
        with accelera.intercepted("2GiB", 10**6, 0):
            assert looked_at() == 0
            with accelera.intercepted("3GiB", 0, 0):
                assert looked_at() == 1
            assert looked_at() == 0
        assert looked_at() == 1
    assert looked_at() == 0


def test_a_block_inside_enable() -> None:
    accelera.enable("1GiB", 10**6, 0)
    try:
        with accelera.intercepted("1GiB", 0, 0):
            assert looked_at() == 1
        assert looked_at() == 0
        assert active_config() is not None
    finally:
        accelera.disable()


def test_disable_ends_everything() -> None:
    with accelera.intercepted("1GiB", 0, 0), accelera.intercepted("1GiB", 0, 0):
        accelera.disable()
        assert looked_at() == 0
    assert looked_at() == 0


def test_exceptions_leave_torch_as_it_was() -> None:
    with pytest.raises(ZeroDivisionError), accelera.intercepted("1GiB", 0, 0):
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="cannot be multiplied"), accelera.intercepted("1GiB", 0, 0):
        X @ X


def test_it_is_in_force_in_every_thread() -> None:
    found: list[int] = []
    with accelera.intercepted("1GiB", 0, 0):
        run_in_threads(lambda: found.append(looked_at()))
    assert found == [1]


def test_blocks_that_end_in_another_order() -> None:
    first, second = accelera.intercepted("1GiB", 0, 0), accelera.intercepted("2GiB", 10**6, 0)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert looked_at() == 0
    assert active_config() is not None
    second.__exit__(None, None, None)


def test_many_threads_switch_and_compute() -> None:
    expected, wrong = X @ X.T, []

    def work() -> None:
        for _ in range(20):
            with accelera.intercepted("64MiB", 0, 0):
                if not torch.equal(X @ X.T, expected):
                    wrong.append(True)

    run_in_threads(*[work] * 3)
    assert not wrong


class TestSettings:
    def test_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ACCELERA_BUDGET", "64MiB")
        monkeypatch.setenv("ACCELERA_MIN_SIZE", "7")
        limits = config_of()
        assert limits.limit(torch.device("cpu")).budget_bytes() == 64 << 20
        assert (limits.min_size, limits.memory_threshold_bytes) == (7, 8 << 20)
        monkeypatch.setenv("ACCELERA_MEMORY_THRESHOLD_GB", "0.5")
        assert config_of().memory_threshold_bytes == 1 << 29
        assert config_of(memory_threshold="1KiB").memory_threshold_bytes == 1024

    def test_without_a_budget_the_free_memory_decides(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (cpu, manager):
            monkeypatch.setattr(module, "host_memory", lambda: HostMemory(8 << 30, 4 << 30, 8 << 30))
        limits = config_of()
        usable = accelera.MemoryManager(get_device("cpu")).get_usable_memory()
        assert 0 < usable < 4 << 30
        assert limits.memory_threshold_bytes == usable // 8
        room = limits.limit(torch.device("cpu"))
        assert room.allows(1 << 20)
        assert not room.allows(1 << 60)

    def test_what_cannot_be_read(self) -> None:
        for wish, error in (
            ({"min_size": -1}, SettingError),
            ({"min_size": "1024"}, SettingError),
            ({"min_size": 1.5}, SettingError),
            ({"min_size": 1 << 63}, SettingError),
            ({"spill_dir": 5}, SettingError),
            ({"budget": "lots"}, ValueError),
            ({"memory_threshold": "lots"}, ValueError),
            ({"device": "abacus"}, UnknownNameError),
        ):
            with pytest.raises(error):
                accelera.enable(**wish)  # type: ignore[arg-type]


class TestByName:
    def test_should_intercept(self) -> None:
        long = torch.empty(2048, 1)
        assert not should_intercept(long, long.T)
        with accelera.intercepted("64MiB", 1024, "8MiB"):
            assert should_intercept(long, long.T)
            assert not should_intercept(long)
            assert not should_intercept(torch.empty(1000, 1000), torch.empty(1000, 1000))
            assert should_intercept(torch.empty(2048, 2048))
            for other in (torch.empty(2048, 2048, device="meta"), torch.eye(3000).to_sparse()):
                assert not should_intercept(other, other)
        with accelera.intercepted("64MiB", 0, 0):
            assert should_intercept(torch.ones(2), torch.ones(3))

    def test_accelera_matmul_whether_enabled_or_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        a, b = torch.randn(1500, 20), torch.randn(20, 1500)
        with counted() as seen:
            small = accelera_matmul(a, b)
        assert seen[0].total.calls == 0
        monkeypatch.setenv("ACCELERA_BUDGET", "30MiB")
        monkeypatch.setenv("ACCELERA_MEMORY_THRESHOLD_GB", "0.001")
        with counted() as seen:
            large = accelera_matmul(a, b)
        assert seen[0].by_op["mm"].direct == 1
        with accelera.intercepted("1GiB", 0, 0), counted() as seen:
            within = accelera_matmul(a, b)
        assert seen[0].total.calls == 1
        assert torch.equal(small, large)
        assert torch.equal(small, within)


def test_the_refusal_is_ours_and_a_memory_error() -> None:
    with accelera.intercepted(10_000, 0, 0, spill_dir=False), pytest.raises(MemoryError) as error:
        X + 1
    assert isinstance(error.value, AcceleraError)


def test_limits_that_cannot_be_armed_leave_the_former_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    accelera.enable("1GiB", 0, 0)
    try:
        arm = hooks.arm

        def fails_once(*args: object) -> None:
            monkeypatch.setattr(api, "arm", arm)
            raise RuntimeError("no")

        monkeypatch.setattr(api, "arm", fails_once)
        with pytest.raises(RuntimeError, match="no"):
            accelera.enable("2GiB", 10**6, 0)
        assert looked_at() == 1
    finally:
        accelera.disable()
    assert looked_at() == 0


@pytest.mark.parametrize("named", ["argument", "setting"])
def test_a_spill_folder_that_is_none_is_refused_at_once(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = str(tmp_path / "nowhere")
    if named == "setting":
        monkeypatch.setenv("ACCELERA_SPILL", nowhere)
    with pytest.raises(SettingError, match=r"spill_dir='.*nowhere'.*not a writable folder"):
        accelera.enable("1GiB", spill_dir=nowhere if named == "argument" else None)
    assert active_config() is None


def test_operands_that_are_no_tensors_are_refused() -> None:
    with pytest.raises(DTypeError, match=r"\[accelera_matmul\] an operand is a list"):
        accelera_matmul([1], [2])  # type: ignore[arg-type]
