"""Batches of work on CPU, GPU, both, or a cluster: chosen, run, and brought to an end when a device fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelera.execution.kernel import kernel as kernel  # now: the file, once loaded, would take its name
from accelera.lazily import opened

if TYPE_CHECKING:
    from accelera.execution.capabilities import HardwareCapabilities as HardwareCapabilities
    from accelera.execution.cluster.contract import Cluster as Cluster
    from accelera.execution.cluster.ray_cluster import RayCluster as RayCluster
    from accelera.execution.cluster.ray_executor import RayExecutor as RayExecutor
    from accelera.execution.cluster.training.rank import Rank as Rank
    from accelera.execution.cluster.training.training_run import TrainingRun as TrainingRun
    from accelera.execution.decision import Decision as Decision
    from accelera.execution.executors.automatic import AutoCpuExecutor as AutoCpuExecutor
    from accelera.execution.executors.contract import CpuExecutor as CpuExecutor
    from accelera.execution.executors.contract import GpuExecutor as GpuExecutor
    from accelera.execution.executors.processes import ProcessesExecutor as ProcessesExecutor
    from accelera.execution.executors.simulated import SimulatedExecutor as SimulatedExecutor
    from accelera.execution.executors.simulated import SimulatedReport as SimulatedReport
    from accelera.execution.executors.threads import ThreadsExecutor as ThreadsExecutor
    from accelera.execution.executors.torch_device import TorchDeviceExecutor as TorchDeviceExecutor
    from accelera.execution.failures import TaskFailure as TaskFailure
    from accelera.execution.kernel import Kernel as Kernel
    from accelera.execution.load import SystemLoad as SystemLoad
    from accelera.execution.manager import StrategyManager as StrategyManager
    from accelera.execution.profile import WorkloadProfile as WorkloadProfile
    from accelera.execution.report import StreamReport as StreamReport
    from accelera.execution.result import ExecutionResult as ExecutionResult
    from accelera.execution.retry import Retry as Retry
    from accelera.execution.shares import DeviceShare as DeviceShare
    from accelera.execution.stats import ManagerStats as ManagerStats
    from accelera.execution.strategy import ExecutionStrategy as ExecutionStrategy
    from accelera.execution.streaming.stream import Stream as Stream
    from accelera.execution.watching.observer import Observer as Observer
    from accelera.execution.watching.prometheus import PrometheusObserver as PrometheusObserver
    from accelera.execution.watching.tracing import OpenTelemetryObserver as OpenTelemetryObserver

_FILE_OF = {
    "Cluster": "cluster.contract",
    "AutoCpuExecutor": "executors.automatic",
    "CpuExecutor": "executors.contract",
    "Decision": "decision",
    "DeviceShare": "shares",
    "ExecutionResult": "result",
    "ExecutionStrategy": "strategy",
    "GpuExecutor": "executors.contract",
    "HardwareCapabilities": "capabilities",
    "Kernel": "kernel",
    "ManagerStats": "stats",
    "Observer": "watching.observer",
    "OpenTelemetryObserver": "watching.tracing",
    "ProcessesExecutor": "executors.processes",
    "PrometheusObserver": "watching.prometheus",
    "Rank": "cluster.training.rank",
    "RayCluster": "cluster.ray_cluster",
    "RayExecutor": "cluster.ray_executor",
    "Retry": "retry",
    "SimulatedExecutor": "executors.simulated",
    "SimulatedReport": "executors.simulated",
    "StrategyManager": "manager",
    "Stream": "streaming.stream",
    "StreamReport": "report",
    "SystemLoad": "load",
    "TaskFailure": "failures",
    "ThreadsExecutor": "executors.threads",
    "TorchDeviceExecutor": "executors.torch_device",
    "TrainingRun": "cluster.training.training_run",
    "WorkloadProfile": "profile",
    "kernel": "kernel",
}

__all__ = sorted(_FILE_OF)

__getattr__, __dir__ = opened("accelera.execution", _FILE_OF)
