"""Names of this package for the other packages of Accelera; not part of the public interface."""

from accelera.chunking.contract import Region, covering

__all__ = [
    "Region",
    "covering",
]
