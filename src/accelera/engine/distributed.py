"""Products whose blocks the nodes of a cluster make, from files that all of them see.

A node makes a block from shared files into a shared result (``NodeTask``); whether the network feeds
the nodes is arithmetic per byte, against what would be needed (``Network``).
"""

from __future__ import annotations

import functools
import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np

from accelera._logs import logger
from accelera.devices import Device, get_device
from accelera.devices._internal import usable_processors
from accelera.engine.blocks import (
    USUAL_BLOCKS,
    BlockPlans,
    aligned,
    blocks_of,
    chunk_of,
    cut,
    largest_of,
    steps_of,
    sum_of,
)
from accelera.engine.calibration import cost_model
from accelera.engine.job import PlannedJob, PlanRun, carry_out
from accelera.engine.journal import mark_of
from accelera.engine.matmul import PlannedMatmul
from accelera.engine.operands import as_matrices, multiplier, result_view
from accelera.engine.options import RUNTIME_BYTES, MemorySplit, OperationOptions
from accelera.engine.report import DeviceRun, Progress, RunReport
from accelera.engine.runner import Kernel, RunControl
from accelera.errors import ArgumentError, BudgetExceededError, StoreError, UnknownNameError
from accelera.memory import MemoryManager
from accelera.plan import Plan
from accelera.plan._internal import DevicePlacement, DevicePlan, Pattern, PlanStep, require_exact_cover
from accelera.stores import Store
from accelera.stores._internal import Address, address_of, join_output
from accelera.units import format_bytes

if TYPE_CHECKING:
    from accelera.execution import RayExecutor


TEN_GIGABIT_BYTES_PER_S: Final = 1.25e9
"""What 10 Gb/s Ethernet carries to each node; assumed where no rate is given."""


@final
@dataclass(frozen=True)
class Network:
    """A product spread over nodes that read its operands through a network.

    A node that makes square blocks of edge b does b / itemsize flop for each byte that it reads: b / 4 in
    f32. It computes at its full rate only where b is at least itemsize x (flop/s) / (bytes/s).
    """

    flops: float
    """Arithmetic of the whole product."""
    moved_bytes: int
    """Bytes that all nodes read and write together."""
    itemsize: int
    """Bytes of an element."""
    node_flops_per_s: float
    """Rate of one node with this product."""
    bytes_per_s: float
    """Rate of the network to each node."""
    nodes: int

    @property
    def edge(self) -> float:
        """Edge of square blocks with the same flop per byte as this product's blocks."""
        return self.itemsize * self.flops / max(self.moved_bytes, 1)

    @property
    def needed_edge(self) -> float:
        """Edge from which on the network feeds a node's full rate."""
        return self.itemsize * self.node_flops_per_s / self.bytes_per_s

    @property
    def fed_fraction(self) -> float:
        """Share of a node's rate that the network feeds, at most 1."""
        return min(1.0, self.edge / self.needed_edge)

    @property
    def speed_up(self) -> float | None:
        """Most speed-up over one node; None: none is promised."""
        return float(self.nodes) if self.fed_fraction == 1.0 else None

    def lines(self) -> tuple[str, ...]:
        """Return the figures as lines of text for ``Plan.explain``."""
        per_byte = self.flops / max(self.moved_bytes, 1)
        head = (
            f"  network      {format_bytes(self.moved_bytes)} to and from {self.nodes} nodes: {per_byte:.0f} "
            f"flop for each byte, as square blocks of b = {self.edge:.0f} do (b / {self.itemsize})"
        )
        need = (
            f"    {self.node_flops_per_s:.2g} flop/s a node and {self.bytes_per_s:.3g} bytes/s to it need "
            f"b >= {self.needed_edge:.0f}: "
        )
        return head, need + self._verdict()

    def _verdict(self) -> str:
        if self.speed_up is not None:
            return f"the network keeps up, up to {self.speed_up:.0f} x one node"
        return (
            f"no speed-up is promised, as the network feeds {100 * self.fed_fraction:.0f} % of a node; take "
            f"larger operands, a larger node_budget, a faster network, or one machine"
        )


_BLOCK_LOCK = threading.Lock()
"""Held while a process computes a block: it takes all cores and the whole budget."""


@functools.cache
def use_all_cores() -> None:
    """Let products of this process run on all cores it may use; Ray starts its workers with one thread."""
    import threadpoolctl
    from scipy.linalg import cython_blas  # noqa: F401 - so that its library is found

    threadpoolctl.threadpool_limits(usable_processors(), user_api="blas")


def _worker_name(device: str) -> str:
    """Return the name of this process, followed by the device that computed unless that was the CPU."""
    process = f"{platform.node()}/{os.getpid()}"
    return process if device == "cpu" else f"{process} {device}"


@final
class NodeReport(NamedTuple):
    """Figures of computing one block; the block itself is in the result."""

    node: str
    seconds: float
    bytes_read: dict[str, int]
    bytes_written: int
    peak_pool_bytes: int
    """In the memory of the device that computed."""
    fallbacks: tuple[str, ...] = ()
    """Deviations from the plan, in words."""

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return sum(self.bytes_read.values()) + self.bytes_written


@final
@dataclass(frozen=True)
class NodeTask:
    """Makes blocks of one product; travels to nodes by pickling.

    A block computed twice is written twice with the same elements, so the caller may retry a block without
    knowing whether a lost attempt had finished.
    """

    a: Address
    b: Address
    out: str
    """Absolute path of the result, whose partial file another process has begun."""
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    ranks: tuple[int, int]
    """Axes of A and of B as the caller gave them."""
    budget_bytes: int
    """Most RAM that a block may take on its node."""
    readers: int
    mark: int
    """Number of the run's journal: a file under the result's name may be of another run, or not shared."""
    device: str | None = "cpu"
    """Device that computes, in its own free memory; None: the node's first accelerator, if any."""

    def __call__(self, step: PlanStep) -> NodeReport:
        """Compute the block that ``step`` writes, and make it durable.

        Raises BudgetExceededError when it does not fit the budget, StoreError when a file is not to be found.
        """
        use_all_cores()
        with _BLOCK_LOCK:
            report = self._make_with_fallback(step)
        return NodeReport(
            _worker_name(report.device),
            report.seconds,
            dict(report.bytes_read),
            report.bytes_written,
            report.peak_pool_bytes,
            report.fallbacks,
        )

    def _make_with_fallback(self, step: PlanStep) -> RunReport:
        """Compute the block on the node's device, or on the CPU when that fails or lacks memory."""
        try:
            return self._make_on(step, get_device(self.device))
        except (BudgetExceededError, RuntimeError) as error:
            if self.device == "cpu":
                raise
            note = f"a block went to the CPU: {error}"
        logger.warning("matmul: %s", note)
        report = self._make_on(step, get_device("cpu"))
        return replace(report, fallbacks=(note, *report.fallbacks))

    def _make_on(self, step: PlanStep, device: Device) -> RunReport:
        """Compute the block on ``device``, by a plan for the memory that it has now."""
        with self.a.opened() as a, self.b.opened() as b, self._shared_output() as result:
            left, right = a[step.reads[0].region], b[step.reads[1].region]
            device = multiplier(device, left.dtype)
            out = result_view(result, *self.ranks)[step.write.region]
            options = OperationOptions(readers=self.readers).within(self.budget_bytes, self.budget_bytes)
            product = PlannedMatmul(left, right, out, options)
            if not device.host_memory:
                self._check_has_room(product, device)
                options = options.within(MemoryManager(device).get_usable_memory(), self.budget_bytes)
                product = replace(product, options=options)
            return carry_out(product.job(), device, options)[1]

    def _check_has_room(self, product: PlannedMatmul, device: Device) -> None:
        """Raise ``BudgetExceededError`` when what ``device`` takes of the RAM does not fit the budget."""
        reserved = MemorySplit.on(device, 0, product.problem(device).operands, self.readers, 0).reserved
        needed_bytes = sum(reserved.values()) + device.staging_bytes()
        if needed_bytes > self.budget_bytes:
            raise BudgetExceededError(
                f"[matmul] a block on {device.name} takes {needed_bytes} bytes of its node's RAM, and the"
                f" budget is {self.budget_bytes}; give node_budget= that much",
                needed_bytes=needed_bytes,
                budget_bytes=self.budget_bytes,
            )

    @contextmanager
    def _shared_output(self) -> Iterator[Store]:
        output = join_output(self.out, self.shape, self.dtype)
        try:
            if mark_of(self.out) != self.mark:
                raise StoreError(
                    f"[matmul] {self.out}.partial on {platform.node()} is of another run: this one was given"
                    f" up, or its result is not in a folder that all nodes share"
                )
            yield output
        finally:
            output.abort(keep_partial=True)


BLOCKS_PER_NODE = 4
"""Fewest blocks per node, so that a slower or dead node delays the others little."""


@final
@dataclass(frozen=True)
class DistributedMatmul:
    """``A @ B`` over the nodes of a cluster, checked and ready to be planned."""

    product: PlannedMatmul
    node_budget_bytes: int
    nodes: int
    executor: RayExecutor | None = None
    """Executor that hands blocks out; None where it is only planned."""
    network_bytes_per_s: float = TEN_GIGABIT_BYTES_PER_S

    def __post_init__(self) -> None:
        rate = self.network_bytes_per_s
        if self.nodes < 1 or not rate > 0:
            raise ArgumentError(
                f"[matmul] nodes={self.nodes}, network_bytes_per_s={rate}: give at least one node, and a rate"
                f" above 0"
            )

    @property
    def node_device(self) -> str | None:
        """Device of the nodes: ``"cpu"``, or the executor's; None: each node's own accelerator."""
        return "cpu" if self.executor is None else self.executor.node_device

    def job(self) -> PlannedJob:
        """Return the job for ``carry_out``; a product with nothing to multiply runs on this machine.

        Raises StoreError when an operand or the result is not in a file.
        """
        self._addresses()
        if self.product.problem(get_device("cpu")).is_empty:
            return self.product.job()
        return replace(self.product.job(), plan=self.plan, runner=self._run)

    def plan(
        self, device: Device, limit_bytes: int | None = None, spec: Mapping[str, Any] | None = None
    ) -> Plan:
        """Return the plan, with the network's part in it; ``spec`` repeats the blocks of an earlier one.

        Raises BudgetExceededError when a block does not fit ``node_budget_bytes``.
        """
        cpu = get_device("cpu")
        problem, cost = self.product.problem(cpu), cost_model(cpu)
        if problem.is_empty:
            return self.product.plan(device, limit_bytes, spec)
        wanted = max(USUAL_BLOCKS, BLOCKS_PER_NODE * self.nodes)
        chunk = chunk_of(self.product)
        former = blocks_of(spec)
        if former:
            require_exact_cover(former, problem.c.shape)
        blocks = aligned(former, chunk) or cut(problem, wanted, chunk)
        steps = tuple(steps_of(problem, blocks, cost))
        room = MemorySplit.on(cpu, self.node_budget_bytes, problem.operands, self.product.options.readers, 0)
        block_plans = BlockPlans(self.product, cpu, room)
        plans = [block_plans.plan(step, limit_bytes) for step in steps]
        placement = self._placement(steps, plans)
        largest = largest_of(plans)
        compulsory = sum(operand.nbytes for operand in problem.operands)
        return replace(
            largest,
            operands=problem.operands,
            schedule="blocks",
            shape_note=f"C in {len(steps)} blocks, each made by one of {self.nodes} nodes",
            budget_bytes=self.node_budget_bytes,
            reserved={"runtime": RUNTIME_BYTES},
            forecast=replace(sum_of(largest.forecast, plans, placement), peak_pool_bytes=0),
            lower_bound_bytes=compulsory,
            compulsory_bytes=compulsory,
            pattern=Pattern.of(partial(iter, steps)),
            spec={"blocks": [[list(span) for span in block] for block in blocks]},
            alternatives=(),
            placement=placement,
        )

    def _placement(self, steps: Sequence[PlanStep], plans: Sequence[Plan]) -> DevicePlacement:
        network = self.network(steps, plans)
        seconds = sum(plan.forecast.seconds for plan in plans) / self.nodes
        seconds = max(seconds, network.moved_bytes / network.bytes_per_s / self.nodes)
        largest = largest_of(plans)
        shares = DevicePlan(
            "nodes", len(plans), seconds, "each node's RAM", largest.peak_bytes["ram"], largest.schedule
        )
        reason = f"{self.nodes} nodes take blocks as fast as they make them"
        if self.node_device != "cpu":
            where = self.node_device or "its accelerator, if it has one"
            reason += f", each on {where}; the figures are those of processors"
        return DevicePlacement("cluster", reason, (shares,), network.lines())

    def network(self, steps: Sequence[PlanStep], plans: Sequence[Plan]) -> Network:
        """Return the network's load for these blocks, and its rate."""
        flops = sum(step.flops for step in steps)
        return Network(
            flops=flops,
            moved_bytes=sum(plan.moved_bytes for plan in plans),
            itemsize=self.product.a.dtype.itemsize,
            node_flops_per_s=flops / max(sum(step.compute_s for step in steps), 1e-12),
            bytes_per_s=self.network_bytes_per_s,
            nodes=self.nodes,
        )

    def _run(
        self,
        plan: Plan,
        stores: Sequence[Store],
        device: Device,
        kernel: Kernel,
        options: OperationOptions,
        control: RunControl,
    ) -> PlanRun:
        a, b = self._addresses()
        target = self.product.target()
        assert target.path is not None, "checked with the addresses"
        work = NodeTask(
            a,
            b,
            str(target.path.parent.resolve() / target.path.name),
            target.shape,
            target.dtype,
            (self.product.a.ndim, self.product.b.ndim),
            self.node_budget_bytes,
            self.product.options.readers,
            mark_of(target.path),
            self.node_device,
        )
        assert self.executor is not None, "a product that is run has an executor"
        return DistributedRun(plan, work, self.executor, control)

    def _addresses(self) -> tuple[Address, Address]:
        if self.product.target().path is None:
            raise StoreError(
                "[matmul] cluster=: the result must go to a file that every node sees; give out= a path"
            )
        left, right = (
            _address(name, store)
            for name, store in zip("AB", as_matrices(self.product.a, self.product.b), strict=True)
        )
        return left, right


def _address(name: str, store: Store) -> Address:
    found = address_of(store)
    if found is None:
        raise StoreError(
            f"[matmul] cluster=: {name} ({store.name}, on {store.tier}) lies in no file: nodes load the tiles"
            f" they need, nothing is sent to them; write it to a folder that all nodes see and give its path"
        )
    return found


@final
@dataclass
class DistributedRun:
    """One run of a plan whose steps are blocks, handed out to nodes."""

    plan: Plan
    work: NodeTask
    executor: RayExecutor
    control: RunControl
    _node_stats: dict[str, DeviceRun] = field(default_factory=dict)
    _reports: list[NodeReport] = field(default_factory=list)

    def run(self) -> RunReport:
        """Compute all missing blocks; raises the first error once no node is computing."""
        began = time.perf_counter()
        steps = [step for step in self.plan.steps() if not self.control.skip(step)]
        skipped = self.plan.forecast.steps - len(steps)
        pool = self.executor.as_futures()
        try:
            futures = {pool.submit(self.work, step): step for step in steps}
            for future in as_completed(futures):
                self._collect(futures[future], future.result(), skipped)
        except BaseException:
            pool.abandon()
            raise
        pool.shutdown()
        return self._report(time.perf_counter() - began, skipped)

    def _collect(self, step: PlanStep, report: NodeReport, skipped: int) -> None:
        self.control.on_written(step.write)
        self._reports.append(report)
        stats = self._node_stats.get(report.node, DeviceRun())
        self._node_stats[report.node] = replace(
            stats,
            blocks=stats.blocks + 1,
            busy_s=stats.busy_s + report.seconds,
            moved_bytes=stats.moved_bytes + report.moved_bytes,
            peak_pool_bytes=max(stats.peak_pool_bytes, report.peak_pool_bytes),
        )
        count, moved = len(self._reports), sum(each.moved_bytes for each in self._reports)
        total = self.plan.forecast.steps
        self.control.observer.on_progress(
            Progress(count + skipped, total, count, moved, self.plan.moved_bytes)
        )

    def _report(self, seconds: float, skipped: int) -> RunReport:
        return RunReport(
            plan=self.plan,
            device=f"{self.executor.name}: {len(self._node_stats)} nodes",
            seconds=seconds,
            bytes_read={name: sum(each.bytes_read[name] for each in self._reports) for name in ("A", "B")},
            bytes_written=sum(each.bytes_written for each in self._reports),
            peak_pool_bytes=0,
            hits=0,
            misses=0,
            evictions=0,
            fetched_bytes=0,
            saved_bytes=0,
            stall_s=0.0,
            compute_s=sum(each.seconds for each in self._reports),
            steps_run=len(self._reports),
            steps_skipped=skipped,
            fallbacks=tuple(
                f"{report.node}: {note}" for report in self._reports for note in report.fallbacks
            ),
            per_device=self._node_stats,
        )


@contextmanager
def executor_on(cluster: Any) -> Iterator[RayExecutor]:
    """Yield the executor of ``cluster``: ``"ray"``, a ``RayCluster`` or a ``RayExecutor``.

    ``"ray"`` connects to the running cluster, one block at a time on each node, and disconnects at the end.
    Raises UnknownNameError for another word, TypeError for what is no cluster, ClusterError when none
    answers.
    """
    from accelera.execution import RayExecutor

    if isinstance(cluster, RayExecutor):
        yield cluster
    elif not isinstance(cluster, str):
        if not callable(getattr(cluster, "nodes", None)):
            raise ArgumentError(f"[matmul] cluster={cluster!r}: give 'ray', a RayCluster or a RayExecutor")
        yield RayExecutor(cluster)
    elif cluster.lower() != "ray":
        raise UnknownNameError.among("cluster", cluster, ("ray",))
    else:
        with RayExecutor(num_cpus=1) as executor:
            yield executor
