"""Contracts as tests to inherit, and fakes of devices, for the parts that others may bring.

They need pytest and Hypothesis; what is about torch loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelera._extras import require
from accelera._lazily import opened

require("testing", "pytest", "hypothesis")

if TYPE_CHECKING:
    from accelera.testing.bridges import BridgeCpu as BridgeCpu
    from accelera.testing.bridges import BridgeGpu as BridgeGpu
    from accelera.testing.caching_allocator import CachingAllocator as CachingAllocator
    from accelera.testing.device_contract import DeviceContract as DeviceContract
    from accelera.testing.device_errors import out_of_memory as out_of_memory
    from accelera.testing.device_errors import sticky as sticky
    from accelera.testing.device_errors import transient as transient
    from accelera.testing.executor_contract import ExecutorContract as ExecutorContract
    from accelera.testing.fake_cuda import FakeCuda as FakeCuda
    from accelera.testing.fake_gpu import FakeGpu as FakeGpu
    from accelera.testing.happens_before import HOST as HOST
    from accelera.testing.happens_before import DataRaceError as DataRaceError
    from accelera.testing.happens_before import HappensBefore as HappensBefore
    from accelera.testing.happens_before import Span as Span
    from accelera.testing.local_cluster import LocalCluster as LocalCluster
    from accelera.testing.store_contract import OutputContract as OutputContract
    from accelera.testing.store_contract import PublishedContract as PublishedContract
    from accelera.testing.store_contract import StoreContract as StoreContract

_FILE_OF = {
    "BridgeCpu": "bridges",
    "BridgeGpu": "bridges",
    "CachingAllocator": "caching_allocator",
    "DataRaceError": "happens_before",
    "DeviceContract": "device_contract",
    "ExecutorContract": "executor_contract",
    "FakeCuda": "fake_cuda",
    "FakeGpu": "fake_gpu",
    "HOST": "happens_before",
    "HappensBefore": "happens_before",
    "LocalCluster": "local_cluster",
    "OutputContract": "store_contract",
    "PublishedContract": "store_contract",
    "Span": "happens_before",
    "StoreContract": "store_contract",
    "out_of_memory": "device_errors",
    "sticky": "device_errors",
    "transient": "device_errors",
}

__all__ = [*_FILE_OF]

__getattr__, __dir__ = opened("accelera.testing", _FILE_OF)
