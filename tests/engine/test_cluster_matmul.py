"""Products over the nodes of a real Ray cluster, all of them on this machine, from files that all see."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import scipy.sparse
from ray.cluster_utils import Cluster as LocalCluster
from typer.testing import CliRunner

from accelera.cli import app
from accelera.engine import MatrixEngine, Progress, RunObserver, lazy
from accelera.engine._internal import journal_path, read_journal
from accelera.engine.blocks import aligned, blocks_of
from accelera.engine.distributed import NodeTask
from accelera.engine.journal import Journal, mark_of
from accelera.errors import BudgetExceededError, StoreError, UnknownNameError
from accelera.execution import RayExecutor
from accelera.plan import Plan
from accelera.plan._internal import PlanStep
from accelera.simulator import generate_synthetic_trace, sweep
from accelera.stores import open_store
from accelera.stores._internal import address_of, create_store
from accelera.trace import write_trace
from tests.execution.ray_nodes import SMALL, two_nodes, wait_for_nodes

BUDGET = "64MiB"


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    """A head and a node, with one processor each."""
    with two_nodes() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def executor(local: LocalCluster) -> Iterator[RayExecutor]:
    with RayExecutor(local.address) as executor:
        wait_for_nodes(executor, 2)
        yield executor


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("shared"), np.random.default_rng(5)
    np.save(folder / "a.npy", rng.integers(-9, 10, (700, 400)).astype("int32"))
    np.save(folder / "b.npy", rng.integers(-9, 10, (400, 600)).astype("int32"))
    return folder


@pytest.fixture
def engine() -> MatrixEngine:
    return MatrixEngine(device="cpu", enable_progress=False)


def exact(folder: Path) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = np.load(folder / "a.npy") @ np.load(folder / "b.npy")
    return found


class At(RunObserver):
    """Does something when so many blocks are there."""

    def __init__(self, blocks: int, action: Any) -> None:
        self._blocks, self._action = blocks, action

    def on_progress(self, progress: Progress) -> None:
        if progress.done_tiles == self._blocks:
            self._action()


class Nobody:
    """A cluster of which nothing is wanted but how many nodes it has."""

    def nodes(self) -> list[Any]:
        return []

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


class TestPlanning:
    """Needs no cluster."""

    def plan(self, engine: MatrixEngine, files: Path, **options: Any) -> Plan:
        return engine.plan_cluster(
            files / "a.npy", files / "b.npy", out=files / "c.npy", node_budget=BUDGET, **options
        )

    def test_a_network_that_starves_its_nodes_is_said_to(self, engine: MatrixEngine, files: Path) -> None:
        text = self.plan(engine, files, network_bytes_per_s=1e5).explain()
        assert "no speed-up is promised" in text
        assert "flop for each byte" in text
        assert "need b >=" in text

    def test_a_network_that_keeps_up_gives_as_many_times_as_nodes(
        self, engine: MatrixEngine, files: Path
    ) -> None:
        text = self.plan(engine, files, nodes=4, network_bytes_per_s=1e12).explain()
        assert "up to 4 x one node" in text

    def test_the_least_edge_is_four_times_flops_over_bytes_in_f32(self) -> None:
        from accelera.engine.distributed import Network

        network = Network(2e12, 10**10, 4, node_flops_per_s=1e11, bytes_per_s=1.25e9, nodes=3)
        assert (network.needed_edge, network.edge) == (320.0, 800.0)
        assert network.speed_up == 3.0
        starved = Network(2e12, 10**10, 4, node_flops_per_s=6e13, bytes_per_s=1.25e9, nodes=3)
        assert (starved.needed_edge, starved.speed_up) == (192_000.0, None)

    def test_blocks_fit_the_budget_of_a_node(self, engine: MatrixEngine, files: Path) -> None:
        plan = self.plan(engine, files)
        assert plan.placement is not None
        assert plan.placement.devices[0].peak_bytes <= 64 << 20
        with pytest.raises(BudgetExceededError):
            engine.plan_cluster(files / "a.npy", files / "b.npy", out=files / "c.npy", node_budget="1MiB")

    def test_a_budget_of_nodes_without_nodes_is_refused(self, engine: MatrixEngine, files: Path) -> None:
        with pytest.raises(
            ValueError, match=r"node_budget='1KiB' without cluster=: .* budget= for this machine"
        ):
            engine.matmul(files / "a.npy", files / "b.npy", node_budget="1KiB")
        for a in (lazy(files / "a.npy"), scipy.sparse.eye_array(400, format="csr")):
            with pytest.raises(ValueError, match=r"node_budget='1KiB' without cluster="):
                engine.matmul(a, files / "b.npy", node_budget="1KiB")

    @pytest.mark.parametrize("wrong", [{"nodes": 0}, {"network_bytes_per_s": 0.0}])
    def test_no_nodes_and_no_network_are_no_cluster(
        self, engine: MatrixEngine, files: Path, wrong: dict[str, Any]
    ) -> None:
        with pytest.raises(ValueError, match="give at least one node"):
            self.plan(engine, files, **wrong)

    def test_more_nodes_have_more_blocks(self, engine: MatrixEngine, files: Path) -> None:
        few, many = (self.plan(engine, files, nodes=nodes).forecast.steps for nodes in (2, 20))
        assert few >= 16
        assert many >= 80 > few


class TestRefusing:
    def test_operands_in_memory_are_not_sent(
        self, engine: MatrixEngine, files: Path, executor: RayExecutor
    ) -> None:
        b = np.load(files / "b.npy")
        with pytest.raises(StoreError, match=r"B .*lies in no file.*nothing is sent"):
            engine.matmul(files / "a.npy", b, out=files / "no.npy", cluster=executor)

    def test_a_result_in_memory_is_no_place_for_nodes(
        self, engine: MatrixEngine, files: Path, executor: RayExecutor
    ) -> None:
        with pytest.raises(StoreError, match="give out= a path"):
            engine.matmul(files / "a.npy", files / "b.npy", cluster=executor)

    @pytest.mark.parametrize("name", ["A", "B"])
    @pytest.mark.parametrize("kind", ["an expression", "a sparse matrix"])
    def test_expressions_and_sparse_matrices_are_no_files(
        self, engine: MatrixEngine, files: Path, name: str, kind: str
    ) -> None:
        operand = (
            lazy(files / "a.npy") if kind == "an expression" else scipy.sparse.eye_array(400, format="csr")
        )
        pair = (operand, files / "b.npy") if name == "A" else (files / "a.npy", operand)
        with pytest.raises(ValueError, match=rf"cluster='ray' takes two dense files, and {name} is {kind}"):
            engine.matmul(*pair, out=files / "no.npy", cluster="ray")

    def test_only_ray_is_known(self, engine: MatrixEngine, files: Path) -> None:
        with pytest.raises(UnknownNameError, match="known: ray"):
            engine.matmul(files / "a.npy", files / "b.npy", out=files / "no.npy", cluster="slurm")
        with pytest.raises(TypeError, match=r"cluster=5: give 'ray', a RayCluster or a RayExecutor"):
            engine.matmul(files / "a.npy", files / "b.npy", out=files / "no.npy", cluster=5)


class TestBlocks:
    """Of one node, here; needs no cluster."""

    def work(self, engine: MatrixEngine, files: Path, out: Path) -> tuple[NodeTask, list[PlanStep]]:
        """Return what makes blocks of a result that a run has begun, and the blocks."""
        plan = engine.plan_cluster(files / "a.npy", files / "b.npy", out=out, node_budget=BUDGET)
        a, b = (address_of(open_store(files / name)) for name in ("a.npy", "b.npy"))
        assert a is not None
        assert b is not None
        how = (str(out), (700, 600), np.dtype("int32"), (2, 2), 64 << 20, 1)
        return NodeTask(a, b, *how, mark_of(out)), list(plan.steps())

    def test_a_block_of_a_run_that_was_given_up_is_not_written_into_the_next(
        self, engine: MatrixEngine, files: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "c.npy"
        result = create_store(out, (700, 600), "int32")
        header = {"operation": "matmul", "fingerprints": {}, "spec": {}}
        Journal.begin(journal_path(out), header).close()
        work, steps = self.work(engine, files, out)
        assert work(steps[0]).bytes_written == 4 * math.prod(steps[0].write.shape)
        Journal.begin(journal_path(out), header).close()
        with pytest.raises(StoreError, match="is of another run"):
            work(steps[1])
        result.abort()

    def test_blocks_that_share_a_chunk_are_not_made_by_several_processes(self) -> None:
        blocks = blocks_of({"blocks": [[[0, 6], [0, 8]], [[6, 9], [0, 8]]]})
        assert aligned(blocks, None) == aligned(blocks, (3, 8)) == aligned(blocks, (6, 8)) == blocks
        assert aligned(blocks, (4, 8)) == ()


class TestRunning:
    @pytest.mark.parametrize("sizes", [(0, 5, 4), (3, 0, 4), (3, 5, 0)])
    def test_where_there_is_nothing_to_multiply_no_node_is_asked(
        self, engine: MatrixEngine, tmp_path: Path, sizes: tuple[int, int, int]
    ) -> None:
        m, k, n = sizes
        np.save(tmp_path / "a.npy", np.ones((m, k), "f4"))
        np.save(tmp_path / "b.npy", np.ones((k, n), "f4"))
        names = [tmp_path / "a.npy", tmp_path / "b.npy"]
        how: Any = {"out": tmp_path / "c.npy", "node_budget": BUDGET}
        assert engine.plan_cluster(*names, **how).explain()
        engine.matmul(names[0], names[1], cluster=RayExecutor(Nobody()), **how)
        assert np.load(tmp_path / "c.npy").tolist() == np.zeros((m, n)).tolist()

    def test_a_result_whose_name_is_a_link_goes_where_it_leads(
        self, engine: MatrixEngine, files: Path, tmp_path: Path, executor: RayExecutor
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "old.npy").write_bytes(b"old")
        (tmp_path / "c.npy").symlink_to(tmp_path / "elsewhere" / "old.npy")
        how: dict[str, Any] = {"out": tmp_path / "c.npy", "cluster": executor, "node_budget": BUDGET}
        engine.matmul(files / "a.npy", files / "b.npy", **how)
        assert np.array_equal(np.load(tmp_path / "c.npy"), exact(files))
        assert (tmp_path / "c.npy").is_symlink()
        assert np.array_equal(np.load(tmp_path / "elsewhere" / "old.npy"), exact(files))

    def test_a_node_uses_all_its_cores_though_its_process_was_told_to_use_one(self) -> None:
        program = (
            "from accelera.engine.distributed import use_all_cores; use_all_cores()\n"
            "from accelera.devices import get_device\n"
            "from accelera.devices._internal import usable_processors\n"
            "assert get_device('cpu').threads == usable_processors()"
        )
        told = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", program], env=told, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    @pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".zarr"])
    def test_nodes_make_the_blocks(
        self, engine: MatrixEngine, files: Path, tmp_path: Path, executor: RayExecutor, suffix: str
    ) -> None:
        out = tmp_path / f"c{suffix}"
        engine.matmul(files / "a.npy", files / "b.npy", out=out, cluster=executor, node_budget=BUDGET)
        assert np.array_equal(open_store(out).to_numpy(), exact(files))
        report = engine.last_report
        assert report is not None
        assert report.steps_run == sum(did.blocks for did in report.per_device.values())
        assert report.moved_bytes == report.plan.moved_bytes
        assert report.plan.placement is not None
        most = max(did.peak_pool_bytes for did in report.per_device.values())
        assert most <= report.plan.placement.devices[0].peak_bytes
        assert [each.name for each in tmp_path.iterdir()] == [out.name]

    def test_views_and_vectors_go_along(
        self, engine: MatrixEngine, tmp_path: Path, executor: RayExecutor
    ) -> None:
        matrix = np.arange(60 * 50, dtype="int32").reshape(60, 50)
        stored = create_store(tmp_path / "m.bin", matrix.shape, "int32")
        stored.write((slice(0, 60), slice(0, 50)), matrix)
        stored.commit()
        np.save(tmp_path / "v.npy", np.arange(60, dtype="int32"))
        raw = open_store(tmp_path / "m.bin", shape=(60, 50), dtype="int32")
        engine.matmul(raw.T, tmp_path / "v.npy", out=tmp_path / "c.npy", cluster=executor, node_budget=BUDGET)
        assert np.array_equal(np.load(tmp_path / "c.npy"), matrix.T @ np.arange(60))

    def test_the_word_connects_to_the_cluster_that_is_there(
        self, engine: MatrixEngine, files: Path, tmp_path: Path, local: LocalCluster
    ) -> None:
        out = tmp_path / "c.npy"
        engine.matmul(files / "a.npy", files / "b.npy", out=out, cluster="ray", node_budget=BUDGET)
        assert np.array_equal(np.load(tmp_path / "c.npy"), exact(files))
        assert ray.is_initialized()

    def test_an_interrupted_run_is_resumed(
        self, engine: MatrixEngine, files: Path, tmp_path: Path, executor: RayExecutor
    ) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        out = tmp_path / "c.npy"
        how: dict[str, Any] = {"out": out, "cluster": executor, "node_budget": BUDGET}
        with pytest.raises(KeyboardInterrupt):
            engine.matmul(files / "a.npy", files / "b.npy", observers=[At(5, interrupt)], **how)
        _, done = read_journal(journal_path(out))
        assert len(done) == 5
        assert not out.exists()
        engine.matmul(files / "a.npy", files / "b.npy", resume=True, **how)
        assert np.array_equal(np.load(out), exact(files))
        assert engine.last_report.steps_skipped == 5

    def test_a_run_after_an_interrupted_one_is_not_written_into_by_that(
        self, engine: MatrixEngine, files: Path, tmp_path: Path, executor: RayExecutor
    ) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        np.save(tmp_path / "a.npy", -np.load(files / "a.npy"))
        how: dict[str, Any] = {"out": tmp_path / "c.npy", "cluster": executor, "node_budget": BUDGET}
        with pytest.raises(KeyboardInterrupt):
            engine.matmul(files / "a.npy", files / "b.npy", observers=[At(1, interrupt)], **how)
        engine.matmul(tmp_path / "a.npy", files / "b.npy", **how)
        assert np.array_equal(np.load(tmp_path / "c.npy"), -exact(files))

    def test_a_sweep_over_nodes_is_that_of_this_machine(self, executor: RayExecutor) -> None:
        trace = generate_synthetic_trace("CNN", 2, 2, 16, 0.2, mode="inference")
        here = sweep(trace, ["lru", "belady"], 6, progress=False)
        with executor.as_futures() as pool:
            there = sweep(trace, ["lru", "belady"], 6, executor=pool, progress=False)
        assert there.to_dict(bound=False) == here.to_dict(bound=False)

    def test_the_command_sweeps_over_nodes(
        self, local: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        trace = generate_synthetic_trace("CNN", 2, 2, 16, 0.2, mode="inference")
        write_trace(trace, "t.parquet")
        words = ["sweep", "t.parquet", "-p", "lru", "-b", "4", "--no-bound", "--json"]
        ran = CliRunner().invoke(app, [*words, "--cluster", "ray"])
        assert ran.exit_code == 0, ran.output
        assert json.loads(ran.stdout) == sweep(trace, "lru", 4, progress=False).to_dict(bound=False)

    def test_a_node_killed_in_the_middle_changes_nothing(
        self, engine: MatrixEngine, tmp_path: Path, local: LocalCluster, executor: RayExecutor
    ) -> None:
        rng = np.random.default_rng(7)
        a, b = (rng.integers(-9, 10, shape).astype("int32") for shape in ((1800, 1500), (1500, 1600)))
        np.save(tmp_path / "a.npy", a)
        np.save(tmp_path / "b.npy", b)
        node = local.add_node(**SMALL)
        wait_for_nodes(executor, 3)
        kill = At(2, lambda: local.remove_node(node, allow_graceful=False))
        how: dict[str, Any] = {"cluster": executor, "node_budget": BUDGET, "observers": [kill]}
        engine.matmul(tmp_path / "a.npy", tmp_path / "b.npy", out=tmp_path / "c.npy", **how)
        assert np.array_equal(np.load(tmp_path / "c.npy"), a.astype("f8") @ b.astype("f8"))
        report = engine.last_report
        assert report is not None
        assert report.steps_run == report.plan.forecast.steps
        assert sum(did.blocks for did in report.per_device.values()) == report.steps_run
