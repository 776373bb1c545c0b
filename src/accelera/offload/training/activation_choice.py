"""Choice of an activation plan: the first step of its kind is recorded, later ones follow the plan."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch.utils._pytree import tree_leaves

from accelera.offload.training.activation_plan import (
    ActivationPlan,
    ActivationPlans,
    Prices,
    StepRecord,
    StepRecorder,
    usual_prices,
)
from accelera.offload.training.saved_tensors import ForwardPass
from accelera.offload.training.tape import ForwardTape

if TYPE_CHECKING:
    from accelera.offload.allocation_scope import AllocationScope
    from accelera.offload.block_cache import BlockCache


InputSignature = tuple[Any, ...]
"""Shapes and types of a forward pass's inputs."""

_MOST_PLANS = 16

_MEASURED_FROM_BYTES = 64 << 20
"""Where fewer were moved, the usual price of a disk is taken."""

_SPARE_FRACTION = 0.02
"""Share of the budget that a plan leaves, as no step is quite like another."""


class Planned(NamedTuple):
    """A plan that was made before the first step, and the inputs for which."""

    signature: InputSignature
    plan: ActivationPlan


@final
class ActivationChoice:
    """Choice for the saved tensors of one model: keep, pack, recompute or offload.

    With ``keeps`` all stay in memory. Large ones are offloaded without ``plans``, in a first step that was
    not ``planned``, and where tensors are not counted one by one, so that no step can be recorded.
    """

    def __init__(
        self,
        cache: BlockCache,
        *,
        plans: bool,
        keeps: bool = False,
        planned: Planned | None = None,
        here: Callable[[], BlockCache] | None = None,
    ) -> None:
        self._cache = cache
        self._keeps = keeps
        self._here = here
        self._planned = planned
        self._arena = cache.scope.arena if plans else None
        self._plans: dict[InputSignature, ActivationPlans] = {}
        self._recording: weakref.ref[ForwardPass] | None = None
        self._latest: weakref.ref[ForwardPass] | None = None
        self.chosen: ActivationPlan | None = None
        """The plan of the latest forward pass that had one."""

    def begin(self, scope: AllocationScope, signature: InputSignature) -> ForwardPass:
        """Return the forward pass that begins."""
        if self._keeps:
            return ForwardPass(self._cache, scope, keeps=True)
        if self._is_running(self._recording) or self._is_running(self._latest):
            return ForwardPass(self._cache, scope)
        if self._planned is not None and _is_at_least_as_large(self._planned.signature, signature):
            return self._planned_pass(scope, self._planned.plan)
        if self._arena is None:
            return ForwardPass(self._cache, scope, here=self._here)
        plans = self._plans_for(signature)
        if plans is None:
            return self._recorded_pass(scope, signature)
        plan = self._fastest_plan(plans)
        self._cache.expect("training", plan.peak_bytes)
        return self._planned_pass(scope, plan)

    def _planned_pass(self, scope: AllocationScope, plan: ActivationPlan) -> ForwardPass:
        one = ForwardPass(self._cache, scope, plan, ForwardTape(self._cache.working_s))
        self.chosen = plan
        self._latest = weakref.ref(one)
        return one

    def _recorded_pass(self, scope: AllocationScope, signature: InputSignature) -> ForwardPass:
        assert self._arena is not None
        tape = ForwardTape(self._cache.working_s)
        before = self._cache.report()

        def finish(record: StepRecord) -> None:
            self._plan(signature, record, before)

        recorder = StepRecorder(self._arena, tape)
        one = ForwardPass(self._cache, scope, None, tape, recorder, finish)
        weakref.finalize(one, recorder.give_up).atexit = False
        self._recording = weakref.ref(one)
        return one

    def _plan(self, signature: InputSignature, record: StepRecord, before: Any) -> None:
        after = self._cache.report()
        prices = Prices(_offload_price(before, after))
        plans = ActivationPlans(record, prices, self._cache.least_bytes)
        if len(self._plans) >= _MOST_PLANS:
            del self._plans[next(iter(self._plans))]
        self._plans[signature] = plans
        self._recording = None

    def _plans_for(self, signature: InputSignature) -> ActivationPlans | None:
        """Return the plans for inputs like these, or for larger ones."""
        exact = self._plans.get(signature)
        if exact is not None:
            return exact
        return next(
            (plans for known, plans in self._plans.items() if _is_at_least_as_large(known, signature)), None
        )

    def _fastest_plan(self, plans: ActivationPlans) -> ActivationPlan:
        """Return the fastest plan that fits, reloads of the blocks that it displaces included."""
        assert self._arena is not None
        cache = self._cache
        room = int(self._arena.limit_bytes * (1 - _SPARE_FRACTION))
        price = _offload_price(None, cache.report())
        found = plans.affordable(room, cache.most_pinned_bytes, cache.most_alive_bytes, price)
        return found or plans.plans[-1]

    @staticmethod
    def _is_running(one: weakref.ref[ForwardPass] | None) -> bool:
        """Return whether the graph of an earlier pass is still alive."""
        return one is not None and one() is not None


def signature_of_inputs(args: Any, kwargs: Any) -> InputSignature:
    """Return the shapes and types of the tensors among a module's inputs."""
    return tuple(
        (tuple(leaf.shape), leaf.dtype)
        for leaf in tree_leaves((args, kwargs))
        if isinstance(leaf, torch.Tensor)
    )


def _is_at_least_as_large(known: InputSignature, other: InputSignature) -> bool:
    """Return whether tensors of ``known`` are at least as large as those of ``other``, of the same types."""
    if len(known) != len(other):
        return False
    for (sizes, dtype), (other_sizes, other_dtype) in zip(known, other, strict=True):
        if dtype != other_dtype or len(sizes) != len(other_sizes):
            return False
        if any(size < other_size for size, other_size in zip(sizes, other_sizes, strict=True)):
            return False
    return True


def _offload_price(before: Any, after: Any) -> float:
    """Return the seconds per byte of bringing something out of memory and back, as waited for so far."""
    moved = after.bytes_read + after.bytes_written
    stalled_s = after.stall_s
    if before is not None:
        moved -= before.bytes_read + before.bytes_written
        stalled_s -= before.stall_s
    return 2 * stalled_s / moved if moved >= _MEASURED_FROM_BYTES else usual_prices("disk").offload_s
