"""Broken uploads are refused, each with a reason: nothing stored is lost, and nothing of them stays."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from accelera.service import ServiceSettings, create_app
from accelera.service.parser_process import MEMORY_BYTES
from accelera.service.upload_parser import UploadParser
from tests.service.asking import TestClient
from tests.service.conftest import PATIENCE_S
from tests.service.corpus import Upload, bombs, good, uploads

PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder in which temporary files are made."""
    folder = tmp_path_factory.mktemp("scratch")
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    yield folder
    tempfile.tempdir = before


@pytest.fixture(scope="module")
def client(scratch: Path) -> Iterator[TestClient]:
    # Without workers, which look for jobs: only what is uploaded opens files.
    with TestClient(create_app(ServiceSettings(workers=0)), raise_server_exceptions=False) as found:
        yield found


def parser_of(client: TestClient) -> Any:
    """Return the parser of uploads of the service, an ``UploadParser``."""
    application: Any = client.app
    return application.state.parser


def sent(client: TestClient, upload: Upload) -> Any:
    return client.post("/v1/traces", params={"name": upload.name}, content=upload.content)


def stored(client: TestClient) -> dict[str, bytes]:
    """Return the contents of all stored traces by digest."""
    found: list[Any] = []
    while True:
        page = client.get("/v1/traces", params={"limit": 200, "offset": len(found)}).json()
        found += page["traces"]
        if len(found) == page["total"]:
            return {one["digest"]: client.get(f"/v1/traces/{one['digest']}/content").content for one in found}


@contextmanager
def health_asked(client: TestClient) -> Iterator[None]:
    """Ask for the service's health all the while; whenever it is asked, it is well."""
    statuses: set[int] = set()
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.1):
            statuses.add(client.get("/v1/health").status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()
    assert statuses <= {200}


def check(client: TestClient, upload: Upload) -> int:
    """Send an upload and look at the answer; return its status."""
    reply = sent(client, upload)
    assert reply.status_code in (200, 201, 413, 422), f"{upload.name}: {reply.status_code} {reply.text}"
    if reply.status_code in (413, 422):
        assert reply.headers["content-type"] == PROBLEM
        assert reply.json()["detail"]
        assert "/proc/" not in reply.text, "the service's own files are nobody's concern"
    return reply.status_code


def test_no_broken_upload_is_answered_with_500_or_costs_anything(
    client: TestClient, scratch: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for end, content in good().items():
        assert sent(client, Upload(f"good{end}", content)).status_code in (200, 201), end
    before = stored(client)
    files = sorted(scratch.iterdir())
    open_files = len(os.listdir("/proc/self/fd"))
    corpus = uploads()
    assert len(corpus) >= 500
    with caplog.at_level(logging.ERROR), health_asked(client):
        counts = Counter(check(client, upload) for upload in corpus)
    assert counts[422] > 300, counts
    assert not caplog.records, "no fault of a reader"
    assert sorted(scratch.iterdir()) == files
    assert abs(len(os.listdir("/proc/self/fd")) - open_files) <= 2
    assert not Path("EXECUTED").exists()
    after = stored(client)
    assert {digest: after[digest] for digest in before} == before
    for digest, content in after.items():
        again = sent(client, Upload("again.parquet", content))
        assert (again.status_code, again.json()["digest"]) == (200, digest), "what was taken is sound"


@pytest.mark.parametrize(("name", "make"), [*bombs()], ids=lambda each: each if isinstance(each, str) else "")
def test_a_bomb_costs_its_child_and_not_the_service(client: TestClient, name: str, make: Any) -> None:
    upload = make()
    parser = parser_of(client).pid
    with health_asked(client):
        check(client, upload)
    assert parser_of(client).pid == parser, "it forks, and is not harmed"
    digest = sent(client, Upload("good.parquet", good()[".parquet"])).json()["digest"]
    assert client.get(f"/v1/traces/{digest}").status_code == 200


def test_a_table_that_takes_too_much_memory_is_told_the_limit(client: TestClient, tmp_path: Path) -> None:
    """Its rows share one long text in the file, and have one each in memory: 8 GB of under 1 MB."""
    rows = 8_000_000
    text = pyarrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["x" * 1000])
    table = pyarrow.table({"tensor_id": text, "size_bytes": np.ones(rows, np.int64)})
    parquet.write_table(table, tmp_path / "bomb.parquet", store_schema=False)
    content = (tmp_path / "bomb.parquet").read_bytes()
    assert len(content) < 1 << 20
    reply = sent(client, Upload("bomb.parquet", content))
    assert reply.status_code == 413, reply.text
    assert reply.json()["limit"] == MEMORY_BYTES
    assert f"more than {MEMORY_BYTES >> 20} MiB of memory" in reply.json()["detail"]


def test_health_is_answered_while_an_upload_is_read(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read until health has been answered: its parser is held."""
    parser: UploadParser = parser_of(client)
    begun, parse = threading.Event(), parser.parse

    def noted(*arguments: Any) -> Any:
        begun.set()
        return parse(*arguments)

    monkeypatch.setattr(parser, "parse", noted)
    parser.start()
    held = parser.pid
    assert held is not None
    with ThreadPoolExecutor(1) as caller:
        os.kill(held, signal.SIGSTOP)
        try:
            reply = caller.submit(sent, client, Upload("good.parquet", good()[".parquet"]))
            assert begun.wait(PATIENCE_S)
            assert client.get("/v1/health").status_code == 200
            assert not reply.done()
        finally:
            os.kill(held, signal.SIGCONT)
        assert reply.result().status_code in (200, 201)


def test_a_parser_that_is_killed_is_started_again(client: TestClient) -> None:
    upload = Upload("good.parquet", good()[".parquet"])
    sent(client, upload)
    killed = parser_of(client).pid
    os.kill(killed, 9)
    assert sent(client, upload).status_code == 200
    assert parser_of(client).pid != killed


def test_a_parser_that_dies_slowly_costs_no_upload(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken the request when it is killed, and it takes a second to end."""
    parser: UploadParser = parser_of(client)
    parser.start()
    held, process = parser.pid, parser._process
    begun, asked = threading.Event(), parser._send_request

    def noted(*arguments: Any) -> Any:
        begun.set()
        return asked(*arguments)

    assert process is not None
    assert held is not None
    real = process.wait

    def wait(timeout: float | None = None) -> int:
        if timeout is not None and timeout < 1:
            raise subprocess.TimeoutExpired("the parser", timeout)
        return real(timeout)

    monkeypatch.setattr(parser, "_send_request", noted)
    monkeypatch.setattr(process, "wait", wait)
    os.kill(held, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as caller:
        reply = caller.submit(sent, client, Upload("good.parquet", good()[".parquet"]))
        assert begun.wait(PATIENCE_S)
        time.sleep(0.2)  # until it has been sent; before, another path is taken to the same answer
        os.kill(held, signal.SIGKILL)
        assert reply.result().status_code in (200, 201)
