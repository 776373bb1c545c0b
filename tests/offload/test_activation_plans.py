"""Plans for saved tensors: a replay gives what the planner says, and gradients do not depend on them."""

from __future__ import annotations

import copy
import itertools
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from accelera import offload, offloaded, plan_offload
from accelera._native import ActivationStep
from accelera.offload.memory_guard import arenas_in_torch
from accelera.offload.training.activation_choice import ActivationChoice
from accelera.offload.training.activation_plan import Fate
from tests.offload.pools import values
from tests.offload.training_models import MODELS, Branches

MIB = 1 << 20
OFFLOAD_S, PACK_S, RATIO = 1.0, 0.25, 4

needs_arena = pytest.mark.skipif(not arenas_in_torch(), reason="the library for this torch is not built")


class Chain(NamedTuple):
    """A forward pass of operations that make one value each, and a backward pass that needs some of them.

    Positions 0 to n - 1 are those of the forward operations, n to 2n - 1 those of the backward pass, in which
    value v is needed at 2n - 1 - v.
    """

    nbytes: list[int]
    seconds: list[float]
    pure: list[bool]
    reads: list[list[int]]
    saved: list[bool]
    masks: list[bool]
    base: list[int]

    @property
    def length(self) -> int:
        return len(self.nbytes)

    def needed(self, value: int) -> int:
        return 2 * self.length - 1 - value

    def step(self) -> ActivationStep:
        count = self.length
        kept = [self.needed(each) if self.saved[each] else -1 for each in range(count)]
        starts = np.concatenate([[0], np.cumsum([len(each) for each in self.reads])]).astype(np.int64)
        items = np.array([item for each in self.reads for item in each], np.int32)
        return ActivationStep(
            base=np.array(self.base, np.int64),
            nbytes=np.array(self.nbytes, np.int64),
            producer=np.arange(count, dtype=np.int32),
            idle_from=np.array([v + 1 if self.saved[v] else -1 for v in range(count)], np.int64),
            needed=np.array(kept, np.int64),
            ends=np.array([each + 1 if each >= 0 else -1 for each in kept], np.int64),
            packable=np.array(self.masks, np.uint8),
            seconds=np.array(self.seconds, np.float64),
            pure=np.array(self.pure, np.uint8),
            reads=(starts, items),
            makes=(np.arange(count + 1, dtype=np.int64), np.arange(count, dtype=np.int32)),
        )

    def plans(self) -> list[tuple[int, float, bytes]]:
        return self.step().plans((OFFLOAD_S, PACK_S, RATIO, 1))


@st.composite
def chains(draw: Any, most: int = 9) -> Chain:
    count = draw(st.integers(2, most))

    def each(what: Any) -> list[Any]:
        return draw(st.lists(what, min_size=count, max_size=count))

    reads = [
        draw(st.lists(st.integers(0, v - 1), max_size=2, unique=True)) if v else [] for v in range(count)
    ]
    return Chain(
        nbytes=each(st.integers(1, 40).map(lambda size: 4 * size)),
        seconds=each(st.sampled_from([0.0, 0.5, 4.0, 40.0, 400.0])),
        pure=each(st.booleans()),
        reads=reads,
        saved=each(st.booleans()),
        masks=each(st.sampled_from([False, False, True])),
        base=draw(st.lists(st.integers(0, 60), min_size=2 * count, max_size=2 * count)),
    )


def replayed(chain: Chain, fates: bytes) -> tuple[float, list[int]] | None:
    """Return seconds and bytes at each position of a step under ``fates``; None when it cannot be run.

    Written anew, position by position, with a set of what was brought back.
    """
    count = chain.length
    saved = [value for value in range(count) if chain.saved[value]]
    prices = {Fate.PACK: PACK_S, Fate.OFFLOAD: OFFLOAD_S}
    seconds = sum(chain.nbytes[v] * prices.get(Fate(fates[v]), 0.0) for v in saved)
    brought: set[int] = set()
    memory: list[int] = []
    for time in range(2 * count):
        value, spike = 2 * count - 1 - time, 0
        if value in saved:
            if fates[value] == Fate.RECOMPUTE and value not in brought:
                found = _computed_again(chain, fates, brought, value)
                if found is None:
                    return None
                run, sources = found
                stay = {each for each in run if each == value or chain.saved[each]}
                brought |= stay | sources
                seconds += sum(chain.seconds[each] for each in run)
                spike = _temporaries(chain, sorted(run), stay)
            brought.add(value)
        idle = [v for v in saved if v < time <= chain.needed(v)]
        kept = sum(chain.nbytes[v] for v in idle if fates[v] == Fate.KEEP)
        back = sum(chain.nbytes[v] for v in brought if fates[v] != Fate.KEEP)
        packed = sum(chain.nbytes[v] // RATIO for v in idle if fates[v] == Fate.PACK)
        memory.append(chain.base[time] + kept + back + packed + spike)
        brought.discard(value)
    return seconds, memory


def _computed_again(
    chain: Chain, fates: bytes, brought: set[int], value: int
) -> tuple[set[int], set[int]] | None:
    """Return the operations between ``value`` and what can be read, and what they read; None for none."""
    if not chain.pure[value]:
        return None
    run, sources = {value}, set[int]()
    for read in chain.reads[value]:
        if chain.saved[read] and (read in brought or fates[read] != Fate.RECOMPUTE):
            sources.add(read)
            continue
        deeper = _computed_again(chain, fates, brought, read)
        if deeper is None:
            return None
        run |= deeper[0]
        sources |= deeper[1]
    return run, sources


def _temporaries(chain: Chain, makes: list[int], stay: set[int]) -> int:
    """Return the most bytes of values on the way that nobody keeps."""
    alive, most = set[int](), 0
    for at, operation in enumerate(makes):
        if operation not in stay:
            alive.add(operation)
        most = max(most, sum(chain.nbytes[each] for each in alive))
        read_later = {read for later in makes[at + 1 :] for read in chain.reads[later]}
        alive = {each for each in alive if each in read_later or each not in chain.reads[operation]}
    return most


@settings(max_examples=200, deadline=None)
@given(chains())
def test_every_plan_is_what_an_independent_replay_gives(chain: Chain) -> None:
    plans = chain.plans()
    assert plans[0][1] == 0, "the first adds nothing: all is kept but what costs nothing"
    for (peak, seconds, _), (lower, longer, _) in itertools.pairwise(plans):
        assert lower < peak, "each plan takes less than the one before"
        assert longer >= seconds, "and more time"
    for peak, seconds, fates in plans:
        found = replayed(chain, fates)
        assert found is not None, "no plan computes again what cannot be"
        assert found[0] == pytest.approx(seconds)
        assert max(found[1]) == peak


@settings(max_examples=300, deadline=None)
@given(chains())
def test_the_last_plan_takes_no_more_than_offloading_all(chain: Chain) -> None:
    """Computing a value again needs its operands in memory; offloading it does not."""
    outcome = replayed(chain, bytes([Fate.OFFLOAD if saved else Fate.KEEP for saved in chain.saved]))
    assert outcome is not None
    assert chain.plans()[-1][0] <= max(outcome[1])


def test_a_saved_input_is_offloaded_and_never_computed() -> None:
    """No operation of the pass made it, so nothing can make it again."""
    ints = partial(np.array, dtype=np.int64)
    step = ActivationStep(
        base=ints([0] * 12),
        nbytes=ints([100, 90, 60]),
        producer=np.array([-1, 0, 1], np.int32),
        idle_from=ints([1, 2, 3]),
        needed=ints([9, 7, 5]),
        ends=ints([10, 8, 6]),
        packable=np.zeros(3, np.uint8),
        seconds=np.array([1e-9, 1e-9]),
        pure=np.ones(2, np.uint8),
        reads=(ints([0, 1, 2]), np.array([0, 1], np.int32)),
        makes=(ints([0, 1, 2]), np.array([1, 2], np.int32)),
    )
    plans = step.plans((OFFLOAD_S, PACK_S, RATIO, 1))
    assert all(Fate(fates[0]) in (Fate.KEEP, Fate.OFFLOAD) for _, _, fates in plans)
    assert plans[-1][0] == 100


@settings(max_examples=60, deadline=None)
@given(chains(most=5))
def test_no_plan_is_better_than_the_best_of_all_choices(chain: Chain) -> None:
    outcomes = []
    choices = [
        [Fate.KEEP, Fate.RECOMPUTE, Fate.OFFLOAD, *([Fate.PACK] if mask else [])] if saved else [Fate.KEEP]
        for saved, mask in zip(chain.saved, chain.masks, strict=True)
    ]
    for fates in itertools.product(*choices):
        found = replayed(chain, bytes(fates))
        if found is not None:
            outcomes.append((max(found[1]), found[0]))
    for peak, seconds, _ in chain.plans():
        assert seconds >= min(time for height, time in outcomes if height <= peak) - 1e-9


def test_what_is_cheap_to_compute_leaves_first_and_what_nobody_can_compute_is_offloaded() -> None:
    chain = Chain(
        nbytes=[100, 100, 100, 100],
        seconds=[0.0, 5.0, 500.0, 5.0],
        pure=[False, True, True, True],
        reads=[[], [0], [1], [2]],
        saved=[True] * 4,
        masks=[False] * 4,
        base=[0] * 8,
    )
    # At the peak all four are there. Value 0 cannot be computed; 2 takes longer to compute than to bring.
    order = []
    for (_, _, before), (_, _, after) in itertools.pairwise(chain.plans()):
        order += [(v, Fate(b)) for v, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert order[0] == (1, Fate.RECOMPUTE)
    assert (2, Fate.RECOMPUTE) not in order
    assert (0, Fate.RECOMPUTE) not in order


def trained(model: nn.Module, data: Any, steps: int = 3) -> list[torch.Tensor]:
    """Return losses, gradients and buffers of some steps."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    found: list[torch.Tensor] = []
    for number in range(steps):
        torch.manual_seed(number)
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        found += [loss.detach(), *(values(each.grad).clone() for each in model.parameters())]
        found += [values(each).clone() for each in model.buffers()]
        optimizer.step()
    return found


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@needs_arena
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", MODELS)
def test_training_is_equal_to_the_bit_under_every_plan(
    name: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(_: ActivationChoice, plans: Any) -> Any:
        return plans.plans[round(share * (len(plans.plans) - 1))]

    monkeypatch.setattr(ActivationChoice, "_fastest_plan", chosen)
    make, data = MODELS[name]
    torch.manual_seed(0)
    plain, x = make(), data()
    model = offload(copy.deepcopy(plain), "256MiB")
    assert_same(trained(model, x), trained(plain, x))
    fates = offloaded(model).report().activation_bytes
    assert sum(fates.values()) > MIB
    assert (fates["keep"] == sum(fates.values())) == (share == 0)


class ComplexLayers(nn.Module):
    """Products of complex values with their conjugates, and negative views: the imaginary parts of these."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            left, right = layer(x).tanh(), layer(2 * x).sin()
            z = torch.complex(left, right) * 1.5
            turned = z.conj().exp() @ z.conj().T[:, :128]
            x = (z * z.conj()).real + z.conj().imag.exp() * turned.real.tanh() + turned.conj().imag / 64
        return x


def complex_pair() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return ComplexLayers(), torch.randn(512, 128)


@pytest.mark.parametrize("activations", ["auto", "offload", "keep"])
def test_conjugates_and_negative_views_that_are_saved(activations: str) -> None:
    plain, x = complex_pair()
    model = offload(copy.deepcopy(plain), "64MiB", activations=activations, inputs=x)
    assert_same(trained(model, x), trained(plain, x))


@needs_arena
@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
def test_conjugates_and_negative_views_under_plans(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(_: ActivationChoice, plans: Any) -> Any:
        return plans.plans[round(share * (len(plans.plans) - 1))]

    monkeypatch.setattr(ActivationChoice, "_fastest_plan", chosen)
    plain, x = complex_pair()
    model = offload(copy.deepcopy(plain), "256MiB")
    assert_same(trained(model, x), trained(plain, x))
    assert offloaded(model).report().activation_bytes["recompute"] > 0


@needs_arena
def test_a_step_that_departs_from_the_record_is_computed_all_the_same() -> None:
    torch.manual_seed(0)
    plain = Branches()
    model = offload(copy.deepcopy(plain), "30MiB")
    for step in range(5):
        x = torch.randn(1024, 256, generator=torch.Generator().manual_seed(step)) + (
            0.5 if step % 2 else -0.5
        )
        found = [trained(each, x, steps=1) for each in (model, plain)]
        assert_same(*found)


@needs_arena
@pytest.mark.parametrize("planned", [False, True])
def test_the_report_says_what_was_chosen_and_the_plan_foretold_it(planned: bool) -> None:
    make, data = MODELS["words"]
    torch.manual_seed(0)
    model, x = make().train(), data()
    plan = plan_offload(model, x, "36MiB")
    model = offload(model, "36MiB", inputs=x if planned else None)
    before = offloaded(model).report()
    assert before.activation_bytes == {}
    trained(model, x)
    report = offloaded(model).report()
    assert set(report.activation_bytes) == {"keep", "pack", "recompute", "offload"}
    assert report.activation_added_s >= 0
    assert plan.activation_plan is not None
    if planned:
        assert report.activation_bytes == plan.activation_plan.bytes_by_fate()
        assert "activations" in str(plan)
    assert sum(report.activation_bytes.values()) == sum(plan.activation_plan.bytes_by_fate().values())


@needs_arena
def test_the_arena_stays_within_every_budget_and_the_least_keeps_less_than_the_most() -> None:
    """What is kept need not fall from each budget to the next: plans go by times measured of each model."""
    make, data = MODELS["words"]
    kept = []
    for budget in (60 * MIB, 44 * MIB, 36 * MIB, 32 * MIB):
        torch.manual_seed(0)
        model, x = offload(make(), budget), data()
        trained(model, x, steps=4)
        handle = offloaded(model)
        arena = handle.cache.scope.arena
        assert arena is not None
        assert arena.peak_bytes <= arena.limit_bytes <= budget
        kept.append(handle.report().activation_bytes["keep"])
        handle.close()
    assert kept[-1] < kept[0]
