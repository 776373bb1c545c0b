"""The engine: matrices, the engines that multiply them, and the observers of a run.

Everything is loaded when it is first named, so that work on files alone never loads torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelera._lazily import opened
from accelera.engine.registry import register_product

if TYPE_CHECKING:
    from accelera.engine.calibration import DiskRates as DiskRates
    from accelera.engine.calibration import LinkRates as LinkRates
    from accelera.engine.calibration import cost_model as cost_model
    from accelera.engine.calibration import disk_rates as disk_rates
    from accelera.engine.calibration import link_rates as link_rates
    from accelera.engine.calibration import memory_bytes_per_s as memory_bytes_per_s
    from accelera.engine.engines import MatrixEngine as MatrixEngine
    from accelera.engine.engines import MemoryEfficientEngine as MemoryEfficientEngine
    from accelera.engine.engines import default_engine as default_engine
    from accelera.engine.engines import set_default_engine as set_default_engine
    from accelera.engine.expression import Expr as Expr
    from accelera.engine.expression import Reduction as Reduction
    from accelera.engine.expression import concatenate as concatenate
    from accelera.engine.expression import lazy as lazy
    from accelera.engine.expression import where as where
    from accelera.engine.journal import find_journal as find_journal
    from accelera.engine.journal import journal_path as journal_path
    from accelera.engine.journal import read_journal as read_journal
    from accelera.engine.matrix import Matrix as Matrix
    from accelera.engine.report import Progress as Progress
    from accelera.engine.report import RunObserver as RunObserver
    from accelera.engine.report import RunReport as RunReport

_NAMES_BY_MODULE = {
    "calibration": ("DiskRates", "LinkRates", "cost_model", "disk_rates", "link_rates", "memory_bytes_per_s"),
    "engines": ("MatrixEngine", "MemoryEfficientEngine", "default_engine", "set_default_engine"),
    "expression": ("Expr", "Reduction", "concatenate", "lazy", "where"),
    "journal": ("find_journal", "journal_path", "read_journal"),
    "matrix": ("Matrix",),
    "report": ("RunObserver", "Progress", "RunReport"),
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = [*_MODULE_OF]

__getattr__, __dir__ = opened("accelera.engine", _MODULE_OF)


@register_product
def _product(a: Any, b: Any) -> Any:
    """Return ``a @ b`` of matrices, by the default engine."""
    from accelera.engine.engines import default_engine as engine

    return engine().matmul(a, b)
