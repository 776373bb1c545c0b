"""The engine: matrices, the engines that multiply them, and the observers of a run.

Everything is loaded when it is first named, so that work on files alone never loads torch.
"""

from typing import Any

from accelera._lazily import attach
from accelera.engine.registry import register_product

__getattr__, __dir__, __all__ = attach(__name__, __file__)


@register_product
def _product(a: Any, b: Any) -> Any:
    from accelera.engine.engines import default_engine

    return default_engine().matmul(a, b)
