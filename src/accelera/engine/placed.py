"""A product whose blocks CPU and accelerator make together, planned inside one budget of RAM.

    budget = the result, where it is new memory
           + what the accelerator needs of RAM: its staging buffers and threads
           + the CPU's share: its blocks, and all else that a planned product reserves

The accelerator's own memory is used as far as it is free. Each device makes one block at a time, by a plan of
that block in its share; a plan is made once for each shape of block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

from accelera.devices import Device, get_device
from accelera.engine.calibration import cost_model
from accelera.engine.cutting import USUAL_BLOCKS, blocks_of, cut, steps_of
from accelera.engine.job import PlannedJob, PlanRun
from accelera.engine.options import OperationOptions
from accelera.engine.places import HybridDevices
from accelera.engine.placing import HybridRun
from accelera.engine.planned import PlannedMatmul
from accelera.engine.reserve import MemorySplit
from accelera.engine.runner import Kernel, PlanRunner, RunControl
from accelera.errors import BudgetExceededError
from accelera.execution import ExecutionStrategy
from accelera.memory import MemoryManager
from accelera.plan import DevicePlacement, DevicePlan, Forecast, MatmulProblem, Pattern, Plan, PlanStep, Spans
from accelera.stores import Store
from accelera.units import format_bytes

_Shapes = tuple[tuple[int, ...], ...]


@final
class BlockPlans:
    """Plans of single blocks of ``product`` on one device, in ``room``."""

    def __init__(self, product: PlannedMatmul, device: Device, room: MemorySplit) -> None:
        self.device = device
        self._product = product
        self._problem = product.problem(device)
        self.budget_bytes = room.budget_bytes
        self._room = room
        self._plans: dict[tuple[_Shapes, int | None], Plan] = {}

    def plan(self, step: PlanStep, limit_bytes: int | None = None) -> Plan:
        """Return how the block that ``step`` writes is made, with at most ``limit_bytes`` for its blocks.

        Raises BudgetExceededError when there is no room for it.
        """
        shapes = tuple(block.shape for block in (*step.reads, step.write))
        if (shapes, limit_bytes) not in self._plans:
            self._plans[shapes, limit_bytes] = self._planned(shapes, limit_bytes)
        return self._plans[shapes, limit_bytes]

    def _planned(self, shapes: _Shapes, limit_bytes: int | None) -> Plan:
        parts = [
            replace(operand, shape=shape)
            for operand, shape in zip(self._problem.operands, shapes, strict=True)
        ]
        problem, budget_bytes = MatmulProblem(*parts), self._room.budget_bytes
        return self._product.planned(problem, self.device, self._room, budget_bytes, limit_bytes)


@final
@dataclass(frozen=True)
class HybridMatmul:
    """``A @ B``, checked and ready to be shared between the CPU and ``places``."""

    product: PlannedMatmul
    places: HybridDevices

    def job(self) -> PlannedJob:
        """Return what ``carry_out`` runs."""
        return replace(self.product.job(), plan=self.plan, runner=self._run)

    def plan(
        self, device: Device, limit_bytes: int | None = None, spec: Mapping[str, Any] | None = None
    ) -> Plan:
        """Return the plan; ``limit_bytes`` lowers the CPU's room, ``spec`` repeats an earlier one's blocks.

        Raises BudgetExceededError when the budget does not hold both sides.
        """
        cpu, accelerator = self._sides()
        problem = self.product.problem(cpu.device)
        blocks = blocks_of(spec) or self._blocks(problem)
        steps = tuple(steps_of(problem, blocks, cost_model(cpu.device)))
        on_cpu = self._planned_on_cpu(cpu, steps, limit_bytes)
        on_accelerator = [accelerator.plan(step) for step in steps]
        decision = self.places.manager.explain(self.places.profile(len(steps)))
        count = _share(decision.strategy, on_accelerator, on_cpu)
        placement = DevicePlacement(
            str(decision.strategy),
            decision.reasons[0] if decision.reasons else decision.rule,
            (
                _expected(cpu, on_cpu[count:], on_cpu),
                _expected(accelerator, on_accelerator[:count], on_accelerator),
            ),
        )
        spec = {"blocks": [[list(span) for span in block] for block in blocks], "limit_bytes": limit_bytes}
        taken = (*on_accelerator[:count], *on_cpu[count:])
        return self._whole(problem, steps, largest_of(on_cpu), placement, taken, spec)

    def _planned_on_cpu(
        self, cpu: BlockPlans, steps: tuple[PlanStep, ...], limit_bytes: int | None
    ) -> list[Plan]:
        try:
            return [cpu.plan(step, limit_bytes) for step in steps]
        except BudgetExceededError as error:
            needed = self._budget_bytes + error.needed_bytes - cpu.budget_bytes
            raise BudgetExceededError(
                f"[matmul] a budget of {format_bytes(self._budget_bytes)} for a product on CPU and"
                f" {self.places.device.name} together: {needed} bytes are needed, as the device takes staging"
                f" buffers of RAM and the CPU its own blocks; give them, or leave the strategy out",
                needed_bytes=needed,
                budget_bytes=self._budget_bytes,
            ) from error

    def _whole(
        self,
        problem: MatmulProblem,
        steps: tuple[PlanStep, ...],
        largest: Plan,
        placement: DevicePlacement,
        taken: Sequence[Plan],
        spec: Mapping[str, Any],
    ) -> Plan:
        """Return the plan of the whole product, whose steps are blocks."""
        compulsory = sum(0 if operand.in_place else operand.nbytes for operand in problem.operands)
        return replace(
            largest,
            operands=problem.operands,
            schedule="blocks",
            shape_note=f"C in {len(steps)} blocks of at most {_extent(steps)}, each made by one device",
            budget_bytes=self._budget_bytes,
            reserved=self._reserved(largest),
            forecast=sum_of(largest.forecast, taken, placement),
            lower_bound_bytes=compulsory,
            compulsory_bytes=compulsory,
            pattern=Pattern.of(partial(iter, steps)),
            spec=spec,
            alternatives=(),
            placement=placement,
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
        if plan.placement is None:
            return PlanRunner(plan, stores, device, kernel, options, control)
        return HybridRun(plan, stores, kernel, options, control, self.places, self._sides())

    def _sides(self) -> tuple[BlockPlans, BlockPlans]:
        cpu, device = get_device("cpu"), self.places.device
        readers = self.product.options.readers
        usable_bytes = MemoryManager(device).get_usable_memory()
        theirs = MemorySplit.on(device, usable_bytes, self.product.problem(device).operands, readers, 0)
        left = self._budget_bytes - self.product.target().new_bytes - _host_bytes(theirs, device)
        ours = MemorySplit.on(cpu, left, self.product.problem(cpu).operands, readers, 0)
        return BlockPlans(self.product, cpu, ours), BlockPlans(self.product, device, theirs)

    @property
    def _budget_bytes(self) -> int:
        options = self.product.options
        given = options.budget_bytes if options.host_budget_bytes is None else options.host_budget_bytes
        return get_device("cpu").available_bytes() if given is None else given

    def _reserved(self, largest: Plan) -> dict[str, int]:
        device = self.places.device
        problem = self.product.problem(device)
        theirs = MemorySplit.on(device, 0, problem.operands, self.product.options.readers, 0)
        added = {"result": self.product.target().new_bytes, device.name: _host_bytes(theirs, device)}
        return {**largest.reserved, **added}

    def _blocks(self, problem: MatmulProblem) -> tuple[Spans, ...]:
        """Return the tiles that the user fixed, or a cut of our own."""
        if self.product.tiles is None:
            return cut(problem, USUAL_BLOCKS, chunk_of(self.product))
        batch = tuple((0, size) for size in problem.batch)
        return tuple((*batch, rows, columns) for rows, columns in self.product.tiles)


def chunk_of(product: PlannedMatmul) -> tuple[int, ...] | None:
    """Return the chunk of a new chunked result, with both matrix axes; None elsewhere."""
    chunk = product.target().chunk
    if chunk is None:
        return None
    if product.b.ndim == 1:
        chunk = (*chunk, 1)
    return (*chunk[:-1], 1, chunk[-1]) if product.a.ndim == 1 else chunk


def _extent(steps: Sequence[PlanStep]) -> str:
    shapes = [step.write.shape for step in steps]
    return " x ".join(str(max(sizes)) for sizes in zip(*shapes, strict=True))


def _expected(plans: BlockPlans, taken: Sequence[Plan], possible: Sequence[Plan]) -> DevicePlan:
    """Return what a device is to do; any block may come to it, so the one with the highest peak counts."""
    most = largest_of(possible)
    seconds = sum(plan.forecast.seconds for plan in taken)
    peak_bytes = most.peak_bytes[most.tier]
    return DevicePlan(plans.device.name, len(taken), seconds, most.tier, peak_bytes, most.schedule)


def largest_of(plans: Sequence[Plan]) -> Plan:
    """Return the plan of the block that takes most memory."""
    return max(plans, key=lambda plan: plan.peak_bytes[plan.tier])


def _host_bytes(room: MemorySplit, device: Device) -> int:
    return sum(room.reserved.values()) + device.staging_bytes()


def _share(strategy: ExecutionStrategy, theirs: Sequence[Plan], ours: Sequence[Plan]) -> int:
    """Return how many blocks, from the first on, the accelerator is expected to take.

    Where both pull, it takes blocks from the front and the CPU from the end, whoever is free first.
    """
    fixed = strategy.gpu_tasks(len(ours))
    if fixed is not None:
        return fixed
    front, end = 0, len(ours)
    theirs_s = ours_s = 0.0
    while front < end:
        next_theirs, next_ours = theirs[front].forecast.seconds, ours[end - 1].forecast.seconds
        if theirs_s + next_theirs <= ours_s + next_ours:
            theirs_s, front = theirs_s + next_theirs, front + 1
        else:
            ours_s, end = ours_s + next_ours, end - 1
    return front


def sum_of(largest: Forecast, taken: Sequence[Plan], placement: DevicePlacement) -> Forecast:
    """Return what all blocks come to; the peak is the CPU's, the time that of who takes longest."""
    said = [plan.forecast for plan in taken]

    def total(figure: str) -> Any:
        return sum(getattr(each, figure) for each in said)

    return Forecast(
        peak_pool_bytes=largest.peak_pool_bytes,
        bytes_read={name: sum(each.bytes_read[name] for each in said) for name in ("A", "B")},
        bytes_written=total("bytes_written"),
        hits=total("hits"),
        misses=total("misses"),
        evictions=total("evictions"),
        fetched_bytes=total("fetched_bytes"),
        saved_bytes=total("saved_bytes"),
        steps=len(taken),
        passes=1,
        seconds=max(each.seconds for each in placement.devices),
        compute_s=total("compute_s"),
        stall_s=total("stall_s"),
        read_s=total("read_s"),
        write_s=total("write_s"),
    )


def hybrid_job(product: PlannedMatmul, places: HybridDevices | None) -> PlannedJob | None:
    """Return the job that shares ``product`` between the devices of ``places``.

    None where there is nothing to share: no second device, or nothing to multiply.
    """
    if places is None or product.problem(places.device).is_empty:
        return None
    return HybridMatmul(product, places).job()
