"""Devices that compute: CPU, GPUs through torch, and simulated ones.

Files are loaded when a name of theirs is first used: counting processors does not load NumPy.
"""

from accelera._lazily import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
