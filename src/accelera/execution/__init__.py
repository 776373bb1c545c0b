"""Batches of work on CPU, GPU, both, or a cluster: chosen, run, and brought to an end when a device fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelera._lazily import opened
from accelera.execution.kernel import kernel as kernel  # now: the file, once loaded, would take its name

if TYPE_CHECKING:
    from accelera.execution.arguments import WorkloadProfile as WorkloadProfile
    from accelera.execution.cluster.contract import Cluster as Cluster
    from accelera.execution.cluster.ray_cluster import RayCluster as RayCluster
    from accelera.execution.cluster.ray_executor import RayExecutor as RayExecutor
    from accelera.execution.cluster.training.rank import Rank as Rank
    from accelera.execution.cluster.training.trainer import TrainingRun as TrainingRun
    from accelera.execution.executors.auto import AutoCpuExecutor as AutoCpuExecutor
    from accelera.execution.executors.lanes import CpuExecutor as CpuExecutor
    from accelera.execution.executors.lanes import GpuExecutor as GpuExecutor
    from accelera.execution.executors.processes.executor import ProcessesExecutor as ProcessesExecutor
    from accelera.execution.executors.simulated import SimulatedExecutor as SimulatedExecutor
    from accelera.execution.executors.simulated import SimulatedReport as SimulatedReport
    from accelera.execution.executors.threads import ThreadsExecutor as ThreadsExecutor
    from accelera.execution.executors.torch_device import TorchDeviceExecutor as TorchDeviceExecutor
    from accelera.execution.hardware.capabilities import HardwareCapabilities as HardwareCapabilities
    from accelera.execution.hardware.load import SystemLoad as SystemLoad
    from accelera.execution.kernel import Kernel as Kernel
    from accelera.execution.manager import StrategyManager as StrategyManager
    from accelera.execution.observability.observer import Observer as Observer
    from accelera.execution.observability.opentelemetry import OpenTelemetryObserver as OpenTelemetryObserver
    from accelera.execution.observability.prometheus import PrometheusObserver as PrometheusObserver
    from accelera.execution.result import DeviceShare as DeviceShare
    from accelera.execution.result import ExecutionResult as ExecutionResult
    from accelera.execution.result import ManagerStats as ManagerStats
    from accelera.execution.result import StreamReport as StreamReport
    from accelera.execution.result import TaskFailure as TaskFailure
    from accelera.execution.strategy.strategy import Decision as Decision
    from accelera.execution.strategy.strategy import ExecutionStrategy as ExecutionStrategy
    from accelera.execution.streaming.stream import TaskStream as TaskStream
    from accelera.execution.tasks.retry import Retry as Retry

_FILE_OF = {
    "Cluster": "cluster.contract",
    "AutoCpuExecutor": "executors.auto",
    "CpuExecutor": "executors.lanes",
    "Decision": "strategy.strategy",
    "DeviceShare": "result",
    "ExecutionResult": "result",
    "ExecutionStrategy": "strategy.strategy",
    "GpuExecutor": "executors.lanes",
    "HardwareCapabilities": "hardware.capabilities",
    "Kernel": "kernel",
    "ManagerStats": "result",
    "Observer": "observability.observer",
    "OpenTelemetryObserver": "observability.opentelemetry",
    "ProcessesExecutor": "executors.processes.executor",
    "PrometheusObserver": "observability.prometheus",
    "Rank": "cluster.training.rank",
    "RayCluster": "cluster.ray_cluster",
    "RayExecutor": "cluster.ray_executor",
    "Retry": "tasks.retry",
    "SimulatedExecutor": "executors.simulated",
    "SimulatedReport": "executors.simulated",
    "StrategyManager": "manager",
    "TaskStream": "streaming.stream",
    "StreamReport": "result",
    "SystemLoad": "hardware.load",
    "TaskFailure": "result",
    "ThreadsExecutor": "executors.threads",
    "TorchDeviceExecutor": "executors.torch_device",
    "TrainingRun": "cluster.training.trainer",
    "WorkloadProfile": "arguments",
    "kernel": "kernel",
}

__all__ = sorted(_FILE_OF)

__getattr__, __dir__ = opened("accelera.execution", _FILE_OF)
