"""Contracts as tests to inherit, and fakes of devices, for the parts that others may bring.

They need pytest and Hypothesis; what is about torch loads it.
"""

from accelera._extras import require
from accelera._lazily import attach

require("testing", "pytest", "hypothesis")

__getattr__, __dir__, __all__ = attach(__name__, __file__)
