"""Large calls of PyTorch as it runs, computed within a budget.

What loads torch is loaded when it is first named. ``capture``, ``estimate`` and ``predict_compile`` live in
packages of their own and stay importable from here.
"""

from accelera._lazily import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
