"""A product whose blocks the nodes of a cluster make, from files that all of them see."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

from accelera.devices import Device, get_device
from accelera.engine.calibration import cost_model
from accelera.engine.cutting import USUAL_BLOCKS, aligned, blocks_of, cut, steps_of
from accelera.engine.events import Progress
from accelera.engine.job import PlannedJob, PlanRun
from accelera.engine.journal import mark_of
from accelera.engine.network import TEN_GIGABIT_BYTES_PER_S, Network
from accelera.engine.node_work import NodeReport, NodeTask
from accelera.engine.operands import as_matrices
from accelera.engine.options import OperationOptions
from accelera.engine.placed import BlockPlans, chunk_of, largest_of, sum_of
from accelera.engine.planned import PlannedMatmul
from accelera.engine.report import DeviceRun, RunReport
from accelera.engine.reserve import RUNTIME_BYTES, MemorySplit
from accelera.engine.runner import Kernel, RunControl
from accelera.errors import ArgumentError, StoreError, UnknownNameError
from accelera.plan import DevicePlacement, DevicePlan, Pattern, Plan, PlanStep
from accelera.stores import Address, Store, address_of

if TYPE_CHECKING:
    from accelera.execution import RayExecutor

BLOCKS_PER_NODE = 4
"""At least so many, so that a node which is slower, or dies, holds nobody up for long."""


@final
@dataclass(frozen=True)
class DistributedMatmul:
    """``A @ B`` over the nodes of a cluster, checked and ready to be planned."""

    product: PlannedMatmul
    node_budget_bytes: int
    nodes: int
    executor: RayExecutor | None = None
    """Who hands blocks out; None where it is only planned."""
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
        """What nodes compute on: ``"cpu"``, or what the executor says; None: an accelerator of their own."""
        return "cpu" if self.executor is None else self.executor.node_device

    def job(self) -> PlannedJob:
        """Return what ``carry_out`` runs: where there is nothing to multiply, on this machine.

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
        blocks = aligned(blocks_of(spec), chunk) or cut(problem, wanted, chunk)
        steps = tuple(steps_of(problem, blocks, cost))
        room = MemorySplit.on(cpu, self.node_budget_bytes, problem.operands, self.product.options.readers, 0)
        ours = BlockPlans(self.product, cpu, room)
        plans = [ours.plan(step, limit_bytes) for step in steps]
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
        """Return what the network must carry for these blocks, and what it could."""
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
        assert self.executor is not None, "a product that is run has somebody to hand it out"
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
    _did: dict[str, DeviceRun] = field(default_factory=dict)
    _made: list[NodeReport] = field(default_factory=list)

    def run(self) -> RunReport:
        """Make all blocks that are not there; raise what stopped that, when no node is at one any more."""
        began = time.perf_counter()
        steps = [step for step in self.plan.steps() if not self.control.skip(step)]
        skipped = self.plan.forecast.steps - len(steps)
        pool = self.executor.as_futures()
        try:
            futures = {pool.submit(self.work, step): step for step in steps}
            for future in as_completed(futures):
                self._take(futures[future], future.result(), skipped)
        except BaseException:
            pool.abandon()
            raise
        pool.shutdown()
        return self._report(time.perf_counter() - began, skipped)

    def _take(self, step: PlanStep, made: NodeReport, skipped: int) -> None:
        self.control.on_written(step.write)
        self._made.append(made)
        did = self._did.get(made.node, DeviceRun())
        self._did[made.node] = replace(
            did,
            blocks=did.blocks + 1,
            busy_s=did.busy_s + made.seconds,
            moved_bytes=did.moved_bytes + made.moved_bytes,
            peak_pool_bytes=max(did.peak_pool_bytes, made.peak_pool_bytes),
        )
        count, moved = len(self._made), sum(each.moved_bytes for each in self._made)
        total = self.plan.forecast.steps
        self.control.observer.on_progress(
            Progress(count + skipped, total, count, moved, self.plan.moved_bytes)
        )

    def _report(self, seconds: float, skipped: int) -> RunReport:
        return RunReport(
            plan=self.plan,
            device=f"{self.executor.name}: {len(self._did)} nodes",
            seconds=seconds,
            bytes_read={name: sum(each.bytes_read[name] for each in self._made) for name in ("A", "B")},
            bytes_written=sum(each.bytes_written for each in self._made),
            peak_pool_bytes=0,
            hits=0,
            misses=0,
            evictions=0,
            fetched_bytes=0,
            saved_bytes=0,
            stall_s=0.0,
            compute_s=sum(each.seconds for each in self._made),
            steps_run=len(self._made),
            steps_skipped=skipped,
            fallbacks=tuple(f"{made.node}: {note}" for made in self._made for note in made.fallbacks),
            per_device=self._did,
        )


@contextmanager
def executor_on(cluster: Any) -> Iterator[RayExecutor]:
    """Yield who hands work out to ``cluster``: ``"ray"``, a ``RayCluster`` or a ``RayExecutor``.

    ``"ray"`` connects to the cluster that is there, one block at a time on each node, and lets go of it.
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
