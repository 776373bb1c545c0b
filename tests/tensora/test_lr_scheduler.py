"""Schedules of learning rates: the same rates and momenta as PyTorch's in every epoch."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch

import accelera.tensora as ts
from accelera.errors import ArgumentError
from accelera.tensora import optim

SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("LambdaLR", {"lr_lambda": lambda epoch: 0.95**epoch}),
    ("LambdaLR", {"lr_lambda": [lambda epoch: 0.9**epoch, lambda epoch: 1 / (1 + epoch)]}),
    ("MultiplicativeLR", {"lr_lambda": lambda epoch: 0.97 if epoch % 3 else 1.01}),
    ("StepLR", {"step_size": 7, "gamma": 0.3}),
    ("MultiStepLR", {"milestones": [3, 9, 9, 40], "gamma": 0.5}),
    ("ConstantLR", {"factor": 0.25, "total_iters": 6}),
    ("LinearLR", {"start_factor": 0.2, "end_factor": 0.8, "total_iters": 11}),
    ("ExponentialLR", {"gamma": 0.93}),
    ("PolynomialLR", {"total_iters": 30, "power": 2.0}),
    ("CosineAnnealingLR", {"T_max": 13, "eta_min": 0.001}),
    ("CosineAnnealingWarmRestarts", {"T_0": 5, "T_mult": 2, "eta_min": 0.002}),
    ("CosineAnnealingWarmRestarts", {"T_0": 4}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 6, "step_size_down": 9}),
    ("CyclicLR", {"base_lr": [0.01, 0.02], "max_lr": 0.1, "step_size_up": 5, "mode": "triangular2"}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 5, "mode": "exp_range", "gamma": 0.98}),
    (
        "CyclicLR",
        {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 4, "scale_fn": lambda x: 1 / (5 ** (x * 0.1))},
    ),
    ("OneCycleLR", {"max_lr": 0.2, "total_steps": 120}),
    ("OneCycleLR", {"max_lr": [0.2, 0.4], "epochs": 12, "steps_per_epoch": 10, "anneal_strategy": "linear"}),
    ("OneCycleLR", {"max_lr": 0.2, "total_steps": 125, "three_phase": True, "pct_start": 0.4}),
]
LIBRARIES = (optim.lr_scheduler, torch.optim.lr_scheduler)
KINDS = ["SGD", "Adam"]
IDS = [f"{name}{i}" for i, (name, _) in enumerate(SCHEDULES)]


@pytest.fixture(autouse=True, params=["once"])
def fusion() -> None:
    """Schedules compute no tensors: these tests run once."""


def both(kind: str, lrs: tuple[float, float] = (0.1, 0.05)) -> tuple[Any, Any]:
    """The same optimizer of two groups in both libraries."""
    options = {"momentum": 0.9} if kind == "SGD" else {}
    mine = [{"params": [ts.ones(3).requires_grad_()], "lr": lr} for lr in lrs]
    theirs = [{"params": [torch.ones(3, requires_grad=True)], "lr": lr} for lr in lrs]
    return getattr(optim, kind)(mine, **options), getattr(torch.optim, kind)(theirs, **options)


def state(optimizer: Any) -> list[Any]:
    names = ("lr", "momentum", "betas")
    return [[group[name] for name in names if name in group] for group in optimizer.param_groups]


def check(optimizers: tuple[Any, Any], schedules: tuple[Any, Any], steps: int, *args: Any) -> None:
    mine, theirs = optimizers
    for epoch in range(steps):
        for a, b in zip(state(mine), state(theirs), strict=True):
            for x, y in zip(a, b, strict=True):
                assert x == pytest.approx(y, rel=1e-12, abs=1e-15), epoch
        assert schedules[0].get_last_lr() == pytest.approx(schedules[1].get_last_lr(), rel=1e-12, abs=1e-15)
        theirs.step()
        for schedule in schedules:
            schedule.step(*args)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "options"), SCHEDULES, ids=IDS)
def test_rates_are_pytorchs(name: str, options: dict[str, Any], kind: str) -> None:
    optimizers = both(kind)
    schedules = tuple(
        getattr(library, name)(optimizer, **options)
        for library, optimizer in zip(LIBRARIES, optimizers, strict=True)
    )
    check(optimizers, schedules, 118)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "options"), SCHEDULES, ids=IDS)
def test_a_schedule_goes_on_where_its_state_was_saved(name: str, options: dict[str, Any]) -> None:
    optimizer, _ = both("SGD")
    other, _ = both("SGD")
    schedule = getattr(optim.lr_scheduler, name)(optimizer, **options)
    twin = getattr(optim.lr_scheduler, name)(other, **options)
    for _ in range(17):
        schedule.step()
    twin.load_state_dict(schedule.state_dict())
    other.load_state_dict(optimizer.state_dict())
    for _ in range(20):
        schedule.step()
        twin.step()
        assert state(optimizer) == state(other)


def test_schedules_are_chained_and_follow_one_another() -> None:
    for compose in ("chained", "sequential"):
        optimizers = both("SGD")
        made = []
        for library, optimizer in zip(
            (optim.lr_scheduler, torch.optim.lr_scheduler), optimizers, strict=True
        ):
            parts = [
                library.ConstantLR(optimizer, factor=0.1, total_iters=4),
                library.ExponentialLR(optimizer, gamma=0.9),
                library.CosineAnnealingWarmRestarts(optimizer, T_0=5),
            ]
            if compose == "chained":
                made.append(library.ChainedScheduler(parts[:2], optimizer=optimizer))
            else:
                made.append(library.SequentialLR(optimizer, parts, milestones=[6, 20]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(optimizers, (made[0], made[1]), 40)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
def test_a_plateau_lowers_the_rate(mode: str, threshold_mode: str) -> None:
    optimizers = both("SGD")
    options: dict[str, Any] = {"mode": mode, "threshold_mode": threshold_mode, "patience": 2, "cooldown": 1}
    mine = optim.lr_scheduler.ReduceLROnPlateau(optimizers[0], factor=0.5, min_lr=[0.001, 0.02], **options)  # type: ignore[arg-type]
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizers[1], factor=0.5, min_lr=[0.001, 0.02], **options
    )  # type: ignore[arg-type]
    for metric in itertools.islice(itertools.cycle([3.0, 2.0, 2.5, 2.5, 2.00001, 1.9, 1.9, 1.9, 1.9]), 60):
        mine.step(metric)
        theirs.step(metric)
        assert state(optimizers[0]) == state(optimizers[1])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda s, o: s.LambdaLR(o, [lambda e: 1.0]), "1 functions for 2 groups"),
        (lambda s, o: s.ConstantLR(o, factor=2), "factor=2"),
        (lambda s, o: s.LinearLR(o, start_factor=0), "factors 0"),
        (lambda s, o: s.CyclicLR(o, 0.1, [0.1, 0.2, 0.3]), "3 numbers for 2 groups"),
        (lambda s, o: s.CyclicLR(o, 0.1, 0.2, mode="round"), "mode='round'"),
        (lambda s, o: s.OneCycleLR(o, 0.1), "total_steps"),
        (lambda s, o: s.ReduceLROnPlateau(o, factor=1.5), "factor=1.5"),
        (lambda s, o: s.ChainedScheduler([]), "no schedules"),
        (lambda s, o: s.SequentialLR(o, [s.StepLR(o, 3)], [4]), "milestones"),
        (lambda s, o: s.CosineAnnealingWarmRestarts(o, 0), "T_0=0"),
    ],
)
def test_wrong_options_are_named(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(optim.lr_scheduler, both("SGD")[0])
    with pytest.raises(KeyError, match="initial_lr"):
        optim.lr_scheduler.StepLR(both("SGD")[0], 3, last_epoch=4)


def test_period_of_zero_is_refused_and_changes_nothing() -> None:
    weight = ts.ones((3,)).requires_grad_()
    optimizer = ts.optim.SGD([weight], lr=0.1)
    schedule = ts.optim.lr_scheduler.StepLR(optimizer, 2)
    schedule.load_state_dict({**schedule.state_dict(), "step_size": 0})
    before = schedule.state_dict()
    with pytest.raises(ArgumentError, match=r"\[StepLR\] the rates of epoch 1 are undefined"):
        schedule.step()
    assert schedule.state_dict() == before
    assert optimizer.param_groups[0]["lr"] == 0.1
