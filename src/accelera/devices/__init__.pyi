from .contract import Device as Device
from .cpu import CpuDevice as CpuDevice
from .names import get_device as get_device
from .simulated import SimulatedDevice as SimulatedDevice
