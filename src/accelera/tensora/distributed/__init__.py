"""Training by several ranks: groups of processes or devices, averaged gradients, shards of an optimizer."""

from __future__ import annotations

from accelera.tensora.distributed.checkpoint import DistributedCheckpoint
from accelera.tensora.distributed.data_parallel import DistributedDataParallel
from accelera.tensora.distributed.group import (
    CollectiveWork,
    ProcessGroup,
    init_process_group,
    run_on_devices,
)
from accelera.tensora.distributed.sharded_optimizer import ZeroRedundancyOptimizer

__all__ = [
    "CollectiveWork",
    "DistributedCheckpoint",
    "DistributedDataParallel",
    "ProcessGroup",
    "ZeroRedundancyOptimizer",
    "init_process_group",
    "run_on_devices",
]
