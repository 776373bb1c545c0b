"""Capture of a PyTorch program as a trace: every access of every tensor, for real or by shapes alone.

The package can be called: ``accelera.capture(model, inputs)`` is ``accelera.capture.capture(model, inputs)``.
What loads torch is loaded when it is first named.
"""

from accelera._lazily import attach, make_callable

__getattr__, __dir__, __all__ = attach(__name__, __file__)
make_callable(__name__, "capture")
