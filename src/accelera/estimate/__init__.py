"""Estimate of what a model takes before it is run: memory by role, phase and element type; gain of compiling.

The package can be called: ``accelera.estimate(model)`` is ``accelera.estimate.estimate(model)``.
"""

from accelera._lazily import attach, make_callable

__getattr__, __dir__, __all__ = attach(__name__, __file__)
make_callable(__name__, "estimate")
