"""Contracts as tests to inherit, for the parts that others may bring. They need pytest and Hypothesis."""

from __future__ import annotations

from accelera.extras import needed_for

with needed_for("testing"):
    from accelera.testing.device_contract import DeviceContract
    from accelera.testing.executor_contract import ExecutorContract
    from accelera.testing.fake_gpu import FakeGpu, out_of_memory, sticky, transient
    from accelera.testing.store_contract import OutputContract, PublishedContract, StoreContract

__all__ = [
    "DeviceContract",
    "ExecutorContract",
    "FakeGpu",
    "OutputContract",
    "PublishedContract",
    "StoreContract",
    "out_of_memory",
    "sticky",
    "transient",
]
