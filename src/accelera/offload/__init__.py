"""Torch modules bigger than their device: weights, gradients and states stream through the buffer pool.

The package can be called: ``accelera.offload(model, budget)`` is ``accelera.offload.offload(model, budget)``.
"""

from accelera._lazily import attach, make_callable

__getattr__, __dir__, __all__ = attach(__name__, __file__)
make_callable(__name__, "offload")
