"""What a model takes before it is run: memory by role, phase and element type."""

from __future__ import annotations

from accelera.interceptor.estimating.estimate import estimate
from accelera.interceptor.estimating.phase import Phase
from accelera.interceptor.estimating.report import Estimate

__all__ = ["Estimate", "Phase", "estimate"]
