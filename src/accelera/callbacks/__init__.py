"""Callbacks that log the memory plan and the measured memory of an offloaded model while it trains.

``LightningCallback`` is for Lightning, ``TransformersCallback`` for the trainer of transformers, and
``log_memory`` for a training loop with a TensorBoard writer. A framework is imported when its callback is
first used.
"""

from accelera._lazily import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
