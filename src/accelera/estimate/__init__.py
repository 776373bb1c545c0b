"""Estimate of what a model takes before it is run: memory by role, phase and element type; gain of compiling.

The package can be called: ``accelera.estimate(model)`` is ``accelera.estimate.estimate(model)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelera._lazily import make_callable, opened

if TYPE_CHECKING:
    from accelera.estimate.api import estimate as estimate
    from accelera.estimate.prediction import local_machine as local_machine
    from accelera.estimate.prediction import predict_compile as predict_compile
    from accelera.estimate.report import Estimate as Estimate
    from accelera.estimate.report import Phase as Phase
    from accelera.estimate.subject import subject_of as subject_of

_NAMES_BY_FILE = {
    "api": ("estimate",),
    "prediction": (
        "local_machine",
        "predict_compile",
    ),
    "report": (
        "Estimate",
        "Phase",
    ),
    "subject": ("subject_of",),
}
_FILE_OF = {name: file for file, names in _NAMES_BY_FILE.items() for name in names}

__all__ = [
    "Estimate",
    "Phase",
    "estimate",
    "local_machine",
    "predict_compile",
    "subject_of",
]

__getattr__, __dir__ = opened("accelera.estimate", _FILE_OF)

make_callable("accelera.estimate", "estimate")
