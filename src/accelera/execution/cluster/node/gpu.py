"""The GPU of a node, whose outputs go home by way of the host."""

from __future__ import annotations

from accelera.execution.defaults import default_gpu
from accelera.execution.executors.contract import GpuExecutor
from accelera.execution.executors.torch_device import TorchDeviceExecutor


def node_gpu(device: str | None) -> GpuExecutor | None:
    """Return what computes on ``device``, or on the first accelerator of this node; None where there is none.

    Raises UnknownNameError for a name that is none, DeviceError when the node has no such device.
    """
    gpu = default_gpu(device)
    if isinstance(gpu, TorchDeviceExecutor):
        gpu.outputs_to = "cpu"
    return gpu
