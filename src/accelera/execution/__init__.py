"""Batches of work on CPU, GPU, both, or a cluster, with graceful fallback when a device fails."""

from accelera._lazily import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
