"""Matrix work in less memory than it needs: plan first, then run inside a hard budget.

Everything below is loaded when it is first named; ``import accelera`` itself loads no package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from accelera._distribution import warn_of_conflict

if TYPE_CHECKING:
    from accelera import _package_types
    from accelera import charts as charts
    from accelera import chunking as chunking
    from accelera import devices as devices
    from accelera import engine as engine
    from accelera import errors as errors
    from accelera import execution as execution
    from accelera import interceptor as interceptor
    from accelera import memory as memory
    from accelera import plan as plan
    from accelera import policy as policy
    from accelera import report as report
    from accelera import service as service
    from accelera import settings as settings
    from accelera import simulator as simulator
    from accelera import stores as stores
    from accelera import tensora as tensora
    from accelera import testing as testing
    from accelera import trace as trace
    from accelera import units as units
    from accelera import views as views
    from accelera.chunking import AdaptiveChunking as AdaptiveChunking
    from accelera.chunking import ChunkingStrategy as ChunkingStrategy
    from accelera.chunking import ChunkIterator as ChunkIterator
    from accelera.chunking import RowChunking as RowChunking
    from accelera.chunking import TileChunking as TileChunking
    from accelera.engine import Matrix as Matrix
    from accelera.engine import MatrixEngine as MatrixEngine
    from accelera.engine import MemoryEfficientEngine as MemoryEfficientEngine
    from accelera.engine import concatenate as concatenate
    from accelera.engine import lazy as lazy
    from accelera.errors import AcceleraError as AcceleraError
    from accelera.errors import ArgumentError as ArgumentError
    from accelera.errors import BackendMissingError as BackendMissingError
    from accelera.errors import BudgetExceededError as BudgetExceededError
    from accelera.errors import ClusterError as ClusterError
    from accelera.errors import DeviceError as DeviceError
    from accelera.errors import DeviceMemoryError as DeviceMemoryError
    from accelera.errors import DTypeError as DTypeError
    from accelera.errors import IndexingError as IndexingError
    from accelera.errors import JobError as JobError
    from accelera.errors import PoisonTaskError as PoisonTaskError
    from accelera.errors import ScorerError as ScorerError
    from accelera.errors import ServiceError as ServiceError
    from accelera.errors import ServiceUnreachableError as ServiceUnreachableError
    from accelera.errors import SettingError as SettingError
    from accelera.errors import ShapeError as ShapeError
    from accelera.errors import StoreChangedError as StoreChangedError
    from accelera.errors import StoreError as StoreError
    from accelera.errors import StoreFormatError as StoreFormatError
    from accelera.errors import TaskTooLargeError as TaskTooLargeError
    from accelera.errors import TraceFormatError as TraceFormatError
    from accelera.errors import TransferError as TransferError
    from accelera.errors import UnfinishedError as UnfinishedError
    from accelera.errors import UnknownNameError as UnknownNameError
    from accelera.errors import UnknownOutcomeError as UnknownOutcomeError
    from accelera.estimate import predict_compile as predict_compile
    from accelera.execution import CpuExecutor as CpuExecutor
    from accelera.execution import ExecutionResult as ExecutionResult
    from accelera.execution import ExecutionStrategy as ExecutionStrategy
    from accelera.execution import GpuExecutor as GpuExecutor
    from accelera.execution import HardwareCapabilities as HardwareCapabilities
    from accelera.execution import StrategyManager as StrategyManager
    from accelera.execution import SystemLoad as SystemLoad
    from accelera.execution import WorkloadProfile as WorkloadProfile
    from accelera.execution import kernel as kernel
    from accelera.interceptor import disable as disable
    from accelera.interceptor import enable as enable
    from accelera.interceptor import intercepted as intercepted
    from accelera.interceptor import stats as stats
    from accelera.memory import BufferPool as BufferPool
    from accelera.memory import MemoryManager as MemoryManager
    from accelera.offload import Offloaded as Offloaded
    from accelera.offload import OffloadPlan as OffloadPlan
    from accelera.offload import offload_checkpoint as offload_checkpoint
    from accelera.offload import offloaded as offloaded
    from accelera.offload import plan_offload as plan_offload
    from accelera.plan import Plan as Plan
    from accelera.simulator import advise as advise
    from accelera.simulator import generate_synthetic_trace as generate_synthetic_trace
    from accelera.simulator import predict_eviction_scores as predict_eviction_scores
    from accelera.simulator import simulate as simulate
    from accelera.simulator import simulate_cache as simulate_cache
    from accelera.simulator import sweep as sweep
    from accelera.simulator import validate_trace as validate_trace
    from accelera.stores import open_store as open_store
    from accelera.trace import Trace as Trace
    from accelera.units import format_bytes as format_bytes
    from accelera.units import parse_bytes as parse_bytes

    capture: _package_types.CapturePackage
    estimate: _package_types.EstimatePackage
    offload: _package_types.OffloadPackage

__version__ = "0.1.0"

_NAMES_BY_PACKAGE = {
    "engine": ("Matrix", "MatrixEngine", "MemoryEfficientEngine", "concatenate", "lazy"),
    "plan": ("Plan",),
    "capture": ("capture",),
    "estimate": ("estimate", "predict_compile"),
    "interceptor": ("disable", "enable", "intercepted", "stats"),
    "offload": (
        "offload",
        "offloaded",
        "offload_checkpoint",
        "plan_offload",
        "Offloaded",
        "OffloadPlan",
    ),
    "execution": (
        "StrategyManager",
        "ExecutionStrategy",
        "ExecutionResult",
        "WorkloadProfile",
        "HardwareCapabilities",
        "SystemLoad",
        "CpuExecutor",
        "GpuExecutor",
        "kernel",
    ),
    "chunking": ("RowChunking", "TileChunking", "AdaptiveChunking", "ChunkingStrategy", "ChunkIterator"),
    "memory": ("MemoryManager", "BufferPool"),
    "simulator": (
        "advise",
        "generate_synthetic_trace",
        "predict_eviction_scores",
        "simulate",
        "simulate_cache",
        "sweep",
        "validate_trace",
    ),
    "stores": ("open_store",),
    "trace": ("Trace",),
    "units": ("parse_bytes", "format_bytes"),
    "errors": (
        "AcceleraError",
        "ShapeError",
        "IndexingError",
        "DTypeError",
        "BudgetExceededError",
        "DeviceMemoryError",
        "DeviceError",
        "StoreError",
        "StoreFormatError",
        "StoreChangedError",
        "TraceFormatError",
        "UnknownNameError",
        "BackendMissingError",
        "ScorerError",
        "UnfinishedError",
        "TransferError",
        "PoisonTaskError",
        "UnknownOutcomeError",
        "TaskTooLargeError",
        "ClusterError",
        "ServiceError",
        "ServiceUnreachableError",
        "JobError",
        "ArgumentError",
        "SettingError",
    ),
}
_PACKAGES = (
    "capture",
    "charts",
    "chunking",
    "devices",
    "engine",
    "errors",
    "estimate",
    "execution",
    "interceptor",
    "memory",
    "offload",
    "plan",
    "policy",
    "report",
    "service",
    "settings",
    "simulator",
    "stores",
    "tensora",
    "testing",
    "trace",
    "units",
    "views",
)
"""Packages and modules for users, imported when they are first named."""
_PACKAGE_OF = {name: package for package, names in _NAMES_BY_PACKAGE.items() for name in names}

__all__ = ["__version__", *_PACKAGE_OF]


def __getattr__(name: str) -> Any:
    package_name = name if name in _PACKAGES else _PACKAGE_OF.get(name)
    if package_name is None:
        raise AttributeError(f"module 'accelera' has no attribute {name!r}")
    try:
        package = importlib.import_module(f"accelera.{package_name}")
    except ImportError as error:
        from accelera._extras import stand_in

        return stand_in(name, error)
    value = package if name == package_name else getattr(package, name)
    if name == package_name or name in vars(package):  # a stand-in may be replaced later
        globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES})


warn_of_conflict()
