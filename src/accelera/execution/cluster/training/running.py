"""What runs in the process of a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accelera.execution.cluster.connecting import check_versions, own_versions, the_ray
from accelera.execution.cluster.packing import unpack
from accelera.execution.cluster.training.rank import Rank
from accelera.execution.cluster.training.storage import check_shared


def run_rank(task: dict[str, Any]) -> None:
    """Run the function of ``task`` as one of the ranks; called by Ray Train."""
    ray = the_ray()
    folder = Path(task["folder"])
    who = f"rank {ray.train.get_context().get_world_rank()} on {ray.util.get_node_ip_address()}"
    check_versions(own_versions(ray), task["versions"], who)
    check_shared(folder, task["mark"], who)
    unpack(task["function"])(Rank(ray.train, folder, ray.train.torch.get_device()))
