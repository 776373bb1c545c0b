"""Memory: sizes of this machine, budgets, and the hierarchies that the simulator replays.

Files are loaded when a name of theirs is first used: reading the size of memory does not load NumPy.
"""

from accelera._lazily import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
