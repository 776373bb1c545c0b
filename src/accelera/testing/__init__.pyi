from .device_contract import DeviceContract as DeviceContract
from .device_errors import sticky as sticky
from .executor_contract import ExecutorContract as ExecutorContract
from .fake_cuda import FakeCuda as FakeCuda
from .fake_gpu import FakeGpu as FakeGpu
from .local_cluster import LocalCluster as LocalCluster
