"""Leases, what nodes make of them and what is done about lost ones, without Ray."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, wait
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accelera.errors import (
    BackendMissingError,
    ClusterError,
    PoisonTaskError,
    TransferError,
    UnknownNameError,
)
from accelera.execution import ExecutionStrategy, RayExecutor, Retry, StrategyManager, ThreadsExecutor
from accelera.execution._internal import Cluster
from accelera.execution.cluster import node as agents
from accelera.execution.cluster import ray_connection, scheduler
from accelera.execution.cluster.contract import Cause, Lease, LeaseLost, Node, last_line, pack, unpack
from accelera.execution.cluster.lease import InFlightLog, read_in_flight
from accelera.execution.cluster.node import Agent
from accelera.execution.cluster.ray_agents import AgentResources
from accelera.execution.cluster.ray_connection import check_versions, connect
from accelera.execution.cluster.ray_executor import CallQueue, LaneExecutor, SubmittedCall
from accelera.execution.cluster.scheduler import LEAST_S, SHORTEST_S, LeaseSize, PoisonQuarantine
from accelera.execution.tasks.balance import IndexSet
from accelera.execution.tasks.queue import DeviceKind
from accelera.testing import FakeGpu, LocalCluster
from accelera.testing._internal import transient
from tests.execution.stand_ins import Holding, Unreadable, blanked
from tests.threads import run_in_threads

pytestmark = pytest.mark.usefixtures("own_temporary_files")


def double(number: int) -> int:
    return 2 * number


def slow(number: int) -> int:
    time.sleep(0.005)
    return number


def lease_of(tasks: Sequence[Any], function: Callable[[Any], Any], **options: Any) -> Lease:
    given = {"limit_s": 600.0, **options}
    return Lease(uuid.uuid4().hex, 100, len(tasks), pack(tasks), pack(function), **given)


def done_by(agent: Agent, lease: Lease) -> dict[int, Any]:
    found = {}
    for part in agent.run(lease):
        for start, _, packed in part.outcomes:
            found.update(enumerate(unpack(packed), start))
    return found


@pytest.mark.parametrize("count", [0, 1, 7, 5000])
def test_outputs_are_in_order(count: int) -> None:
    cluster = LocalCluster()
    assert isinstance(cluster, Cluster)
    result = StrategyManager(cpu=RayExecutor(cluster)).execute(range(count), double)
    assert result.outputs == [2 * number for number in range(count)]
    assert len(cluster.kept) <= 1


def test_every_node_takes_part_and_a_function_is_shipped_once() -> None:
    cluster = LocalCluster(3)
    executor = RayExecutor(cluster)
    for _ in range(2):
        result = StrategyManager(cpu=executor).execute(range(200), slow)
        assert result.outputs == list(range(200))
        assert set(result.per_device) == {"node 0", "node 1", "node 2"}
    assert len(cluster.kept) == 1
    assert executor.execute_batch([4, 5], double) == [8, 10]


def test_streams_and_a_gpu_beside_it() -> None:
    executor = RayExecutor(LocalCluster())
    manager = StrategyManager(cpu=executor)
    assert [output for _, output in manager.stream(iter(range(300)), slow)] == list(range(300))
    gpu = FakeGpu(faults=lambda call: transient() if call % 3 == 2 else None)
    both = StrategyManager(executor, gpu, ExecutionStrategy.Hybrid())
    result = both.execute(range(300), slow)
    assert result.outputs == list(range(300))
    assert sum(share.tasks for share in result.per_device.values()) == 300


def test_a_lost_lease_is_done_by_others() -> None:
    cluster = LocalCluster(
        dies=lambda number, lease: LeaseLost(Cause.NODE, "unplugged") if number in (1, 3) else None
    )
    result = StrategyManager(cpu=RayExecutor(cluster)).execute(range(100), slow)
    assert result.outputs == list(range(100))
    assert result.failures == ()


def test_what_must_not_run_again_has_an_unknown_outcome() -> None:
    cluster = LocalCluster(
        dies=lambda number, lease: LeaseLost(Cause.NODE, "unplugged") if number == 1 else None
    )
    manager = StrategyManager(cpu=RayExecutor(cluster))
    result = manager.execute(range(100), slow, rerun="never", on_error="collect")
    lost = cluster.leases[0]
    assert result.failed_indices == tuple(range(lost.start, lost.start + lost.count))
    assert "unplugged" in str(result.failures[0].error)
    begun = [index for lease in cluster.leases for index in range(lease.start, lease.start + lease.count)]
    assert not set(begun[lost.count :]) & set(result.failed_indices)


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("cause", [Cause.PROCESS, Cause.MEMORY])
def test_a_task_that_kills_is_found_among_the_others(cause: Cause, noted: bool) -> None:
    def dies(number: int, lease: Lease) -> LeaseLost | None:
        if not lease.start <= 40 < lease.start + lease.count:
            return None
        under_way = ((40, 41),) if lease.alone else ((lease.start, lease.start + lease.count),)
        return LeaseLost(cause, "signal 9", under_way if noted else ())

    result = StrategyManager(cpu=RayExecutor(LocalCluster(dies=dies))).execute(
        range(64), slow, on_error="collect"
    )
    assert result.failed_indices == (40,)
    assert isinstance(result.failures[0].error, PoisonTaskError)
    assert "task 40" in str(result.failures[0].error)
    assert ("out of memory" in str(result.failures[0].error)) == (cause is Cause.MEMORY)
    assert [output for output in blanked(result.outputs) if output is not None] == [
        n for n in range(64) if n != 40
    ]


def test_a_lease_is_not_too_large_though_its_first_task_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "LEASE_BYTES", 2000)
    cluster = LocalCluster(1)
    tasks = [b"", *(bytes(500 + number) for number in range(20)), bytes(3000)]
    result = StrategyManager(cpu=RayExecutor(cluster)).execute(tasks, len)
    assert result.outputs == list(map(len, tasks))
    assert all(len(lease.tasks) <= 2000 or lease.count == 1 for lease in cluster.leases)


def test_a_node_that_cannot_load_the_function_says_so() -> None:
    with pytest.raises(ClusterError, match=r"node . cannot carry out a lease: No module named 'nowhere'"):
        StrategyManager(cpu=RayExecutor(LocalCluster())).execute(range(4), _NotThere())


class _NotThere:
    def __call__(self, task: int) -> int:
        return task

    def __reduce__(self) -> Any:
        return __import__, ("nowhere",) if not hasattr(self, "loaded") else ()


def test_what_cannot_be_sent_is_told_task_by_task() -> None:
    manager = StrategyManager(cpu=RayExecutor(LocalCluster()))
    tasks = [0, threading.Lock(), 2]
    result = manager.execute(tasks, type, on_error="collect")
    assert blanked(result.outputs) == [int, None, int]
    assert isinstance(result.failures[0].error, TransferError)
    with pytest.raises(TransferError, match="cannot be sent back"):
        manager.execute([1], lambda task: threading.Lock())
    lock = threading.Lock()
    with pytest.raises(TransferError, match="cannot be sent to other machines"):
        manager.execute([1], lambda task: lock)


@pytest.mark.parametrize("rerun", ["on_failure", "never"])
def test_what_cannot_be_unpickled_fails_by_itself(rerun: Any) -> None:
    manager = StrategyManager(cpu=RayExecutor(LocalCluster()))
    how: Any = {"on_error": "collect", "rerun": rerun}
    outputs = manager.execute(range(40), lambda task: Unreadable() if task in (3, 17) else task, **how)
    assert blanked(outputs.outputs) == [None if task in (3, 17) else task for task in range(40)]
    assert "output of task 3 cannot be unpickled here (ValueError" in str(outputs.errors[0])
    tasks = [Unreadable() if task in (3, 17) else task for task in range(40)]
    sent = manager.execute(tasks, lambda task: task, **how)
    assert blanked(sent.outputs) == [None if task in (3, 17) else task for task in range(40)]
    assert all(isinstance(error, TransferError) for error in [*outputs.errors, *sent.errors])


def test_attempts_are_counted_though_nothing_else_is_done_and_their_errors_cannot_be_sent() -> None:
    def fails_twice(number: int, seen: list[int] = []) -> int:  # noqa: B006
        seen.append(number)
        if len(seen) < 3:
            raise Holding
        time.sleep(0.3)
        return number

    manager = StrategyManager(cpu=RayExecutor(LocalCluster(1)))
    retry = Retry(times=2, on=(Holding,))
    result = manager.execute([7], _Shared(fails_twice), retry=retry)
    assert (result.outputs, result.retries) == ([7], 2)


def test_a_batch_that_waits_for_nodes_can_be_cancelled() -> None:
    cluster, cancel = LocalCluster(), threading.Event()
    cluster.close()
    threading.Timer(0.2, cancel.set).start()
    result = StrategyManager(cpu=RayExecutor(cluster)).execute(range(4), double, cancel=cancel)
    assert result.stopped_by == "cancelled"


def test_errors_and_retries_are_the_users() -> None:
    seen: list[int] = []

    def fails_once(number: int) -> int:
        if number == 3 and not seen:
            seen.append(number)
            raise OSError("not yet")
        if number == 5:
            raise KeyError(number)
        return number

    manager = StrategyManager(cpu=RayExecutor(LocalCluster(1)))
    function = _Shared(fails_once)
    result = manager.execute(range(8), function, on_error="collect", retry=Retry(times=1))
    assert result.failed_indices == (5,)
    assert isinstance(result.failures[0].error, KeyError)
    assert result.retries == 1
    with pytest.raises(KeyError, match="5"):
        manager.execute(range(8), function)


class _Shared:
    """A function that is found again in this process rather than copied."""

    known: dict[int, Callable[[Any], Any]] = {}  # noqa: RUF012

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.known[id(function)] = function
        self._key = id(function)

    def __call__(self, task: Any) -> Any:
        return self.known[self._key](task)


def test_a_task_that_exits_fails_by_itself() -> None:
    def exits(number: int) -> int:
        return sys.exit(2) if number == 1 else number

    manager = StrategyManager(cpu=RayExecutor(LocalCluster(1)))
    for count in (3, 200):
        result = manager.execute(range(count), exits, on_error="collect")
        assert blanked(result.outputs) == [0, None, *range(2, count)]
        (failure,) = result.failures
        assert isinstance(failure.error, SystemExit)
        assert (failure.index, failure.error.code) == (1, 2)


def test_a_stopped_batch_stops_on_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "GRACE_S", 60.0)
    cancel = threading.Event()
    began: list[int] = []

    def cancels(number: int) -> None:
        began.append(number)
        time.sleep(0.01)
        cancel.set()

    result = StrategyManager(cpu=RayExecutor(LocalCluster())).execute(
        range(500), _Shared(cancels), cancel=cancel
    )
    assert result.stopped_by == "cancelled"
    assert len(began) < 500
    assert len(result.unfinished_indices) == 500 - len(began)


def test_a_lease_ends_in_time_and_gives_back_the_rest() -> None:
    found = done_by(Agent(2), lease_of(range(1000), slow, limit_s=0.05))
    assert 0 < len(found) < 500
    assert sorted(found) == list(range(100, 100 + len(found)))


def test_a_lease_alone_runs_one_task_after_the_other() -> None:
    running: list[int] = []
    most: list[int] = []

    def watched(task: int) -> int:
        running.append(task)
        most.append(len(running))
        time.sleep(0.002)
        running.remove(task)
        return task

    assert len(done_by(Agent(4), lease_of(range(20), _Shared(watched), alone=True))) == 20
    assert max(most) == 1


def test_marks_outlive_their_process() -> None:
    marks = InFlightLog("a-lease", 2)
    marks.begin(10, 20)
    run_in_threads(partial(marks.begin, 20, 21))
    marks.end()
    assert read_in_flight("a-lease") == [(20, 21)]
    assert read_in_flight("a-lease") == []


def test_marks_are_gone_when_a_lease_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or those of the next lease of the same name would go with them."""
    close = InFlightLog.close

    def slowly(marks: InFlightLog) -> None:
        time.sleep(0.1)
        close(marks)

    monkeypatch.setattr(InFlightLog, "close", slowly)
    assert done_by(Agent(2), lease_of([1], abs)) == {100: 1}
    assert list(tmp_path.glob("accelera-lease-*")) == []


def test_marks_nobody_asked_about_do_not_pile_up() -> None:
    old, new = InFlightLog("an-old-lease", 1), InFlightLog("a-new-lease", 1)
    old.begin(0, 1)
    new.begin(0, 1)
    path = next(Path(tempfile.gettempdir()).glob("accelera-lease-an-old-lease"))
    os.utime(path, (0, 0))
    Agent(1)
    assert read_in_flight("an-old-lease") == []
    assert read_in_flight("a-new-lease") == [(0, 1)]


def test_ranges() -> None:
    ranges = IndexSet((0, 10), (20, 30))
    assert ranges.remove(5, 25) == [(5, 10), (20, 25)]
    assert list(ranges) == [(0, 5), (25, 30)]
    assert len(ranges) == 10
    assert ranges.remove(5, 25) == []
    assert ranges.halves() == [(0, 2), (2, 5), (25, 27), (27, 30)]


def test_suspects_are_guilty_alone_and_twice() -> None:
    suspects = PoisonQuarantine()
    assert suspects.strike([(4, 8)]) == []
    assert suspects.strike([(4, 8)]) == []
    assert suspects.strike([(5, 6), (9, 10)]) == [5]
    assert suspects.has_strike(0, 5)
    assert not suspects.has_strike(0, 4)


def test_leases_are_a_guided_share_between_two_lengths() -> None:
    one, two = Node("a", "a", 1), Node("b", "b", 4)
    size = LeaseSize()
    assert size.next(one, [one, two], 1000) == 100
    assert size.next(two, [one, two], 1000) == 400
    for node in (one, two):
        size.ran(node, 100, 1.0)
    assert size.next(one, [one, two], 1000) == 50
    assert size.next(one, [one, two], 60) == 15
    assert size.next(one, [one, two], 20) == int(100 * LEAST_S)
    assert size.next(one, [one, two], 4) == int(100 * SHORTEST_S)
    assert size.next(one, [one, two], 3) == 2
    size.ran(two, 10_000, 1.0)
    assert size.is_short(two, 6)
    assert not size.is_short(two, 7)
    assert not size.is_short(one, 1)
    assert size.next(one, [one, two], 0) >= 1


def test_calls_have_futures() -> None:
    with LaneExecutor(ThreadsExecutor(2)) as pool:
        futures = [pool.submit(pow, number, 2) for number in range(50)]
        assert [future.result(60) for future in futures] == [number**2 for number in range(50)]
        assert list(pool.map(double, range(5))) == [0, 2, 4, 6, 8]
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result(60)
    with pytest.raises(RuntimeError, match="takes no calls"):
        pool.submit(double, 1)


def test_calls_that_are_abandoned_are_over_when_that_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "GRACE_S", 60.0)
    begun: list[int] = []

    def noted(number: int) -> None:
        begun.append(number)
        time.sleep(0.05)

    pool = RayExecutor(LocalCluster(1)).as_futures()
    futures = [pool.submit(_Shared(noted), number) for number in range(200)]
    futures[0].result(60)
    pool.abandon()
    count = len(begun)
    assert all(future.done() for future in futures)
    with pytest.raises(CancelledError):
        futures[-1].result()
    with pytest.raises(CancelledError):
        pool.submit(noted, 1)
    time.sleep(0.2)
    assert len(begun) == count < 200


def test_calls_are_counted_while_others_come() -> None:
    calls = CallQueue()
    putting = threading.Thread(
        target=lambda: [calls.put(SubmittedCall(abs, (1,), {})) for _ in range(20_000)]
    )
    putting.start()
    while putting.is_alive():
        assert 0 <= calls.remaining <= 20_000
    putting.join()
    assert calls.remaining == 20_000
    piece = calls.take(DeviceKind.CPU, 30)
    assert piece is not None
    calls.give_back(piece.part(10, 30))
    assert calls.remaining == 19_990
    calls.abort(ClusterError("gone"))
    assert calls.remaining == 0


def test_whoever_waits_for_cancelled_calls_hears_of_them() -> None:
    calls = CallQueue()
    futures = [calls.put(SubmittedCall(abs, (number,), {})) for number in range(3)]
    futures[1].cancel()
    calls.abort(ClusterError("gone"))
    assert not wait(futures, 60).not_done
    assert [future.cancelled() for future in futures] == [False, True, False]


class _Exits:
    """Ends the thread that unpickles it."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def test_an_output_that_exits_fails_the_calls_instead_of_leaving_them() -> None:
    pool = RayExecutor(LocalCluster()).as_futures()
    with pytest.raises(SystemExit):
        pool.submit(_Exits).result(60)
    pool.shutdown()


def test_a_function_that_was_dropped_meanwhile_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "SHIPPED_KEPT", 0)
    assert done_by(Agent(2), lease_of([-1], abs)) == {100: 1}


def test_what_is_said_of_a_lost_node_is_one_line_whatever_the_error_says() -> None:
    assert last_line(OSError("first\nthe node died Some common causes include …\n")) == "the node died"
    assert last_line(ValueError(" \n")) == "ValueError"


def test_calls_can_be_cancelled_before_they_begin() -> None:
    hold, begun = threading.Event(), threading.Event()

    def waits() -> bool:
        begun.set()
        return hold.wait(300)

    pool = LaneExecutor(ThreadsExecutor(1))
    first = pool.submit(waits)
    later = [pool.submit(double, number) for number in range(3)]
    assert begun.wait(300)
    assert later[1].cancel()
    pool.shutdown(wait=False, cancel_futures=False)
    hold.set()
    assert first.result(60)
    assert (later[0].result(60), later[2].result(60)) == (0, 4)
    with pytest.raises(CancelledError):
        later[1].result(60)


def test_calls_fail_with_a_cluster_that_goes() -> None:
    gone: list[LeaseLost] = []
    cluster = LocalCluster(dies=lambda number, lease: gone[0] if gone else None)
    pool = RayExecutor(cluster).as_futures()
    assert pool.submit(double, 4).result(60) == 8

    def nobody() -> Sequence[Node]:
        raise ClusterError("[ray] all gone")

    gone.append(LeaseLost(Cause.NODE, "unplugged"))
    cluster.nodes = nobody  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match="all gone"):
        pool.submit(double, 5).result(60)
    with pytest.raises(ClusterError, match="all gone"):
        pool.submit(double, 6)


@pytest.fixture
def fake_ray() -> Any:
    def init(address: str, **options: Any) -> None:
        raise ConnectionError(f"nobody at {address}")

    def found(address: str | None, folder: None) -> str:
        raise ConnectionError("nobody here")

    services = SimpleNamespace(
        get_ray_address_from_environment=found,
        canonicalize_bootstrap_address=lambda address, folder: None if address == "local" else address,
    )
    return SimpleNamespace(
        is_initialized=lambda: False,
        init=init,
        _private=SimpleNamespace(services=services),
        exceptions=SimpleNamespace(AuthenticationError=KeyError),
        get_runtime_context=lambda: SimpleNamespace(gcs_address="10.0.0.1:6379"),
    )


def test_without_a_cluster_it_says_how_to_start_one(fake_ray: Any) -> None:
    with pytest.raises(ClusterError, match="on this machine, and RAY_ADDRESS names none; nothing is started"):
        connect(fake_ray, None)
    with pytest.raises(ClusterError, match=r"at 127.0.0.1:1;.*ray start --head"):
        connect(fake_ray, "127.0.0.1:1")
    with pytest.raises(ClusterError, match="Ray Client has no streams"):
        connect(fake_ray, "ray://10.1.1.1:10001")


@pytest.mark.parametrize(
    "address",
    ["", "junk", ":6379", "here:", "here:0", "here:99999", "http://here:6379", "http://here", "a b:1"],
)
def test_a_malformed_address_is_told_from_a_cluster_that_is_silent(fake_ray: Any, address: str) -> None:
    with pytest.raises(ClusterError, match=r"address='.*' is malformed: give HOST:PORT .* '10.0.0.7:6379'"):
        connect(fake_ray, address)
    if address:
        fake_ray._private.services.get_ray_address_from_environment = lambda given, folder: address
        with pytest.raises(ClusterError, match=r"RAY_ADDRESS='.*' is malformed"):
            connect(fake_ray, None)


def test_what_is_no_cluster_and_no_amount_is_refused() -> None:
    with pytest.raises(TypeError, match=r"5 is no cluster: give 'HOST:6379', a RayCluster, or None"):
        RayExecutor(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"num_cpus='x': give a whole number"):
        AgentResources(num_cpus="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"num_gpus='x': give a number"):
        AgentResources(num_gpus="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"resources='a': give amounts by name"):
        AgentResources(resources="a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"num_cpus=-1: give a number from 0"):
        AgentResources(num_cpus=-1)
    with pytest.raises(UnknownNameError, match="no device is called 'foo'"):
        AgentResources(device="foo")
    with pytest.raises(ValueError, match=r"num_gpus=1, device='sim' beside .*: what nodes give is settled"):
        RayExecutor(LocalCluster(), num_gpus=1, device="sim")
    assert AgentResources(2, 0.5, {"disk": 1}, "cuda:1").asked == {"CPU": 2, "GPU": 0.5, "disk": 1}


def test_a_closed_executor_runs_nothing() -> None:
    executor = RayExecutor(LocalCluster())
    assert StrategyManager(cpu=executor).execute(range(3), double).outputs == [0, 2, 4]
    executor.close()
    with pytest.raises(ClusterError, match=r"executor was closed: .* make a new RayExecutor"):
        StrategyManager(cpu=executor).execute(range(3), double)
    with pytest.raises(ClusterError, match="executor was closed"):
        executor.as_futures()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "answers at 127.0.0.1:1; nothing is started"),
        ("local", "answers at local; nothing is started"),
        ("ray://10.1.1.1:10001", "Ray Client has no streams"),
    ],
)
def test_what_the_environment_names_is_looked_at_before_ray_waits_for_it(
    fake_ray: Any, address: str, said: str
) -> None:
    def waits(address: str, **options: Any) -> None:
        raise AssertionError("would take minutes, or start a cluster")

    fake_ray.init = waits
    fake_ray._private.services.get_ray_address_from_environment = lambda given, folder: address
    for given in (None, "auto"):
        with pytest.raises(ClusterError, match=said):
            connect(fake_ray, given)


def test_a_program_has_one_cluster(fake_ray: Any) -> None:
    fake_ray.is_initialized = lambda: True
    assert connect(fake_ray, None) is False
    assert connect(fake_ray, "10.0.0.1:6379") is False
    with pytest.raises(ClusterError, match=r"connected to 10.0.0.1:6379 already"):
        connect(fake_ray, "10.0.0.2:6379")


def test_other_versions_are_refused(fake_ray: Any) -> None:
    def init(address: str, **options: Any) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.40.0")

    fake_ray.init = init
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ClusterError, match=r"Ray: 2.40.0\nThe same Ray and the same Python"):
            connect(fake_ray, address)
    ours = {"Ray": "2.60.0", "Python": "3.11.7", "Accelera": "0.1.0"}
    check_versions({**ours, "Python": "3.11.2"}, ours, "node 1")
    with pytest.raises(ClusterError, match=r"node 1 runs Python 3.12.1 \(here: 3.11.7\); The same Ray"):
        check_versions({**ours, "Python": "3.12.1"}, ours, "node 1")
    with pytest.raises(ClusterError, match=r"runs Ray 2.60.1 \(here: 2.60.0\)"):
        check_versions({**ours, "Ray": "2.60.1"}, ours, "node 1")


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(BackendMissingError, match=r"pip install 'accelera-engine\[ray\]'"):
        ray_connection.import_ray()
