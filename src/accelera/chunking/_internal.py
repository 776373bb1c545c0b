"""Names of this package for the other packages of Accelera; not part of the public interface."""

from accelera.chunking.contract import Region, covering
from accelera.chunking.strategies import create_chunking_strategy

__all__ = [
    "Region",
    "covering",
    "create_chunking_strategy",
]
