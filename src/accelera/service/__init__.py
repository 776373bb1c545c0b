"""Copilot's service: simulations, advice and plans over HTTP."""

from accelera._lazily import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
