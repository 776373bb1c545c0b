"""Names of this package for the other packages of Accelera; not part of the public interface."""

from accelera._lazily import attach

__getattr__, __dir__, __all__ = attach("accelera.memory", __file__)
