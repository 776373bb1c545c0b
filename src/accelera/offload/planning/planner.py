"""``plan_offload``: memory, traffic and time of an offloaded model, predicted and fitted into a budget."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from accelera._progress import ProgressBar, open_bar, progress_is_shown
from accelera.capture._internal import refuse_lazy_layers
from accelera.errors import ArgumentError, BudgetExceededError, DeviceError
from accelera.offload.block_layout import FINER, block_bytes_of
from accelera.offload.budgets import DeviceBudgets, least_room, reserved_on
from accelera.offload.config import OffloadConfig
from accelera.offload.device_memory import tensor_device
from accelera.offload.planning.dry_run import DryRun, DryRunSetup, dry_run, largest_weight_bytes
from accelera.offload.planning.plan import OffloadPlan, OffloadRates
from accelera.offload.planning.pool_replay import replay
from accelera.offload.training.activation_plan import ActivationPlan, ActivationPlans, Prices, usual_prices
from accelera.units import format_bytes

PATIENCE_S = 1.0
"""Seconds after which planning shows its progress."""


@contextmanager
def planning_progress(model: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current phase, once planning takes longer than ``PATIENCE_S``."""
    is_shown, start_s = progress_is_shown(), time.monotonic()
    bar: ProgressBar | None = None

    def show_phase(phase: str) -> None:
        nonlocal bar
        if not is_shown or time.monotonic() - start_s < PATIENCE_S:
            return
        bar = bar or open_bar(f"planning {model}")
        bar.update(0, 0, phase)

    try:
        yield show_phase
    finally:
        if bar is not None:
            bar.close()


_BLOCKS_FRACTION = 0.75
"""Share of the room from which blocks get their size: tensors take the rest."""

_LEAST_TRIES = 8


def _slowest_backing_tier(budgets: DeviceBudgets, store: str | Path | None, weights_bytes: int) -> str:
    """Return the slowest tier that holds weights outside the device: ``"ram"`` or ``"disk"``."""
    if budgets.ram_bytes is not None:
        return "ram" if weights_bytes <= budgets.ram_bytes else "disk"
    return "disk" if budgets.computing[0].device.host_memory or store is not None else "ram"


@dataclass(frozen=True)
class FittedRun:
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
class BudgetFit:
    """Search for a dry run that fits a budget.

    ``budgets`` say where bytes live beside the device; ``tell`` is called with what is being done.
    """

    def __init__(
        self,
        setup: DryRunSetup,
        budgets: DeviceBudgets,
        tell: Callable[[str], None] = lambda doing: None,
    ) -> None:
        self._setup = setup
        self._budgets = budgets
        self._fixed_bytes = sum(reserved_on(budgets.only("plan_offload")[0]).values())
        self._tell = tell

    def within(self, limit_bytes: int) -> FittedRun:
        """Return a run that fits ``limit_bytes``, with smaller blocks if necessary.

        Raises BudgetExceededError, naming the smallest workable budget, when there is none at all.
        """
        room, tightest = limit_bytes - self._fixed_bytes, None
        for finer in FINER if room > 0 else ():
            run = self._run(int(room * _BLOCKS_FRACTION), room, finer)
            if run is None:
                continue
            found = self._fit(run, room)
            if found is not None:
                return found
            tightest = run
            if not run.is_cut:
                break
        least, run = self._least()
        found = self._fit(run, room) if least <= limit_bytes else None
        if found is None:
            raise self._refusal(limit_bytes, least, tightest or run)
        return found

    def least_bytes_finder(self) -> Callable[[], int]:
        """Return ``least_bytes`` as a function that does not keep a module alive.

        It raises DeviceError when the module is gone.
        """
        if not isinstance(self._setup.model, torch.nn.Module):
            return self.least_bytes
        model, setup = weakref.ref(self._setup.model), replace(self._setup, model=None)
        budgets = self._budgets

        def least() -> int:
            alive = model()
            if alive is None:
                raise DeviceError(
                    "[plan_offload] the model of this plan is gone: hold it while the least budget is looked "
                    "for, or plan a function that builds it"
                )
            return BudgetFit(replace(setup, model=alive), budgets).least_bytes()

        return least

    def least_bytes(self) -> int:
        """Return the smallest workable budget: the largest weight is cut into ``PARTS`` at most."""
        return self._least()[0]

    def _run(self, blocks_room: int, room: int, finer: int = 1) -> DryRun | None:
        """Do a dry run; None when an operation needs a tensor whole that has no room."""
        block_bytes = block_bytes_of(blocks_room, train=self._setup.config.train, finer=finer)
        self._tell(f"running on shapes in blocks of {format_bytes(block_bytes)}")
        try:
            return dry_run(self._setup, block_bytes, room)
        except BudgetExceededError as error:
            self._missing_bytes = error.needed_bytes
            return None

    def _fit(self, run: DryRun, room: int) -> FittedRun | None:
        """Return ``run`` fitted into ``room`` bytes; None if it does not fit."""
        ordinary, op = run.peak(run.first_update, run.update)
        if run.record is None:
            ordinary, op = max((ordinary, op), run.peak(run.step))
            fits = ordinary + self._blocks_bytes(run) <= room
            return FittedRun(run, room - ordinary, ordinary, op, None, None) if fits else None
        plans = self._plans(run)
        plan = plans.affordable(
            room,
            self._blocks_bytes(run),
            run.notes.most_block_bytes,
            self._prices(run).offload_s,
            floor_bytes=ordinary,
        )
        if plan is None:
            return None
        if plan.peak_bytes > ordinary:
            ordinary, op = plan.peak_bytes, run.peak(run.step)[1]
        return FittedRun(run, room - ordinary, ordinary, op, plans, plan)

    def _plans(self, run: DryRun) -> ActivationPlans:
        assert run.record is not None
        self._tell("choosing what is recomputed")
        return ActivationPlans(run.record, self._prices(run), self._setup.config.least_bytes)

    def _prices(self, run: DryRun) -> Prices:
        home = _slowest_backing_tier(self._budgets, self._setup.config.store, run.weights_bytes)
        return usual_prices(home)

    def _blocks_bytes(self, run: DryRun) -> int:
        """Return the least room for the blocks of ``run``."""
        return max(
            run.most_pinned_bytes,
            least_room(largest_weight_bytes(self._setup), self._setup.config.least_bytes),
        )

    def _least(self) -> tuple[int, DryRun]:
        """Return the smallest workable budget and the run in it."""
        capacity = least_room(largest_weight_bytes(self._setup), self._setup.config.least_bytes)
        for _ in range(_LEAST_TRIES):
            run = self._run(capacity, capacity)
            if run is None:
                capacity = max(self._missing_bytes, capacity + capacity // 8)
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
        what = "training" if self._setup.config.train else "inference"
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


PASSES = 4
"""Passes planned: in the second the order of use is known, the last stands for all that follow."""


def plan_offload(
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    inputs: Any,
    budget: int | float | str | Mapping[Any, Any] | None = None,
    *,
    train: bool | None = None,
    optimizer: Any = "adamw",
    loss: Callable[[Any], torch.Tensor] | None = None,
    store: str | Path | None = None,
    device: Any = None,
    policy: str = "loop",
    activations: str = "auto",
    passes: int = PASSES,
) -> OffloadPlan:
    """Predict memory, traffic and time of an offloaded model; nothing is allocated, moved or computed.

    The passes are carried out on shapes by the very code that runs them, so hits, misses and bytes of a run
    on inputs of these shapes are those of the plan.

    Parameters
    ----------
    model
        A module, also one on ``meta``, or a function that builds one. It is left as it was.
    inputs
        A tensor, a tuple of arguments, a dictionary of named ones, or a function that makes any of these.
    budget
        Most bytes of the device's memory, as ``offload`` takes it; by device, of one accelerator and
        ``"cpu"``.
    train
        Whether a pass is a training step (forward, loss, backward, optimizer) or one forward pass without
        gradients; None: as the module's mode is.
    optimizer, loss
        As ``accelera.capture`` takes them.
    store, device, policy, activations
        As ``offload`` takes them.
    passes
        How many passes to plan; the last one stands for all that follow.

    Raises
    ------
    BudgetExceededError
        The model does not run in this budget; the message names the operation, what it needs, and the
        smallest budget that works.
    ShapeError, DTypeError
        A layer does not take what it is given; the message names it.
    ValueError
        The model asks for values that shapes do not tell, or ``passes`` below 1.
    TypeError
        ``model`` is neither a module nor a function, ``inputs`` are none, or ``budget`` is a tensor.
    """
    if passes < 1:
        raise ArgumentError(f"[plan_offload] passes={passes}; at least 1 is needed")
    refuse_wrong_kinds(model, inputs, budget)
    training = _trains(model) if train is None else train
    budgets = DeviceBudgets.parse("plan_offload", budget, model, device)
    config = OffloadConfig(policy=policy, store=store, activations=activations, train=training)
    device_kind = tensor_device(budgets.only("plan_offload")[0])
    return planned(DryRunSetup(model, inputs, optimizer, loss, device_kind, config), budgets, passes)


def planned(setup: DryRunSetup, budgets: DeviceBudgets, passes: int = PASSES) -> OffloadPlan:
    """Return the plan of a setup within budgets; raises as ``plan_offload``."""
    _, limit = budgets.only("plan_offload")
    with planning_progress(type(setup.model).__name__) as tell:
        fit = BudgetFit(setup, budgets, tell)
        found = fit.within(limit)
        tell("replaying")
        return _plan(setup, budgets, found, passes, fit.least_bytes_finder())


def refuse_wrong_kinds(model: Any, inputs: Any, budget: Any) -> None:
    """Raise TypeError for what is no model, no inputs or no budget."""
    if not callable(model):
        raise ArgumentError(
            f"[plan_offload] model is of type {type(model).__name__}: give a torch.nn.Module, or a function "
            "that builds one"
        )
    if isinstance(model, torch.nn.Module):
        refuse_lazy_layers("plan_offload", model)
    if inputs is None or isinstance(inputs, (str, bytes)):
        raise ArgumentError(
            f"[plan_offload] inputs={inputs!r}: give a tensor, a tuple of arguments, a dictionary of named "
            "ones, or a function that makes any of these; the order is plan_offload(model, inputs, budget)"
        )
    if isinstance(budget, (torch.Tensor, tuple, list)):
        raise ArgumentError(
            f"[plan_offload] budget is of type {type(budget).__name__}: give bytes, a share, or text such as "
            "'2GiB'; the order is plan_offload(model, inputs, budget)"
        )


def _trains(model: Any) -> bool:
    return isinstance(model, torch.nn.Module) and model.training


def _plan(
    setup: DryRunSetup,
    budgets: DeviceBudgets,
    found: FittedRun,
    passes: int,
    find_minimum: Callable[[], int],
) -> OffloadPlan:
    run, (device, limit) = found.run, budgets.only("plan_offload")
    store = setup.config.store
    home = _slowest_backing_tier(budgets, store, run.weights_bytes)
    replayed = replay(run, found.capacity_bytes, setup.config.policy, passes, found.plans, found.plan)
    return OffloadPlan(
        model=run.model,
        train=setup.config.train,
        budget_bytes=limit,
        tier="ram" if device.host_memory else device.name,
        home=home,
        policy=setup.config.policy,
        activations=setup.config.activations,
        capacity_bytes=found.capacity_bytes,
        block_bytes=run.block_bytes,
        reserved={"activations and temporaries": found.ordinary_bytes, **reserved_on(device)},
        weights_bytes=run.weights_bytes,
        kept_bytes=run.kept_bytes,
        pool_bytes=replayed.pool_bytes,
        peak_pool_bytes=replayed.peak_pool_bytes,
        passes=replayed.passes,
        ordinary_peak_op=found.ordinary_op,
        trace=replayed.trace,
        rates=OffloadRates(device, None if store is None else str(store), home),
        find_minimum=find_minimum,
        activation_plan=found.plan,
        signature=run.signature,
    )
