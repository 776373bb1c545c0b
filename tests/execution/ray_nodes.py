"""A cluster of Ray on this machine, for tests that need nodes to come and to die."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as LocalCluster

from accelera.execution import RayExecutor

SMALL: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}
"""One node."""
PATIENCE_S = 600
"""How long a node may take to join on a busy machine."""
_QUICK = {
    "health_check_failure_threshold": 3,
    "health_check_period_ms": 300,
    "memory_monitor_refresh_ms": 0,
}
"""A dead node is noticed within a second or two; workers live on though others fill the machine's RAM."""


@contextmanager
def two_nodes(**of_the_second: Any) -> Iterator[LocalCluster]:
    """Yield a head and a node with one processor each, to which the program is connected."""
    head = {**SMALL, "include_dashboard": False, "_system_config": _QUICK}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # or it hangs on a file in the home of whoever runs this
        cluster = LocalCluster(initialize_head=True, head_node_args=head)
        cluster.add_node(**SMALL, **of_the_second)
        ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


def wait_for_nodes(executor: RayExecutor, count: int) -> None:
    """Return when so many nodes have joined, or patience ends."""
    until_s = time.monotonic() + PATIENCE_S
    while len(executor.cluster.nodes()) < count and time.monotonic() < until_s:
        time.sleep(0.05)
