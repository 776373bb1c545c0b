"""Products that CPU and accelerator make together: right, in the budget, and brought to an end."""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accelera as acc
from accelera.devices import CpuDevice, SimulatedDevice, get_device
from accelera.engine import MatrixEngine, calibration
from accelera.engine._internal import journal_path, read_journal
from accelera.engine.blocks import cut
from accelera.engine.matmul import PlannedMatmul
from accelera.errors import BudgetExceededError, DeviceMemoryError, StoreError, UnknownNameError
from accelera.execution import ExecutionStrategy, StrategyManager
from accelera.execution import Observer as Watcher
from accelera.stores import open_store
from accelera.stores._internal import ArrayStore, Region
from tests.planned import StopAfter

MIB = 1 << 20
TOLERANCE = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-13, "complex64": 1e-5}
"""Relative to the largest element: sums are made in another order than the plain engine's."""
HALVES = ExecutionStrategy.Hybrid(50, 50)
"""Each side has work, however late it begins."""


def values(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    found = rng.integers(-9, 10, shape) if np.dtype(dtype).kind in "iu" else rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        found = found + 1j * rng.standard_normal(shape)
    return found.astype(dtype)


def engine_with(strategy: Any = "hybrid", device: Any = None, **options: Any) -> MatrixEngine:
    options.setdefault("budget", "96MiB")
    device = SimulatedDevice("8MiB") if device is None else device
    return MatrixEngine(device=device, strategy=strategy, enable_progress=False, **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operands")
    np.save(folder / "a.npy", values((900, 300), seed=1))
    np.save(folder / "b.npy", values((300, 700), seed=2))
    return folder


def product_of(folder: Path) -> np.ndarray[Any, Any]:
    a, b = (np.load(folder / name).astype(np.float64) for name in ("a.npy", "b.npy"))
    return a @ b


def is_close(found: Any, exact: Any, dtype: str = "float32") -> bool:
    return bool(np.abs(found - exact).max() <= TOLERANCE[dtype] * np.abs(exact).max())


class TestResults:
    @pytest.mark.parametrize("strategy", ["auto", "gpu", "hybrid", ExecutionStrategy.Hybrid(50, 50)], ids=str)
    def test_files_are_multiplied_whoever_makes_the_blocks(
        self, files: Path, tmp_path: Path, strategy: Any
    ) -> None:
        engine = engine_with(strategy)
        engine.matmul(files / "a.npy", files / "b.npy", out=tmp_path / "c.npy")
        assert is_close(np.load(tmp_path / "c.npy"), product_of(files))
        report = engine.last_report
        assert report is not None
        assert sum(did.blocks for did in report.per_device.values()) == report.plan.forecast.steps
        assert not list(tmp_path.glob("*.journal"))
        assert not list(tmp_path.glob("*.partial"))

    @pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
    def test_whole_numbers_are_those_of_the_plain_engine(self, dtype: str) -> None:
        a, b = values((150, 90), dtype, 1), values((90, 130), dtype, 2)
        plain = MatrixEngine(device="cpu", enable_progress=False).matmul(a, b).numpy()
        assert np.array_equal(engine_with().matmul(a, b).numpy(), plain)

    @pytest.mark.parametrize("dtype", TOLERANCE)
    def test_other_numbers_are_as_close_as_their_type_allows(self, dtype: str) -> None:
        a, b = values((150, 90), dtype, 1), values((90, 130), dtype, 2)
        wide = "complex128" if dtype == "complex64" else "float64"
        assert is_close(engine_with().matmul(a, b).numpy(), a.astype(wide) @ b.astype(wide), dtype)

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            ((40, 30), (30,)),
            ((30,), (30, 40)),
            ((5, 20, 30), (30, 10)),
            ((2, 1, 8, 6), (3, 6, 4)),
            ((30,), (30,)),
        ],
    )
    def test_every_shape_of_matmul(self, left: tuple[int, ...], right: tuple[int, ...]) -> None:
        a, b = values(left, "int32", 1), values(right, "int32", 2)
        engine = engine_with()
        assert np.array_equal(engine.matmul(a, b).numpy(), a @ b)
        assert engine.last_report.per_device

    def test_nothing_to_multiply_is_nobody_s_work(self) -> None:
        engine = engine_with()
        assert engine.matmul(np.ones((4, 0), "f4"), np.ones((0, 3), "f4")).numpy().tolist() == [[0.0] * 3] * 4
        assert engine.plan(np.ones((4, 0), "f4"), np.ones((0, 3), "f4")).placement is None

    def test_views_and_arrays_of_the_caller(self) -> None:
        a, b, out = (
            values((90, 150), "int32", 1),
            values((130, 90), "int32", 2),
            np.zeros((150, 130), "int32"),
        )
        engine_with().matmul(a.T, b.T, out=out)
        assert np.array_equal(out, a.T @ b.T)

    def test_chunks_of_the_user_are_the_blocks(self) -> None:
        engine = engine_with(auto_detect_memory=False, chunk_size=20, chunking_strategy="row")
        a, b = values((90, 40), "int32", 1), values((40, 70), "int32", 2)
        assert np.array_equal(engine.matmul(a, b).numpy(), a @ b)
        assert [step.write.shape for step in engine.last_report.plan.steps()] == [(20, 70)] * 4 + [(10, 70)]

    def test_a_zarr_result_is_cut_along_its_chunks(self, files: Path, tmp_path: Path) -> None:
        a, b = values((3000, 40), "int32", 1), values((40, 2000), "int32", 2)
        engine = engine_with(budget="256MiB")
        engine.matmul(a, b, out=tmp_path / "c.zarr")
        assert np.array_equal(open_store(tmp_path / "c.zarr").to_numpy(), a @ b)
        chunk = open_store(tmp_path / "c.zarr").layout.chunk
        assert chunk is not None
        starts = [part.start for step in engine.last_report.plan.steps() for part in step.write.region]
        assert all(start % size == 0 for start, size in zip(starts, itertools.cycle(chunk), strict=False))


class TestWhoWorks:
    def test_only_the_cpu_is_the_engine_without_strategy(self, files: Path, tmp_path: Path) -> None:
        plain = MatrixEngine(device="cpu", enable_progress=False, budget="96MiB")
        engine = engine_with("cpu")
        for each, name in ((plain, "plain.npy"), (engine, "cpu.npy")):
            each.matmul(files / "a.npy", files / "b.npy", out=tmp_path / name)
        assert engine.places is None
        assert engine.device.name == "cpu"
        assert np.array_equal(np.load(tmp_path / "plain.npy"), np.load(tmp_path / "cpu.npy"))
        said = [each.plan(files / "a.npy", files / "b.npy").to_dict() for each in (plain, engine)]
        assert said[0] == said[1]

    def test_given_shares_are_kept(self, files: Path) -> None:
        engine = engine_with(ExecutionStrategy.Hybrid(gpu_allocation=75, cpu_allocation=25))
        engine.matmul(files / "a.npy", files / "b.npy", out=np.empty((900, 700), "f4"))
        did = {name: each.blocks for name, each in engine.last_report.per_device.items()}
        assert did == {"cpu": 4, "sim": 12}

    def test_a_gpu_by_itself_makes_all_blocks(self, files: Path) -> None:
        engine = engine_with("gpu")
        engine.matmul(files / "a.npy", files / "b.npy", out=np.empty((900, 700), "f4"))
        did = {name: each.blocks for name, each in engine.last_report.per_device.items()}
        assert did == {"cpu": 0, "sim": 16}
        assert engine.last_report.fallbacks == ()

    @pytest.mark.parametrize("strategy", ["gpu", "hybrid"])
    def test_without_an_accelerator_the_cpu_works_and_that_is_said(
        self, strategy: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "accelera"):
            engine = engine_with(strategy, device="cpu")
        assert "asks for an accelerator" in caplog.text
        assert "give device='cuda:0'" in caplog.text
        a = values((30, 30), "int32")
        assert np.array_equal(engine.matmul(a, a).numpy(), a @ a)

    def test_auto_without_an_accelerator_needs_no_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "accelera"):
            assert engine_with("auto", device="cpu").places is None
        assert caplog.text == ""

    def test_a_manager_brings_its_strategy_and_its_observers(self, files: Path) -> None:
        class Counting(Watcher):
            blocks = 0

            def on_chunk(self, device: str, task_count: int, seconds: float) -> None:
                Counting.blocks += task_count

        manager = StrategyManager(strategy=ExecutionStrategy.Hybrid(25, 75), observers=[Counting()])
        engine = engine_with(manager)
        engine.matmul(files / "a.npy", files / "b.npy", out=np.empty((900, 700), "f4"))
        assert Counting.blocks == 16
        assert engine.last_report.per_device["sim"].blocks == 4

    def test_what_is_no_strategy_is_said(self) -> None:
        with pytest.raises(UnknownNameError, match="hybrid"):
            engine_with("hibrid")
        with pytest.raises(TypeError, match="give 'auto', 'cpu'"):
            engine_with(3)

    def test_a_recorder_follows_one_pool_only(self, files: Path) -> None:
        recorder: Any = acc.TraceRecorder() if hasattr(acc, "TraceRecorder") else object()
        with pytest.raises(ValueError, match="without strategy"):
            engine_with().matmul(files / "a.npy", files / "b.npy", recorder=recorder)


class TestFailing:
    @pytest.mark.parametrize("strategy", ["gpu", HALVES], ids=str)
    @pytest.mark.parametrize("kind", ["fail_compute_at", "fail_transfer_at"])
    def test_an_accelerator_that_fails_in_the_middle_leaves_its_blocks_to_the_cpu(
        self, files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, strategy: Any, kind: str
    ) -> None:
        device = SimulatedDevice("8MiB", **{kind: tuple(range(3, 10_000))})  # type: ignore[arg-type]
        engine = engine_with(strategy, device)
        with caplog.at_level(logging.WARNING, "accelera"):
            engine.matmul(files / "a.npy", files / "b.npy", out=tmp_path / "c.npy")
        assert is_close(np.load(tmp_path / "c.npy"), product_of(files))
        report = engine.last_report
        assert report is not None
        assert report.per_device["sim"].failed >= 1
        assert sum(did.blocks for did in report.per_device.values()) == 16
        assert any("the CPU took over from sim" in note for note in report.fallbacks)
        assert "the CPU took over from sim" in caplog.text
        assert device.allocated_bytes == 0

    def test_a_device_that_is_short_of_memory_makes_smaller_tiles(self) -> None:
        a, b, out = values((1500, 700), seed=1), values((700, 1300), seed=2), np.empty((1500, 1300), "f4")
        engine = engine_with("gpu", SimulatedDevice("8MiB", oom_above="2MiB"))
        engine.matmul(a, b, out=out)
        assert is_close(out, a.astype("f8") @ b.astype("f8"))
        report = engine.last_report
        assert report is not None
        assert report.per_device["sim"].blocks == 16
        assert report.per_device["sim"].peak_pool_bytes <= 2 * MIB
        assert any("half the room" in note for note in report.fallbacks)

    def test_ram_that_runs_out_on_the_way_is_gone_on_with_in_half_the_room(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a, b = values((2600, 900), seed=1), values((900, 2400), seed=2)
        np.save(tmp_path / "a.npy", a)
        np.save(tmp_path / "b.npy", b)
        cpu, calls = get_device("cpu"), itertools.count()
        allocate = CpuDevice.allocate

        def failing(self: CpuDevice, nbytes: int) -> Any:
            if self is cpu and next(calls) == 4:
                raise DeviceMemoryError("[allocate] others took it")
            return allocate(self, nbytes)

        engine = engine_with(HALVES, SimulatedDevice("16MiB"))
        engine.plan(tmp_path / "a.npy", tmp_path / "b.npy", out=tmp_path / "c.npy")
        monkeypatch.setattr(CpuDevice, "allocate", failing)
        engine.matmul(tmp_path / "a.npy", tmp_path / "b.npy", out=tmp_path / "c.npy")
        assert is_close(np.load(tmp_path / "c.npy"), a.astype("f8") @ b.astype("f8"))
        assert any("half the room on cpu" in note for note in engine.last_report.fallbacks)

    def test_an_operand_that_cannot_be_read_is_no_fault_of_a_device(self, tmp_path: Path) -> None:
        class Broken(ArrayStore.__mro__[1]):  # type: ignore[name-defined]
            """Raises where it is read."""

            def __init__(self) -> None:
                self.shape, self.dtype, self.tier, self.name = (300, 200), np.dtype("f4"), "disk", "broken"

            def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
                raise StoreError("[read] broken: the disk is gone")

            def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
                raise AssertionError("nobody writes an operand")

            @property
            def layout(self) -> Any:
                return ArrayStore(np.empty((300, 200), "f4")).layout

        with pytest.raises(StoreError, match="the disk is gone"):
            engine_with().matmul(Broken(), np.ones((200, 100), "f4"), out=tmp_path / "c.npy")
        assert list(tmp_path.iterdir()) == []

    def test_a_budget_too_small_for_two_sides_is_the_cpu_s(
        self, files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = engine_with(budget="40MiB")
        with pytest.raises(BudgetExceededError, match="on CPU and sim together") as refused:
            engine.plan(files / "a.npy", files / "b.npy", out=tmp_path / "c.npy")
        assert refused.value.budget_bytes == 40 * MIB
        enough = engine_with(budget=refused.value.needed_bytes)
        assert enough.plan(files / "a.npy", files / "b.npy", out=tmp_path / "c.npy").placement is not None
        with caplog.at_level(logging.WARNING, "accelera"):
            engine.matmul(files / "a.npy", files / "b.npy", out=tmp_path / "c.npy")
        assert is_close(np.load(tmp_path / "c.npy"), product_of(files))
        assert "planned on the CPU" in caplog.text
        assert engine.last_report.per_device == {}


def our_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("accelera-")]


class TestResuming:
    @pytest.mark.parametrize("resumed_with", ["hybrid", "gpu", None])
    def test_what_an_interrupted_run_has_made_is_not_made_again(
        self, files: Path, tmp_path: Path, resumed_with: str | None
    ) -> None:
        a, b, out = files / "a.npy", files / "b.npy", tmp_path / "c.npy"
        with pytest.raises(KeyboardInterrupt):
            engine_with().matmul(a, b, out=out, observers=[StopAfter(6)])
        assert not out.exists()
        _, done = read_journal(journal_path(out))
        assert 6 <= len(done) < 16
        engine = engine_with(resumed_with)
        engine.matmul(a, b, out=out, resume=True)
        assert is_close(np.load(out), product_of(files))
        report = engine.last_report
        assert report is not None
        if resumed_with is not None:
            assert (report.steps_run, report.steps_skipped) == (16 - len(done), len(done))
        assert [each.name for each in tmp_path.iterdir()] == ["c.npy"]

    def test_a_run_interrupted_after_its_last_block_is_only_published(
        self, files: Path, tmp_path: Path
    ) -> None:
        a, b, out = files / "a.npy", files / "b.npy", tmp_path / "c.npy"
        with pytest.raises(KeyboardInterrupt):
            engine_with("gpu").matmul(a, b, out=out, observers=[StopAfter(16)])
        engine = engine_with()
        engine.matmul(a, b, out=out, resume=True)
        assert is_close(np.load(out), product_of(files))
        assert (engine.last_report.steps_run, engine.last_report.steps_skipped) == (0, 16)

    def test_blocks_go_on_where_tiles_ended(self, files: Path, tmp_path: Path) -> None:
        a, b, out = files / "a.npy", files / "b.npy", tmp_path / "c.npy"
        with pytest.raises(KeyboardInterrupt):
            engine_with(None, device="cpu", auto_detect_memory=False, chunk_size=100).matmul(
                a, b, out=out, observers=[StopAfter(4)]
            )
        engine_with().matmul(a, b, out=out, resume=True)
        assert is_close(np.load(out), product_of(files))

    def test_no_thread_is_left_at_a_block_after_an_interruption(self, files: Path, tmp_path: Path) -> None:
        device = SimulatedDevice("8MiB")
        with pytest.raises(KeyboardInterrupt):
            engine_with(device=device).matmul(
                files / "a.npy", files / "b.npy", out=tmp_path / "c.npy", observers=[StopAfter(3)]
            )
        assert [name for name in our_threads() if "read" in name or "admit" in name or "write" in name] == []
        assert device.allocated_bytes == 0


class TestPlanning:
    def test_the_plan_tells_the_blocks_of_each_device_and_both_peaks(
        self, files: Path, tmp_path: Path
    ) -> None:
        engine = engine_with()
        plan = engine.plan(files / "a.npy", files / "b.npy", out=tmp_path / "c.npy")
        assert plan.placement is not None
        assert plan.placement.blocks == 16
        assert set(plan.peak_bytes) == {"ram", "sim"}
        assert (
            plan.peak_bytes["ram"] == plan.forecast.peak_pool_bytes + sum(plan.reserved.values()) <= 96 * MIB
        )
        assert plan.peak_bytes["sim"] <= 8 * MIB
        assert plan.reserved["sim"] > 0
        text = plan.explain()
        assert "Hybrid" in text
        assert " of 16 blocks expected" in text
        assert json.loads(json.dumps(plan.to_dict()))["placement"]["devices"][0]["device"] == "cpu"
        assert list(tmp_path.iterdir()) == []

    def test_a_slow_accelerator_is_expected_to_make_few_blocks(
        self, files: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calibration, "_measured_flops", lambda device: 1e11)
        plans = [
            engine_with(device=SimulatedDevice("8MiB", flops_per_s=rate)).plan(
                files / "a.npy", files / "b.npy"
            )
            for rate in (1e9, 1e14)
        ]
        slow, fast = ([each.blocks for each in plan.placement.devices] for plan in plans if plan.placement)
        assert slow[1] < fast[1]

    def test_moved_bytes_are_those_of_the_blocks_as_dealt_out(self, files: Path, tmp_path: Path) -> None:
        engine = engine_with(ExecutionStrategy.Hybrid(50, 50))
        engine.matmul(files / "a.npy", files / "b.npy", out=tmp_path / "c.npy")
        report = engine.last_report
        assert report is not None
        assert report.moved_bytes == report.plan.moved_bytes
        assert sum(did.moved_bytes for did in report.per_device.values()) == report.moved_bytes
        rows = {name: (said, did) for name, said, did in report.rows()}
        assert rows["blocks on sim"] == ("8", "8")
        assert rows["blocks on cpu"] == ("8", "8")
        assert report.to_dict()["per_device"]["sim"]["blocks"] == 8

    def test_ram_stays_in_the_budget_with_both_sides_at_work(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", values((2400, 2000), seed=1))
        np.save(tmp_path / "b.npy", values((2000, 2200), seed=2))
        budget = 110 * MIB
        program = Path(__file__).with_name("placed_peak.py")
        done = subprocess.run(
            [sys.executable, program, str(budget)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert min(found["blocks"].values()) > 0
        in_ram = found["took"] - found["on_device"]
        assert in_ram <= found["planned"]["ram"] <= budget
        assert found["on_device"] <= found["planned"]["sim"] <= 24 * MIB
        exact = np.load(tmp_path / "a.npy").astype("f8") @ np.load(tmp_path / "b.npy").astype("f8")
        assert is_close(np.load(tmp_path / "c.npy"), exact)


class TestCutting:
    @pytest.mark.parametrize(
        "shapes", [((1000, 30), (30, 20)), ((7, 3), (3, 5)), ((6, 50, 4), (4, 60)), ((1, 2), (2, 1))]
    )
    @pytest.mark.parametrize("wanted", [1, 5, 16, 32])
    def test_blocks_cover_the_result_once(self, shapes: Any, wanted: int) -> None:
        a, b = (np.zeros(shape, "f4") for shape in shapes)
        problem = PlannedMatmul(open_store(a), open_store(b)).problem(get_device("cpu"))
        blocks = cut(problem, wanted)
        seen = np.zeros(problem.c.shape, int)
        for block in blocks:
            seen[tuple(slice(*span) for span in block)] += 1
        assert (seen == 1).all()
        assert min(wanted, seen.size) <= len(blocks) or len(blocks) >= wanted // 2
        assert len(blocks) <= 2 * wanted

    def test_a_tall_result_is_cut_into_rows(self) -> None:
        a, b = np.zeros((5000, 4), "f4"), np.zeros((4, 80), "f4")
        problem = PlannedMatmul(open_store(a), open_store(b)).problem(get_device("cpu"))
        assert {block[1] for block in cut(problem, 16)} == {(0, 80)}
