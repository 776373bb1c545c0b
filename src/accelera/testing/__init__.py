"""Contracts as tests to inherit, for the parts that others may bring. They need pytest and Hypothesis."""

from __future__ import annotations

from accelera.testing.device_contract import DeviceContract
from accelera.testing.store_contract import OutputContract, PublishedContract, StoreContract

__all__ = ["DeviceContract", "OutputContract", "PublishedContract", "StoreContract"]
