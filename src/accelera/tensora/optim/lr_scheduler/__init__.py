"""Schedules of learning rates, with the names, arguments and values of `torch.optim.lr_scheduler`."""

from __future__ import annotations

from accelera.tensora.optim.lr_scheduler.composed import (
    ChainedScheduler,
    ReduceLROnPlateau,
    SequentialLR,
)
from accelera.tensora.optim.lr_scheduler.cycles import (
    CyclicLR,
    OneCycleLR,
)
from accelera.tensora.optim.lr_scheduler.epochs import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]
