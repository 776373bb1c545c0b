"""Fit of an offloaded model into a budget: block size, plan for saved tensors, and room for blocks."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch

from accelera.devices import Device
from accelera.errors import BudgetExceededError, DeviceError
from accelera.offload.keeping.cutting import FINER, block_bytes_of
from accelera.offload.planning.dry_run import DryRun, Scene, dry_run, largest_weight_bytes
from accelera.offload.planning.fixed import least_room
from accelera.offload.training.activation_plan import ActivationPlan, ActivationPlans, Prices
from accelera.units import format_bytes

_BLOCKS_FRACTION = 0.75
"""Share of the room from which blocks get their size: tensors take the rest."""
_LEAST_TRIES = 8
_OFFLOAD_S_PER_BYTE = {"disk": 1.7e-9, "ram": 0.2e-9}
"""Out of memory and back: 1.2 GB/s each way to a disk, 10 GB/s to host memory."""
_PACK_S_PER_BYTE = 0.5e-9


def offload_price_s(device: Device, store: str | Path | None) -> float:
    """Return the seconds per byte of bringing something out of memory and back.

    It is a figure of a usual machine, so that the same model in the same budget always gets the same plan.
    """
    return _OFFLOAD_S_PER_BYTE["disk" if device.host_memory or store is not None else "ram"]


@dataclass(frozen=True)
class Fitted:
    """A dry run, and how it fits."""

    run: DryRun
    capacity_bytes: int
    """Room for blocks."""
    ordinary_bytes: int
    """Most bytes of tensors that are alive at once."""
    ordinary_op: str
    plans: ActivationPlans | None
    plan: ActivationPlan | None
    """What becomes of saved tensors; None when they all go one way."""


@final
class Fitting:
    """Looks for a way to carry a scene out inside a budget.

    ``fixed_bytes`` of every budget are for neither blocks nor tensors; ``price_s`` are seconds per byte that
    has to be brought; ``tell`` hears what is being done.
    """

    def __init__(
        self, scene: Scene, fixed_bytes: int, price_s: float, tell: Callable[[str], None] = lambda doing: None
    ) -> None:
        self._scene = scene
        self._fixed_bytes = fixed_bytes
        self._price_s = price_s
        self._tell = tell

    def within(self, limit_bytes: int) -> Fitted:
        """Return a way that keeps to ``limit_bytes``; blocks are made smaller as long as there is none.

        Raises BudgetExceededError, naming the smallest workable budget, when there is none at all.
        """
        room, tightest = limit_bytes - self._fixed_bytes, None
        for finer in FINER if room > 0 else ():
            run = self._run(int(room * _BLOCKS_FRACTION), room, finer)
            if run is None:
                continue
            found = self._fitted(run, room)
            if found is not None:
                return found
            tightest = run
            if not run.is_cut:
                break
        least, run = self._least()
        found = self._fitted(run, room) if least <= limit_bytes else None
        if found is None:
            raise self._refusal(limit_bytes, least, tightest or run)
        return found

    def least_later(self) -> Callable[[], int]:
        """Return ``least_bytes`` as a function that does not keep a module alive.

        It raises DeviceError when the module is gone.
        """
        if not isinstance(self._scene.model, torch.nn.Module):
            return self.least_bytes
        model, scene = weakref.ref(self._scene.model), replace(self._scene, model=None)
        fixed_bytes, price_s = self._fixed_bytes, self._price_s

        def least() -> int:
            alive = model()
            if alive is None:
                raise DeviceError(
                    "[plan_offload] the model of this plan is gone: hold it while the least budget is looked "
                    "for, or plan a function that builds it"
                )
            return Fitting(replace(scene, model=alive), fixed_bytes, price_s).least_bytes()

        return least

    def least_bytes(self) -> int:
        """Return the smallest workable budget: the largest weight is cut into ``PARTS`` at most."""
        return self._least()[0]

    def _run(self, blocks_room: int, room: int, finer: int = 1) -> DryRun | None:
        """Run the scene on paper; None when an operation needs a tensor whole that has no room."""
        block_bytes = block_bytes_of(blocks_room, train=self._scene.train, finer=finer)
        self._tell(f"running on shapes in blocks of {format_bytes(block_bytes)}")
        try:
            return dry_run(self._scene, block_bytes, room)
        except BudgetExceededError as error:
            self._lacking_bytes = error.needed_bytes
            return None

    def _fitted(self, run: DryRun, room: int) -> Fitted | None:
        """Return how ``run`` fits ``room``, None if it does not."""
        ordinary, op = run.peak(run.first_update, run.update)
        if run.record is None:
            ordinary, op = max((ordinary, op), run.peak(run.step))
            fits = ordinary + self._blocks_bytes(run) <= room
            return Fitted(run, room - ordinary, ordinary, op, None, None) if fits else None
        plans = self._plans(run)
        plan = plans.affordable(
            room, self._blocks_bytes(run), run.notes.most_block_bytes, self._price_s, floor_bytes=ordinary
        )
        if plan is None:
            return None
        if plan.peak_bytes > ordinary:
            ordinary, op = plan.peak_bytes, run.peak(run.step)[1]
        return Fitted(run, room - ordinary, ordinary, op, plans, plan)

    def _plans(self, run: DryRun) -> ActivationPlans:
        assert run.record is not None
        self._tell("choosing what is recomputed")
        return ActivationPlans(run.record, Prices(self._price_s, _PACK_S_PER_BYTE), self._scene.least_bytes)

    def _blocks_bytes(self, run: DryRun) -> int:
        """Return the least room for the blocks of ``run``."""
        return max(
            run.most_pinned_bytes, least_room(largest_weight_bytes(self._scene), self._scene.least_bytes)
        )

    def _least(self) -> tuple[int, DryRun]:
        """Return the smallest workable budget and the run in it."""
        capacity = least_room(largest_weight_bytes(self._scene), self._scene.least_bytes)
        for _ in range(_LEAST_TRIES):
            run = self._run(capacity, capacity)
            if run is None:
                capacity = max(self._lacking_bytes, capacity + capacity // 8)
                continue
            needed = self._blocks_bytes(run)
            if needed <= capacity:
                return self._fixed_bytes + self._least_ordinary(run) + capacity, run
            capacity = max(needed, capacity + capacity // 8)
        raise AssertionError("more room makes everything fit")

    def _least_ordinary(self, run: DryRun) -> int:
        updates, _ = run.peak(run.first_update, run.update)
        passes = run.peak(run.step)[0] if run.record is None else self._plans(run).plans[-1].peak_bytes
        return max(updates, passes)

    def _refusal(self, limit: int, least: int, run: DryRun) -> BudgetExceededError:
        what = "training" if self._scene.train else "inference"
        fixed = self._fixed_bytes
        ordinary, op = self._least_ordinary(run), run.peak(run.step)[1]
        return BudgetExceededError(
            f"[plan_offload] {what} in {format_bytes(limit)}: staging and runtime take "
            f"{format_bytes(fixed)}, activations and temporaries at least {format_bytes(ordinary)}, most of "
            f"it at {op}, and the blocks of one operation {format_bytes(self._blocks_bytes(run))}; the "
            f"smallest workable budget is {least} bytes ({format_bytes(least)}): raise it to that, or use a "
            "smaller batch",
            needed_bytes=least,
            budget_bytes=limit,
        )
