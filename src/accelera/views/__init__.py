"""Metrics of the Copilot: the memory verdict of a trace on a machine, and the series behind its charts."""

from accelera.views.facts import MeasuredTrace, WhatIf
from accelera.views.fit import fit_view

__all__ = ["MeasuredTrace", "WhatIf", "fit_view"]
