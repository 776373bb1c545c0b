"""What one manager has done, summed over its batches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import final

from accelera.execution.shares import DeviceShare
from accelera.execution.stats import ManagerStats
from accelera.execution.watching.rate import FallbackRate
from accelera.execution.watching.watch import Watch

_LOGGER = logging.getLogger("accelera.execution")


@final
class Totals:
    """Counts batches when they are over; warns when too many of them fall back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executions = self._failures = self._fallbacks = 0
        self._per_device: dict[str, DeviceShare] = {}
        self._rate = FallbackRate()

    def count(self, watch: Watch, *, failed: bool = False) -> None:
        """Add what was seen of one batch."""
        reasons = watch.reasons
        with self._lock:
            self._executions += 1
            self._failures += failed
            self._fallbacks += bool(reasons)
            for device in tuple(watch.per_device):
                self._add(device, watch.per_device[device])
            warning = self._rate.count(reasons)
        if warning is not None:
            _LOGGER.warning("%s", warning)

    def count_done(self, per_device: Mapping[str, DeviceShare]) -> None:
        """Add a batch in which nothing failed."""
        with self._lock:
            self._executions += 1
            for device, share in per_device.items():
                self._add(device, share)
            self._rate.count(())

    def stats(self) -> ManagerStats:
        """Return the counts as they are now."""
        with self._lock:
            shares = {
                device: DeviceShare(share.tasks, share.batches, share.busy_s)
                for device, share in self._per_device.items()
            }
            return ManagerStats(self._executions, self._failures, self._fallbacks, self._rate.rate, shares)

    def _add(self, device: str, share: DeviceShare) -> None:
        total = self._per_device.get(device)
        if total is None:
            total = self._per_device[device] = DeviceShare()
        total.tasks += share.tasks
        total.batches += share.batches
        total.busy_s += share.busy_s
