"""Jobs of the service on a Ray cluster, all of whose nodes are on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelera.errors import ClusterError, SettingError
from accelera.service import ServiceSettings, create_app
from accelera.service.database import sqlite_url
from accelera.service.settings import own_addresses
from accelera.simulator import generate_synthetic_trace, lower_bound
from tests.execution.ray_nodes import two_nodes
from tests.service.asking import ENDLESS, TestClient, reply_to, state_at_end

SMALL = {"model_type": "MLP", "num_layers": 2}
REMOTE = "10.255.255.1:6379"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with two_nodes() as cluster:
        yield cluster.address


def test_a_cluster_that_is_not_there_is_named() -> None:  # before one is: a program has one at a time
    from accelera.service.server import serve

    settings = ServiceSettings(ray_address="127.0.0.1:1")
    with pytest.raises(ClusterError, match="no running cluster answers"):
        serve(settings, print)


def test_jobs_are_done_by_the_nodes(address: str, tmp_path: Path) -> None:
    settings = ServiceSettings(database_url=sqlite_url(tmp_path / "copilot.db"), ray_address=address)
    with TestClient(create_app(settings)) as client:
        body = {"source": SMALL, "capacities": ["50%"]}
        found = reply_to(client, "/v1/bounds", body).json()
        trace = generate_synthetic_trace("MLP", 2)
        assert found["lower_bound_bytes"] == [lower_bound(trace, found["capacities"][0])]
        wrong = client.post("/v1/advise?wait=30", json={"source": "0" * 64, "capacity": "1GiB"})
        assert "there is no trace" in wrong.text

        job = client.post("/v1/sweeps", json=ENDLESS).headers["location"]
        while client.get(job).json()["state"] == "queued":
            time.sleep(0.05)
        assert client.post(f"{job}/cancel").status_code == 202
        assert state_at_end(client, job) == "cancelled"
        again = reply_to(client, "/v1/bounds?fresh=true", body)
        assert again.status_code == 200, "the node works again after its agent was killed"


def test_a_file_of_this_machine_is_no_database_for_others() -> None:
    for url in ("", "sqlite:////tmp/copilot.db"):
        with pytest.raises(SettingError, match="postgresql"):
            ServiceSettings(ray_address=REMOTE, database_url=url)
    ServiceSettings(ray_address=REMOTE, database_url="postgresql://me@db/copilot")
    here = next(each for each in own_addresses() if each.count(".") == 3)
    for address in ("auto", "localhost:6379", "127.0.0.1:6379", f"{here}:6379"):
        assert ServiceSettings(ray_address=address).ray_address == address
    assert json.dumps(sorted(own_addresses()))
