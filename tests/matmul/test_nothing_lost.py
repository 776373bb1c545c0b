"""Whatever ends a run, no file is damaged, nothing finished is lost and nothing is left running."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelera.engine import Progress, RunObserver, RunReport
from accelera.engine._internal import journal_path, read_journal
from accelera.errors import DTypeError, ShapeError, StoreChangedError, StoreError
from accelera.stores import Store, open_store
from accelera.stores._internal import create_store
from tests.matmul.interrupted import StopAfter, grid, in_a_process, nothing_left
from tests.matmul.products import (
    PLACES,
    ROOMY,
    SUFFIXES,
    assert_close,
    cpu,
    in_npy,
    read_back,
    smallest_budget,
    values,
)
from tests.planned import matmul

EDGE, TILE = 96, 32
TILES = grid(EDGE, EDGE, TILE)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    with nothing_left():
        yield


class Case:
    """Two operands of 96 x 96 in one kind of store, a result there, cut into nine tiles."""

    def __init__(self, folder: Path, place: str = "npy", dtype: Any = "f4") -> None:
        self.a, self.b = values((EDGE, EDGE), dtype), values((EDGE, EDGE), dtype, 1)
        self.place, self.dtype = place, np.dtype(dtype)
        self.stores: Any = tuple(
            PLACES[place](folder / name, x) for name, x in (("a", self.a), ("b", self.b))
        )
        self.out = folder / f"c{SUFFIXES[place]}"
        self.partial = self.out.with_name(self.out.name + ".partial")
        self.journal = journal_path(self.out)

    def run(self, out: Any = None, **options: Any) -> RunReport:
        budget_bytes = options.pop("budget_bytes", ROOMY)
        options = {"tiles": TILES, **options}
        target = self.out if out is None else out
        return matmul(
            self.stores[0], self.stores[1], target, device=cpu(), budget_bytes=budget_bytes, **options
        )[1]

    def interrupt(self, tiles: int = 4, error: BaseException | None = None) -> None:
        error = error or KeyboardInterrupt()
        with pytest.raises(type(error)):
            self.run(observers=[StopAfter(tiles, error)])

    def job(self, tiles: int, signame: str, **more: Any) -> dict[str, Any]:
        suffix = SUFFIXES[self.place]
        a, b = (str(self.out.with_name(f"{name}{suffix}")) for name in "ab")
        where = {"a": a, "b": b, "out": str(self.out), "dtype": self.dtype.name, "shape": [EDGE, EDGE]}
        return {**where, "edge": TILE, "tiles": tiles, "signal": signame, **more}

    def result(self) -> np.ndarray[Any, Any]:
        return read_back(self.out, (EDGE, EDGE), self.dtype)

    def uninterrupted(self) -> np.ndarray[Any, Any]:
        """Return the result of the same plan run through, bit by bit."""
        elsewhere = self.out.with_name(f"whole{self.out.suffix}")
        self.run(elsewhere)
        return read_back(elsewhere, (EDGE, EDGE), self.dtype)

    def left(self) -> set[str]:
        """Return what lies beside the operands."""
        return {each.name for each in self.out.parent.iterdir()} - {
            f"{name}{SUFFIXES[self.place]}" for name in "ab"
        }


def snapshot(path: Path) -> dict[str, bytes]:
    """Return all bytes under a file or folder."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return {str(each.relative_to(path.parent)): each.read_bytes() for each in files}


@contextmanager
def nobody() -> Iterator[None]:
    """Go without root's rights until the end of the block."""
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)


def same_bits(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return one.tobytes() == other.tobytes()


class TestAppearing:
    @pytest.mark.parametrize("place", SUFFIXES)
    def test_the_result_has_its_name_only_when_it_is_complete(self, tmp_path: Path, place: str) -> None:
        case = Case(tmp_path, place)
        seen: list[bool] = []

        class Watch(RunObserver):
            def on_progress(self, progress: Progress) -> None:
                seen.append(case.out.exists())

            def on_finish(self, report: RunReport) -> None:
                assert case.out.exists()

        case.run(observers=[Watch()])
        assert seen == [False] * len(seen)
        assert len(seen) >= 9
        assert case.left() == {case.out.name}
        assert_close(case.result(), case.a, case.b)

    @pytest.mark.parametrize("place", SUFFIXES)
    def test_an_existing_result_is_untouched_until_success(self, tmp_path: Path, place: str) -> None:
        case = Case(tmp_path, place)
        PLACES[place](tmp_path / "c", np.full((5, 5), 7, "f4"))
        old = snapshot(case.out)
        case.interrupt(2, RuntimeError("mine"))
        assert snapshot(case.out) == old
        case.run()
        assert_close(case.result(), case.a, case.b)
        assert case.left() == {case.out.name}

    def test_a_run_that_fails_before_its_first_tile_leaves_nothing(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        case.interrupt(0, RuntimeError("mine"))
        assert case.left() <= {case.partial.name, case.journal.name}
        if case.left():
            case.run(resume=True)
            assert_close(case.result(), case.a, case.b)

    def test_a_second_run_for_the_same_result_is_refused_and_harms_nothing(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        refused: list[str] = []

        class Rival(RunObserver):
            def on_progress(self, progress: Progress) -> None:
                for resume in (False, True):
                    with pytest.raises(StoreError) as error:
                        case.run(resume=resume)
                    refused.append(str(error.value))

        case.run(observers=[Rival()])
        assert len(refused) >= 18
        assert_close(case.result(), case.a, case.b)


class TestResuming:
    @pytest.mark.parametrize("place", SUFFIXES)
    @pytest.mark.parametrize("dtype", ["f4", "f2"])
    def test_a_killed_run_is_completed(self, tmp_path: Path, place: str, dtype: str) -> None:
        case = Case(tmp_path, place, dtype)
        killed = in_a_process(case.job(6, "SIGKILL"))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert case.left() == {case.partial.name, case.journal.name}
        _, boxes = read_journal(case.journal)
        stored_bytes = len(boxes) * TILE * TILE * case.dtype.itemsize
        assert 3 <= len(boxes) <= 6, "the writer may be a window of steps behind"

        report = case.run(resume=True)
        assert same_bits(case.result(), case.uninterrupted())
        assert case.left() == {case.out.name, f"whole{case.out.suffix}"}
        assert report.steps_skipped > 0
        assert report.steps_run + report.steps_skipped == report.plan.forecast.steps
        assert report.bytes_written == case.result().nbytes - stored_bytes
        assert sum(report.bytes_read.values()) < sum(report.plan.forecast.bytes_read.values())

    def test_killed_again_and_again(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        stored: list[int] = []
        for attempt in range(2):
            killed = in_a_process(case.job(4, "SIGKILL", resume=attempt > 0))
            assert killed.returncode == -signal.SIGKILL, killed.stderr
            stored.append(len(read_journal(case.journal)[1]))
        assert 0 < stored[0] < stored[1] < 9
        case.run(resume=True)
        assert same_bits(case.result(), case.uninterrupted())

    def test_killed_while_a_new_run_replaces_the_partial_file(self, tmp_path: Path) -> None:
        """The old journal must not vouch for the new, empty partial file."""
        case = Case(tmp_path)
        case.interrupt()
        patch = (
            "import os, signal\nfrom accelera.engine.journal import Journal\n"
            "Journal.begin = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
        )
        killed = in_a_process(case.job(9, "SIGKILL"), patch=patch)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert case.run(resume=True).steps_skipped == 0
        assert_close(case.result(), case.a, case.b)

    def test_control_c_leaves_journal_and_partial_file(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        case.interrupt(4, KeyboardInterrupt())
        assert case.left() == {case.partial.name, case.journal.name}
        report = case.run(resume=True)
        assert report.steps_skipped > 0
        assert same_bits(case.result(), case.uninterrupted())

    def test_a_real_interrupt_ends_threads_and_returns_memory(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        ended = in_a_process(case.job(4, "SIGINT"))
        assert ended.returncode == 130, ended.stderr
        assert json.loads(ended.stdout) == {"threads": [], "held": 0}
        assert case.left() == {case.partial.name, case.journal.name}
        case.run(resume=True)
        assert same_bits(case.result(), case.uninterrupted())

    @pytest.mark.parametrize("place", SUFFIXES)
    def test_a_changed_operand_is_refused_and_the_rest_kept(self, tmp_path: Path, place: str) -> None:
        """Restoring the operand makes the run resumable again."""
        case = Case(tmp_path, place)
        case.interrupt()
        path = case.out.with_name(f"b{SUFFIXES[place]}")
        kept = tmp_path / "kept"
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, kept)
        before = {each.name: snapshot(each) for each in (case.partial, case.journal)}
        touched = max(
            (each for each in [path, *path.rglob("*")] if each.is_file()), key=lambda f: f.stat().st_size
        )
        whole, times = touched.read_bytes(), touched.stat()
        with open(touched, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(bytes([whole[-1] ^ 1]))
        with pytest.raises(StoreChangedError, match="operand B changed"):
            case.run(resume=True)
        assert {each.name: snapshot(each) for each in (case.partial, case.journal)} == before
        with open(touched, "r+b") as file:
            file.write(whole)
        os.utime(touched, ns=(times.st_atime_ns, times.st_mtime_ns))
        case.run(resume=True)
        assert same_bits(case.result(), case.uninterrupted())

    def test_a_changed_array_is_refused_too(self, tmp_path: Path) -> None:
        """Memory has no modification time: its contents are compared."""
        case = Case(tmp_path)
        case.stores = (case.stores[0], open_store(case.b))
        case.interrupt()
        case.b[-1, -1] += 1
        with pytest.raises(StoreChangedError, match="operand B changed"):
            case.run(resume=True)
        case.b[-1, -1] -= 1
        case.b = np.asfortranarray(case.b)
        case.stores = (case.stores[0], open_store(case.b))
        case.run(resume=True)
        assert_close(case.result(), case.a, case.b)

    def test_a_view_of_another_part_is_another_operand(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        whole = case.stores[0]
        case.stores = (whole[:, ::-1], case.stores[1])
        case.interrupt()
        case.stores = (whole, case.stores[1])
        with pytest.raises(StoreChangedError, match="operand A changed"):
            case.run(resume=True)

    @pytest.mark.parametrize("extra_bytes", [0, 100_000])
    def test_another_budget_may_finish_the_run(self, tmp_path: Path, extra_bytes: int) -> None:
        """The interrupted plan no longer fits: what is stored stays, the rest is planned again."""
        a, b = values((600, 128), "f4"), values((128, 600), "f4", 1)
        stores = in_npy(tmp_path / "a", a), in_npy(tmp_path / "b", b)
        out = tmp_path / "c.npy"
        with pytest.raises(KeyboardInterrupt):
            matmul(
                *stores, out, device=cpu(), budget_bytes=smallest_budget(*stores, out) + 700_000,
                observers=[StopAfter(2, KeyboardInterrupt())],
            )  # fmt: skip
        budget_bytes = smallest_budget(*stores, out) + extra_bytes
        _, report = matmul(*stores, out, device=cpu(), budget_bytes=budget_bytes, resume=True)
        assert_close(np.load(out), a, b)
        assert report.plan.budget_bytes == budget_bytes
        assert report.plan.peak_bytes["ram"] <= budget_bytes
        assert report.bytes_written < a.shape[0] * b.shape[1] * 4

    def test_a_refused_budget_leaves_the_interrupted_run_alone(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        case.interrupt()
        before = snapshot(tmp_path)
        for resume in (True, False):
            with pytest.raises(MemoryError):
                case.run(resume=resume, budget_bytes=1000)
            assert snapshot(tmp_path) == before

    def test_another_operation_or_shape_is_refused(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        case.interrupt()
        before = snapshot(tmp_path)
        a, b = case.stores
        stores: Any
        for stores in ((a[:50], b), (a, b[:, :50]), (a[:, :7], b[:7]), (a[:0], b)):
            with pytest.raises(StoreError, match="another run"):
                matmul(stores[0], stores[1], case.out, device=cpu(), budget_bytes=ROOMY, resume=True)
            assert snapshot(tmp_path) == before
        case.run(resume=True)
        assert_close(case.result(), case.a, case.b)

    @pytest.mark.parametrize("keep", [0, 1, 3, 4])
    def test_a_torn_journal_costs_only_what_it_forgot(self, tmp_path: Path, keep: int) -> None:
        case = Case(tmp_path)
        case.interrupt(5)
        lines = case.journal.read_bytes().splitlines(keepends=True)
        case.journal.write_bytes(b"".join(lines[: 1 + keep]) + lines[1 + keep][:-3])
        report = case.run(resume=True)
        assert report.bytes_written == (9 - keep) * TILE * TILE * 4
        assert same_bits(case.result(), case.uninterrupted())

    @pytest.mark.parametrize("damage", [b"", b"\x00" * 300, b'{"journal": 2, "ru'])
    def test_a_journal_that_was_only_just_begun_is_no_hindrance(self, tmp_path: Path, damage: bytes) -> None:
        case = Case(tmp_path)
        case.interrupt()
        case.journal.write_bytes(damage)
        assert case.run(resume=True).steps_skipped == 0
        assert case.left() == {case.out.name}
        assert_close(case.result(), case.a, case.b)

    @pytest.mark.parametrize("damage", [b"{}\n", b"[1]\n", b'{"journal": 1}\n'])
    def test_a_damaged_journal_is_refused(self, tmp_path: Path, damage: bytes) -> None:
        case = Case(tmp_path)
        case.interrupt()
        case.journal.write_bytes(damage)
        with pytest.raises(StoreError, match="run without resume"):
            case.run(resume=True)
        case.run()
        assert_close(case.result(), case.a, case.b)

    def test_a_damaged_partial_file_is_refused_and_a_missing_one_made_anew(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        case.interrupt()
        os.truncate(case.partial, 100)
        with pytest.raises(StoreError, match="start without resume"):
            case.run(resume=True)
        case.partial.unlink()
        assert case.run(resume=True).steps_skipped == 0
        assert_close(case.result(), case.a, case.b)

    def test_where_there_is_nothing_to_resume_the_run_begins(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        assert case.run(resume=True).steps_skipped == 0
        assert case.left() == {case.out.name}
        assert_close(case.result(), case.a, case.b)
        with pytest.raises(StoreError, match="only results in files"):
            matmul(case.stores[0], case.stores[1], None, device=cpu(), budget_bytes=ROOMY, resume=True)

    def test_without_resume_a_run_starts_again(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        case.interrupt()
        report = case.run()
        assert report.steps_skipped == 0
        assert case.left() == {case.out.name}
        assert_close(case.result(), case.a, case.b)

    def test_a_batched_product_resumes(self, tmp_path: Path) -> None:
        a, b = values((5, 40, 30), "f8"), values((30, 20), "f8", 1)
        stores, out = (in_npy(tmp_path / "a", a), in_npy(tmp_path / "b", b)), tmp_path / "c.npy"
        tiles = grid(40, 20, 10)
        with pytest.raises(KeyboardInterrupt):
            matmul(
                *stores, out, device=cpu(), budget_bytes=ROOMY, tiles=tiles,
                observers=[StopAfter(3, KeyboardInterrupt())],
            )  # fmt: skip
        _, report = matmul(*stores, out, device=cpu(), budget_bytes=ROOMY, tiles=tiles, resume=True)
        assert_close(np.load(out), a, b)
        assert report.bytes_written < np.load(out).nbytes

    @pytest.mark.parametrize(("shape_a", "shape_b"), [((200, 30), (30,)), ((30,), (30, 200))])
    def test_a_product_with_a_vector_resumes(
        self, tmp_path: Path, shape_a: tuple[int, ...], shape_b: tuple[int, ...]
    ) -> None:
        a, b = values(shape_a, "f8"), values(shape_b, "f8", 1)
        stores, out = (in_npy(tmp_path / "a", a), in_npy(tmp_path / "b", b)), tmp_path / "c.npy"
        tiles = grid(200, 1, 50) if len(shape_b) == 1 else grid(1, 200, 50)
        with pytest.raises(KeyboardInterrupt):
            matmul(
                *stores, out, device=cpu(), budget_bytes=ROOMY, tiles=tiles,
                observers=[StopAfter(2, KeyboardInterrupt())],
            )  # fmt: skip
        matmul(*stores, out, device=cpu(), budget_bytes=ROOMY, tiles=tiles, resume=True)
        assert_close(np.load(out), a, b)


class TestFailing:
    def test_an_observers_error_is_the_runs_error(self, tmp_path: Path) -> None:
        case, error = Case(tmp_path), ZeroDivisionError("mine")
        watch = StopAfter(3, error)
        with pytest.raises(ZeroDivisionError) as caught:
            case.run(observers=[watch])
        assert caught.value is error
        assert watch.errors == [error]

    @pytest.mark.parametrize("place", SUFFIXES)
    def test_an_operand_truncated_on_the_way(self, tmp_path: Path, place: str) -> None:
        case = Case(tmp_path, place)
        path = case.out.with_name(f"b{SUFFIXES[place]}")

        class Truncate(RunObserver):
            def on_start(self, plan: Any) -> None:
                for each in [path] if path.is_file() else [e for e in path.rglob("c/*/*") if e.is_file()]:
                    os.truncate(each, each.stat().st_size // 2)

        with pytest.raises(StoreError, match="b"):
            case.run(observers=[Truncate()])
        assert not case.out.exists()

    def test_a_full_disk_is_refused_before_anything_is_computed(self, tmp_path: Path) -> None:
        """A limit on the size of files stands for the disk."""
        case = Case(tmp_path)
        patch = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
        failed = in_a_process(case.job(9, "SIGKILL"), patch=patch)
        assert failed.returncode == 1
        assert "accelera.errors.StoreError: [create_store]" in failed.stderr
        assert "36992 bytes" in failed.stderr or str(EDGE * EDGE * 4 + 4096) in failed.stderr
        assert case.left() == set()

    def test_a_disk_that_fills_up_on_the_way(self, tmp_path: Path) -> None:
        """Zarr writes new files as it goes."""
        case = Case(tmp_path, "zarr")
        patch = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
        failed = in_a_process(case.job(9, "SIGKILL"), patch=patch)
        assert failed.returncode == 1
        assert "accelera.errors.StoreError: [write]" in failed.stderr
        assert not case.out.exists()

    @pytest.mark.parametrize("out", ["/proc/c.npy", "/nowhere/c.npy", "{}/a.npy/c.npy"])
    def test_places_where_nothing_can_be_written(self, tmp_path: Path, out: str) -> None:
        case = Case(tmp_path)
        with pytest.raises(StoreError, match=r"\["):
            case.run(out.format(tmp_path))
        assert case.left() == set()

    def test_a_folder_that_may_only_be_read(self) -> None:
        """Root may write anywhere, so for that moment it is somebody else."""
        with tempfile.TemporaryDirectory() as name:
            case = Case(Path(name))
            Path(name).chmod(0o555)
            with nobody(), pytest.raises(StoreError, match=r"read-only|Permission denied"):
                case.run()
            Path(name).chmod(0o755)
            assert case.left() == set()

    def test_a_folder_in_the_results_place(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        case.out.mkdir()
        with pytest.raises(StoreError, match="folder"):
            case.run()
        assert case.left() == {case.out.name}

    def test_a_folder_that_takes_the_results_place_on_the_way(self, tmp_path: Path) -> None:
        """All is computed; the complete partial file stays and can be published later."""
        case = Case(tmp_path)

        class Occupy(RunObserver):
            def on_start(self, plan: Any) -> None:
                case.out.mkdir()

        with pytest.raises(StoreError, match="commit"):
            case.run(observers=[Occupy()])
        case.out.rmdir()
        report = case.run(resume=True)
        assert report.steps_run == 0
        assert_close(case.result(), case.a, case.b)

    @pytest.mark.parametrize("place", SUFFIXES)
    def test_the_result_may_not_be_an_operand(self, tmp_path: Path, place: str) -> None:
        case = Case(tmp_path, place)
        before = snapshot(tmp_path)
        for name in "ab":
            with pytest.raises(StoreError, match="also an operand"):
                case.run(case.out.with_name(f"{name}{SUFFIXES[place]}"))
        link = tmp_path / f"link{SUFFIXES[place]}"
        link.symlink_to(case.out.with_name(f"a{SUFFIXES[place]}"))
        with pytest.raises(StoreError, match="also an operand"):
            case.run(link)
        link.unlink()
        assert snapshot(tmp_path) == before

    def test_the_result_may_not_be_the_file_behind_a_view_or_a_memmap(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        path = tmp_path / "a.npy"
        for a in (
            open_store(path).T,
            open_store(np.load(path, mmap_mode="r")),
            open_store(np.load(path, mmap_mode="r").T),
        ):
            with pytest.raises(StoreError, match="also an operand"):
                matmul(a, case.stores[1], path, device=cpu(), budget_bytes=ROOMY)

    def test_the_result_may_not_share_memory_with_an_operand(self) -> None:
        a, b = values((20, 20), "f8"), values((20, 20), "f8", 1)
        before = a.copy()
        for left, right, out in ((a, b, a), (b, a, a.T), (a[:10], b, a[5:15]), (a[::-1], b, a)):
            with pytest.raises(StoreError, match="shares memory"):
                matmul(open_store(left), open_store(right), out, device=cpu(), budget_bytes=ROOMY)
        np.testing.assert_array_equal(a, before)

    def test_the_result_may_lie_between_an_operands_elements(self) -> None:
        """Side by side in one buffer, or every other row of it."""
        for left, right in ((np.s_[:, :20], np.s_[:, 20:]), (np.s_[::2, :20], np.s_[1::2, :20])):
            buffer = values((40, 40), "f8")
            a, b, out = buffer[left].copy(), values((20, 20), "f8", 1), buffer[right]
            matmul(open_store(buffer[left]), open_store(b), out, device=cpu(), budget_bytes=ROOMY)
            assert_close(out.copy(), a, b)
            np.testing.assert_array_equal(buffer[left], a)

    @pytest.mark.parametrize("dtype", ["f4", "f2"])
    def test_a_read_only_result_is_refused(self, dtype: str) -> None:
        a, b = values((20, 20), dtype), values((20, 20), dtype, 1)
        out = np.frombuffer(bytes(20 * 20 * a.itemsize), dtype).reshape(20, 20)
        for target in (out, np.broadcast_to(np.zeros(20, dtype), (20, 20))):
            with pytest.raises(StoreError, match="read-only"):
                matmul(open_store(a), open_store(b), target, device=cpu(), budget_bytes=ROOMY)
        assert (out == 0).all()

    @pytest.mark.parametrize("dtype", ["f4", "f2"])
    def test_a_result_of_the_wrong_shape_or_type_is_refused(self, dtype: str) -> None:
        a, b = open_store(values((6, 5), dtype)), open_store(values((5, 7), dtype, 1))
        for shape in ((7, 6), (6, 7, 1), (42,), (6, 8)):
            with pytest.raises(ShapeError, match="out"):
                matmul(a, b, np.zeros(shape, dtype), device=cpu(), budget_bytes=ROOMY)
        for other in ("f8", "i4", "c8"):
            with pytest.raises(DTypeError, match="out"):
                matmul(a, b, np.zeros((6, 7), other), device=cpu(), budget_bytes=ROOMY)

    def test_a_failing_reader_or_writer_ends_the_run(self, tmp_path: Path) -> None:
        case = Case(tmp_path)
        for broken, method in itertools.product(range(3), ("read", "write")):
            if (broken < 2) != (method == "read"):
                continue
            stores: list[Any] = [*case.stores, create_store(tmp_path / "d.npy", (EDGE, EDGE), "f4")]
            stores[broken] = _Breaking(stores[broken], method, calls=2)
            with pytest.raises(StoreError, match="bad sector"):
                matmul(*stores, device=cpu(), budget_bytes=ROOMY, tiles=TILES)
            (tmp_path / "d.npy.partial").unlink(missing_ok=True)
            assert case.left() == set()


class _Breaking(Store):
    """A store whose reads or writes fail after some calls."""

    def __init__(self, store: Store, method: str, calls: int) -> None:
        self._store, self._method, self._left = store, method, calls
        self.shape, self.dtype, self.tier, self.name = store.shape, store.dtype, store.tier, store.name

    @property
    def layout(self) -> Any:
        return self._store.layout

    def _call(self, method: str, *arguments: Any) -> int:
        self._left -= method == self._method
        if self._left < 0:
            raise StoreError("bad sector")
        moved: int = getattr(self._store, method)(*arguments)
        return moved

    def read(self, region: Any, out: Any) -> int:
        return self._call("read", region, out)

    def write(self, region: Any, data: Any) -> int:
        return self._call("write", region, data)

    def flush(self) -> None:
        self._store.flush()
