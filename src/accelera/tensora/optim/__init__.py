"""Optimizers with groups and states, and schedules of their learning rates."""

from __future__ import annotations

from accelera.tensora.optim import lr_scheduler
from accelera.tensora.optim.adafactor import Adafactor
from accelera.tensora.optim.adaptive import (
    ASGD,
    Adadelta,
    Adagrad,
    Adamax,
    Lion,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
)
from accelera.tensora.optim.fused import SGD, Adam, AdamW
from accelera.tensora.optim.lbfgs import LBFGS
from accelera.tensora.optim.optimizer import Optimizer

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lion",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "lr_scheduler",
]
