"""A machine whose driver is there and whose torch is not: the CPU computes, and nothing fails."""

from accelera import MatrixEngine, MemoryEfficientEngine, StrategyManager
from accelera.devices import get_device, names
from accelera.execution import HardwareCapabilities
from accelera.execution.hardware.capabilities import accelerators

names._DEVICE_FILES = ("/dev/null",)  # type: ignore[assignment]
assert get_device(None).name == "cpu"
assert accelerators(("/dev/null",)) == ()
assert not HardwareCapabilities.detect().gpu_available
assert StrategyManager.auto().execute([1, 2], lambda task: task + 1).outputs == [2, 3]
for engine in (MatrixEngine(), MemoryEfficientEngine(), MatrixEngine("sim:8MiB")):
    assert engine.matmul([[1.0, 2.0]], [[3.0], [4.0]]).numpy().tolist() == [[11]]
