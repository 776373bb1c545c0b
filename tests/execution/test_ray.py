"""Batches on a real Ray cluster of several nodes, all of them on this machine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as LocalCluster

from accelera.errors import ClusterError, PoisonTaskError, UnknownOutcomeError
from accelera.execution import Observer, RayCluster, RayExecutor, StrategyManager, kernel
from accelera.execution.cluster.ray_agents import AgentResources, RayAgents
from tests.architecture.repository import run_python
from tests.execution.ray_nodes import PATIENCE_S, SMALL, two_nodes, wait_for_nodes
from tests.execution.stand_ins import blanked


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    """A head with one processor and a node with one and a GPU that is only a number."""
    with two_nodes(num_gpus=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def executor(local: LocalCluster) -> Iterator[RayExecutor]:
    with RayExecutor(local.address) as executor:
        yield executor


@pytest.fixture
def manager(executor: RayExecutor) -> StrategyManager:
    wait_for_nodes(executor, 2)
    return StrategyManager(cpu=executor)


def double(number: int) -> int:
    return 2 * number


def slow(number: int) -> int:
    time.sleep(0.01)
    return number


def noted(task: tuple[Path, int]) -> tuple[int, int]:
    """Add a line to the file of the task, and return the task and the process."""
    folder, number = task
    with (folder / str(number)).open("a") as file:
        file.write("x")
    time.sleep(0.01)
    return number, os.getpid()


def kills_at_9(task: tuple[Path, int]) -> int:
    number, _ = noted(task)
    if number == 9:
        os._exit(1)
    return number


@kernel
def where(number: int) -> tuple[int, str]:
    return slow(number), "processor"


@where.gpu_batch
def where_at_once(numbers: list[int], device: str) -> list[tuple[int, str]]:
    time.sleep(0.002 * len(numbers))
    return [(number, "at once") for number in numbers]


def sleeps(number: int) -> None:
    time.sleep(600)


def tells_and_sleeps(begun: Path) -> None:
    begun.touch()
    time.sleep(600)


def attempts(folder: Path) -> dict[int, int]:
    return {int(path.name): len(path.read_text()) for path in folder.iterdir()}


def test_ten_thousand_tiny_tasks_in_order(manager: StrategyManager) -> None:
    result = manager.execute(range(10_000), double)
    assert result.outputs == [2 * number for number in range(10_000)]
    assert sum(share.tasks for share in result.per_device.values()) == 10_000


def test_all_nodes_work_on_a_function_that_is_not_in_a_module(manager: StrategyManager) -> None:
    offset = 3
    result = manager.execute(range(100), lambda number: slow(number) + offset)
    assert result.outputs == [number + 3 for number in range(100)]
    assert len(result.per_device) == 2


def test_errors_are_the_users(manager: StrategyManager) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        manager.execute([4, 2, 0, 1], lambda number: 8 // number)
    notes = getattr(raised.value, "__notes__", ["task 2 on ray:"])
    assert any(note.startswith("task 2 on ray:") for note in notes)
    result = manager.execute([4, 2, 0, 1], lambda number: 8 // number, on_error="collect")
    assert (blanked(result.outputs), result.failed_indices) == ([2, 4, None, 8], (2,))


def test_a_killed_process_costs_nothing(manager: StrategyManager, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_once(done: int, count: int) -> None:
        if not killed:
            killed.append(victim)
            os.kill(victim, signal.SIGKILL)

    victim = manager.execute([(tmp_path, 0)], noted).outputs[0][1]
    (tmp_path / "0").unlink()
    result = manager.execute([(tmp_path, number) for number in range(100)], noted, progress=kill_once)
    assert killed
    assert [number for number, _ in result.outputs] == list(range(100))
    assert set(attempts(tmp_path)) == set(range(100))


def test_a_killed_node_costs_what_it_was_at(
    local: LocalCluster, executor: RayExecutor, tmp_path: Path
) -> None:
    node = local.add_node(**SMALL)
    wait_for_nodes(executor, 3)
    killed: list[str] = []

    class Kills(Observer):
        def on_chunk(self, device: str, task_count: int, seconds: float) -> None:
            if device.endswith(node.node_id[:6]) and not killed:
                killed.append(device)
                local.remove_node(node, allow_graceful=False)

    manager = StrategyManager(cpu=executor, observers=[Kills()])
    result = manager.execute([(tmp_path, number) for number in range(200)], noted)
    assert killed
    assert [number for number, _ in result.outputs] == list(range(200))
    assert sum(share.tasks for share in result.per_device.values()) == 200
    twice = [number for number, count in attempts(tmp_path).items() if count > 1]
    assert len(twice) < 100


def test_a_task_that_kills_its_process_is_tried_twice(manager: StrategyManager, tmp_path: Path) -> None:
    result = manager.execute([(tmp_path, number) for number in range(40)], kills_at_9, on_error="collect")
    assert result.failed_indices == (9,)
    assert isinstance(result.failures[0].error, PoisonTaskError)
    assert [output for output in blanked(result.outputs) if output is not None] == [
        n for n in range(40) if n != 9
    ]
    assert attempts(tmp_path)[9] == 2


def test_what_must_not_run_twice_does_not(manager: StrategyManager, tmp_path: Path) -> None:
    tasks = [(tmp_path, number) for number in range(40)]
    result = manager.execute(tasks, kills_at_9, rerun="never", on_error="collect")
    assert 9 in result.failed_indices
    assert all(isinstance(failure.error, UnknownOutcomeError) for failure in result.failures)
    assert max(attempts(tmp_path).values()) == 1
    assert set(range(40)) - set(result.failed_indices) <= set(attempts(tmp_path))


def test_what_takes_too_long_is_killed(manager: StrategyManager) -> None:
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    assert manager.execute(range(4), sleeps, cancel=cancel).stopped_by == "cancelled"
    assert manager.execute(range(4), sleeps, timeout=0.2, on_error="collect").stopped_by == "timeout"
    assert manager.execute(range(4), double).outputs == [0, 2, 4, 6]


def test_calls_have_futures(executor: RayExecutor) -> None:
    with executor.as_futures() as pool:
        futures = [pool.submit(divmod, number, 3) for number in range(20)]
        assert [future.result(120) for future in futures] == [divmod(number, 3) for number in range(20)]
        assert list(pool.map(double, range(20))) == [2 * number for number in range(20)]


def test_closing_amid_calls_leaves_no_agent_behind(local: LocalCluster, tmp_path: Path) -> None:
    cluster = RayCluster(local.address, num_cpus=1)
    executor, begun = RayExecutor(cluster), tmp_path / "begun"
    wait_for_nodes(executor, 2)
    nodes = cluster.nodes()
    pool = executor.as_futures()
    future = pool.submit(tells_and_sleeps, begun)
    while not begun.exists():
        time.sleep(0.01)
    executor.close()
    with pytest.raises(ClusterError, match="executor was closed"):
        future.result(120)
    pool.shutdown()
    assert [cluster._agents.of(node) for node in nodes] == [None, None]


def test_only_nodes_with_what_is_asked_for_take_part(local: LocalCluster) -> None:
    with RayExecutor(local.address, num_gpus=0.25) as executor:
        result = StrategyManager(cpu=executor).execute(range(6), lambda _: os.environ["CUDA_VISIBLE_DEVICES"])
        assert result.outputs == ["0"] * 6
        assert len(executor.cluster.nodes()) == 1
    with (
        RayExecutor(num_gpus=2) as executor,
        pytest.raises(ClusterError, match=r"nodes has 1 CPU, 2 GPU; they .* ask for less"),
    ):
        StrategyManager(cpu=executor).execute(range(6), double)


def test_the_gpu_of_a_node_takes_from_the_same_tasks(local: LocalCluster) -> None:
    with RayExecutor(local.address, num_gpus=0.5, device="sim:64MiB") as executor:
        result = StrategyManager(cpu=executor).execute(range(400), where)
    assert [number for number, _ in result.outputs] == list(range(400))
    counts = {name.partition(" ")[2]: share.tasks for name, share in result.per_device.items()}
    assert counts.keys() == {"", "sim"}
    assert counts["sim"] == sum(how == "at once" for _, how in result.outputs)
    assert sum(counts.values()) == 400
    assert not result.fallback_occurred


def test_a_gpu_that_no_node_has_is_told_and_one_that_is_not_reserved_refused(local: LocalCluster) -> None:
    with pytest.raises(ValueError, match=r"Ray hides GPUs that are not reserved; give num_gpus=1"):
        RayExecutor(local.address, device="cuda:0")
    nobody = pytest.raises(ClusterError, match=r"(?s)could not start an agent.*cuda:99")
    with RayExecutor(local.address, num_gpus=0.5, device="cuda:99") as executor, nobody:
        StrategyManager(cpu=executor).execute(range(6), double)


def test_after_running_out_of_memory_a_node_has_fewer_threads_and_more_memory(local: LocalCluster) -> None:
    agents = RayAgents(ray, AgentResources())
    agents.ready()
    node = next(each for each in _nodes(agents) if each.cpus == 1)
    first: Any = agents.of(node)
    agents.replacement(first, out_of_memory=True)
    second: Any = agents.of(node)
    assert agents.replacement(first, out_of_memory=True) is second.actor
    agents.replacement(second, out_of_memory=True)
    third: Any = agents.of(node)
    assert (first.memory, third.memory) == (0, 2 * second.memory)
    assert second.memory > 0
    agents.close()


def _nodes(agents: RayAgents) -> Any:
    until_s = time.monotonic() + PATIENCE_S
    while not (nodes := agents.ready()) and time.monotonic() < until_s:
        time.sleep(0.05)
    return nodes


def test_another_cluster_than_that_of_the_program_is_refused(local: LocalCluster) -> None:
    with pytest.raises(ClusterError, match="already, and Ray allows one"):
        RayExecutor("127.0.0.1:1")


def test_nothing_is_started_where_there_is_no_cluster(tmp_path: Path) -> None:
    code = "from accelera.execution import RayExecutor; RayExecutor('127.0.0.1:1')"
    ran = run_python("-c", code, cwd=tmp_path)
    assert "ClusterError: [ray] no running cluster answers at 127.0.0.1:1; nothing is started" in ran.stderr


@pytest.mark.parametrize("named", ["127.0.0.1:1", "local"])
def test_a_cluster_of_the_environment_that_is_gone_is_told_soon(tmp_path: Path, named: str) -> None:
    code = (
        f"import os; os.environ['RAY_ADDRESS'] = {named!r}\n"
        "import ray\nfrom accelera.execution import RayExecutor\n"
        "try: RayExecutor()\n"
        "finally: print(ray.is_initialized())"
    )
    ran = run_python("-c", code, cwd=tmp_path)
    assert f"ClusterError: [ray] no running cluster answers at {named}; nothing is started" in ran.stderr
    assert ran.stdout == "False\n"


def test_a_program_that_let_go_of_its_cluster_is_not_given_another(tmp_path: Path) -> None:
    code = (
        "import ray\nfrom accelera.execution import RayExecutor\n"
        "ray.init('local', num_cpus=1, include_dashboard=False, log_to_driver=False)\n"
        "with RayExecutor() as executor:\n"
        "    assert executor.execute_batch([1], abs) == [1]\n"
        "    ray.shutdown()\n"
        "    try: executor.execute_batch([1], str)\n"
        "    finally: print(ray.is_initialized())"
    )
    ran = run_python("-c", code, cwd=tmp_path)
    assert "ClusterError: [ray] the connection to the cluster was closed" in ran.stderr
    assert ran.stdout == "False\n"


def test_closing_the_only_connection_amid_calls_does_not_bring_it_back(tmp_path: Path) -> None:
    code = (
        "import time, ray\nfrom pathlib import Path\nfrom ray.cluster_utils import Cluster\n"
        "from accelera.execution import RayExecutor\n"
        "head = {'num_cpus': 1, 'object_store_memory': 80 << 20, 'include_dashboard': False}\n"
        "cluster = Cluster(initialize_head=True, head_node_args=head)\n"
        "here = Path('begun').absolute()\n"
        "def tells_and_sleeps(): here.touch(); time.sleep(600)\n"
        "with RayExecutor(cluster.address) as executor:\n"
        "    future = executor.as_futures().submit(tells_and_sleeps)\n"
        "    while not here.exists(): time.sleep(0.01)\n"
        "print(future.exception(120), ray.is_initialized())\n"
        "cluster.shutdown()"
    )
    ran = run_python("-c", code, cwd=tmp_path, environment={"RAY_AUTH_MODE": "disabled"})
    assert ran.stdout.startswith("[ray] the executor was closed: its agents are gone"), ran.stderr
    assert ran.stdout.endswith(" False\n")
