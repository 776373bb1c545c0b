"""Limits are refusals that name them; what is odd in a request is refused, and never a fault."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvicorn

from accelera.service import ServiceLimits, ServiceSettings, connections, create_app, simulation
from accelera.service.database import Database
from accelera.service.replies import ReplyCache
from accelera.simulator import simulate
from tests.service.asking import ENDLESS, TestClient, reply_to
from tests.service.conftest import PATIENCE_S
from tests.service.corpus import good

PROBLEM = "application/problem+json"
SMALL = {"model_type": "MLP", "num_layers": 2}
ROWS = json.dumps([{"tensor_id": f"t{n}", "size_mb": 1} for n in range(50)]).encode()
JSON = {"Content-Type": "application/json"}

REFUSALS: dict[str, tuple[dict[str, Any], str, str, Any, int, int]] = {
    "body": ({"body_bytes": 100}, "POST", "/v1/simulate", b'{"seed": 1}' + b" " * 100, 413, 100),
    "upload": ({"upload_bytes": 100}, "POST", "/v1/traces?name=a.json", ROWS, 413, 100),
    "uploads at once": ({"uploads": 0}, "POST", "/v1/traces?name=a.json", ROWS, 503, 0),
    "length of an upload": ({"stored_accesses": 10}, "POST", "/v1/traces?name=a.json", ROWS, 413, 10),
    "disk": ({"stored_bytes": 10}, "POST", "/v1/traces?name=a.json", ROWS, 413, 10),
    "length of a trace": ({"accesses": 100}, "POST", "/v1/simulate", {"num_layers": 12}, 413, 100),
    "length of a job's": (
        {"accesses": 100},
        "POST",
        "/v1/sweeps",
        {"source": {"num_layers": 100}},
        413,
        100,
    ),
    "length of a fit's": (
        {"accesses": 100},
        "POST",
        "/v1/fit",
        {"source": {"num_layers": 12}, "budget": "1GB"},
        413,
        100,
    ),
    "waiting jobs": ({"waiting_jobs": 0}, "POST", "/v1/sweeps", {"source": SMALL}, 503, 0),
    "concurrency": ({"concurrent_requests": 0}, "GET", "/v1/traces", None, 503, 0),
    "rate": ({"requests_per_minute": 1}, "GET", "/v1/traces", None, 429, 1),
}


@pytest.mark.parametrize(
    ("limits", "method", "path", "body", "status", "limit"), REFUSALS.values(), ids=REFUSALS.keys()
)
def test_a_refusal_names_its_limit(
    one_minute: None, limits: dict[str, int], method: str, path: str, body: Any, status: int, limit: int
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body)
    with TestClient(create_app(ServiceSettings(limits=ServiceLimits(**limits)))) as client:
        client.request("GET", "/v1/traces")
        reply = client.request(method, path, content=None if body is None else content, headers=JSON)
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == PROBLEM
    assert reply.json()["limit"] == limit
    assert f"{limit:,}" in reply.json()["detail"]


def test_layers_beyond_the_most_are_refused_by_name(client: TestClient) -> None:
    reply = client.post("/v1/simulate", json={"num_layers": 513})
    assert reply.status_code == 422
    assert "num_layers" in reply.json()["detail"]
    assert "512" in reply.json()["detail"]


def test_a_job_that_takes_too_long_names_the_limit() -> None:
    with TestClient(create_app(ServiceSettings(limits=ServiceLimits(job_s=0.5)))) as client:
        reply = reply_to(client, "/v1/sweeps", ENDLESS)
    assert reply.status_code == 422
    assert "0.5 s" in reply.json()["detail"]


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "a/b.csv",
        "a\\b.csv",
        "a\x00.csv",
        "a\n.csv",
        "",
        "a" * 201 + ".csv",
        "..",
        "none",
        "%2e%2e",
    ],
)
def test_no_name_reaches_the_file_system(client: TestClient, name: str) -> None:
    reply = client.post("/v1/traces", params={"name": name}, content=ROWS)
    assert reply.status_code == 422, reply.text
    assert reply.headers["content-type"] == PROBLEM


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd.csv".lstrip("/").replace("/", "∕"), "ä ö.JSON", "💥.json", "-rf *.json", "$(x).json"],
)
def test_odd_names_are_only_names(client: TestClient, name: str) -> None:
    content = ROWS if name.lower().endswith("json") else good()[".csv"]
    reply = client.post("/v1/traces", params={"name": name}, content=content)
    assert reply.status_code in (200, 201), reply.text


@pytest.mark.parametrize(
    "path",
    [
        "/v1/traces/../../etc/passwd",
        "/v1/traces/..%2f..%2fetc%2fpasswd",
        "/v1/traces/%2e%2e",
        "/v1/traces/" + "g" * 64,
        "/v1/traces/" + "0" * 63,
        "/v1/jobs/..%2f..",
        "/v1/runs/%00",
        "//v1//traces",
        "/v1/" + "a" * 5000,
        "/v1/%ff%fe",
    ],
)
def test_no_path_reaches_the_file_system(client: TestClient, path: str) -> None:
    reply = client.get(path)
    assert reply.status_code in (404, 422), reply.text
    assert reply.headers["content-type"] == PROBLEM


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "PATCH", "TRACE", "DELETE", "BREW"])
def test_methods_that_are_not_answered_say_which_are(client: TestClient, method: str) -> None:
    reply = client.request(method, "/v1/traces")
    assert reply.status_code == 405
    assert reply.headers["allow"] == "GET, POST"
    assert reply.headers["content-type"] == PROBLEM
    if method != "HEAD":
        assert reply.json()["status"] == 405


def test_pages_from_elsewhere_may_not_ask(client: TestClient) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        reply = client.request(method, "/v1/traces", headers={"Origin": "https://example.com"})
        assert reply.status_code == 403
        assert not [name for name in reply.headers if name.startswith("access-control")]
    own = client.get("/v1/traces", headers={"Origin": "http://127.0.0.1"})
    assert own.status_code == 200
    assert not [name for name in own.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:18080",
        "127.0.0.1.evil.example",
        "192.168.1.9",
        "[::2]:80",
        "",
        "[",
        "a@b",
    ],
)
def test_names_of_others_that_resolve_to_this_machine_may_not_ask(client: TestClient, host: str) -> None:
    headers = {"Host": host, "Origin": f"http://{host}"}
    for path in ("/v1/traces", "/v1/health", "/metrics", "/openapi.json"):
        reply = client.get(path, headers=headers)
        assert reply.status_code == 421, reply.text
        assert reply.headers["content-type"] == PROBLEM
        assert "127.0.0.1 or localhost" in reply.json()["detail"]


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:8080", "127.0.0.1:18080", "127.8.9.1", "[::1]:80", "[::1]"]
)
def test_names_of_this_machine_may_ask(client: TestClient, host: str) -> None:
    assert client.get("/v1/traces", headers={"Host": host, "Origin": f"http://{host}"}).status_code == 200


def test_further_names_are_taken_where_they_are_configured_or_a_token_is_asked_for() -> None:
    token = "0123456789abcdef"
    for settings in (ServiceSettings(hosts=("Testserver",)), ServiceSettings(host="0.0.0.0", token=token)):
        with TestClient(create_app(settings), headers={"Authorization": f"Bearer {token}"}) as named:
            reply = named.get("/v1/traces", headers={"Host": "testserver:80"})
            assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe",
        b"[" * 100_000,
        b"{" * 100_000,
        b'{"seed": 1e999}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b'"\\ud800"',
        b"",
    ],
)
def test_bodies_that_cannot_be_read_are_refused(client: TestClient, body: bytes) -> None:
    reply = client.post("/v1/simulate", content=body, headers=JSON)
    assert reply.status_code == 422, reply.text
    assert reply.headers["content-type"] == PROBLEM


def test_the_token_is_told_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    token = "s3cret-s3cret-s3cret"
    settings = ServiceSettings(host="0.0.0.0", token=token)
    assert token not in repr(settings)
    with caplog.at_level(logging.DEBUG), TestClient(create_app(settings)) as client:
        for given in (token, token[:-1], token + "x", "", "ä" * 20, "\x00"):
            with contextlib.suppress(UnicodeEncodeError):
                reply = client.get("/v1/traces", headers={b"Authorization": f"Bearer {given}".encode()})
                assert reply.status_code == (200 if given == token else 401)
                assert token not in reply.text
        assert client.get("/nothing", headers={"Authorization": f"Bearer {token}"}).status_code == 404
        assert client.get("/nothing").status_code == 401, "nobody learns what there is"
    assert token not in caplog.text


def test_replies_are_kept_within_their_bytes() -> None:
    cache = ReplyCache(100, most_bytes=1000)
    for number in range(50):
        cache.reply(number, lambda: "x" * 100)
    assert not cache.holds(0)
    assert cache.holds(49)
    assert sum(cache.holds(number) for number in range(50)) == 9
    cache.reply("large", lambda: "x" * 500)
    assert not cache.holds("large"), "one reply does not drive out all others"


def test_a_long_simulation_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on until health has been asked."""
    begun, asked = threading.Event(), threading.Event()

    def slow(*arguments: Any, **options: Any) -> Any:
        begun.set()
        assert asked.wait(PATIENCE_S), "the simulation holds up who asks for health"
        return simulate(*arguments, **options)

    body = {"num_layers": 128, "mode": "training"}
    with TestClient(create_app()) as client, ThreadPoolExecutor(1) as caller:
        monkeypatch.setattr(simulation, "simulate", slow)
        reply = caller.submit(client.post, "/v1/simulate?trace=none", json=body)
        assert begun.wait(PATIENCE_S)
        assert client.get("/v1/health").status_code == 200
        assert not reply.done()
        asked.set()
        assert reply.result().status_code == 200


def test_a_full_disk_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy import event

    settings = ServiceSettings(workers=0)
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        application: Any = client.app
        database: Database = application.state.database
        with database.engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()

        @event.listens_for(database.engine, "connect")
        def full(raw: Any, _: Any) -> None:
            raw.execute(f"PRAGMA max_page_count={pages}").close()

        database.engine.dispose()
        found = {client.post("/v1/traces?name=a.parquet", content=good()[".model.parquet"]).status_code}
        reply = client.post("/v1/traces?name=a.parquet", content=good()[".parquet"])
        found.add(reply.status_code)
        assert 503 in found
        assert client.get("/v1/health").status_code == 200
        assert client.get("/v1/traces").status_code == 200


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for requests long enough for a test that has stalled."""
    monkeypatch.setattr(connections, "REQUEST_S", float(PATIENCE_S))


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    """Serve on a port, with little patience."""
    patience = pytest.MonkeyPatch()
    patience.setattr(connections, "REQUEST_S", 0.5)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(), http=connections.RequestTimeoutProtocol, ws="none", log_level="critical"
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    serving = threading.Thread(target=asyncio.run, args=(server.serve([listener]),))
    serving.start()
    while not server.started:
        assert serving.is_alive(), "the server has ended"
        time.sleep(0.05)
    yield listener.getsockname()
    server.should_exit = True
    serving.join()
    listener.close()
    patience.undo()


def answer(address: tuple[str, int], *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """Send pieces with pauses; return everything that comes until the other side closes the connection."""
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        with contextlib.suppress(ConnectionError):
            for each in pieces:
                connection.sendall(each)
                time.sleep(pause_s)
        found = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(1 << 16):
                found += piece
        return found


HEAD = b"POST /v1/simulate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (),
        (b"P",),
        tuple(bytes([each]) for each in HEAD[:12]),
        (HEAD,),
        (HEAD + b"Content-Length: 100\r\n\r\n", b"{", b'"', b"s"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n{\r\n"),
        (b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /v1/he"),
    ],
    ids=[
        "silence",
        "a letter",
        "letters",
        "half a head",
        "half a body",
        "half a chunk",
        "half of the second",
    ],
)
def test_who_sends_too_slowly_is_let_go(address: tuple[str, int], pieces: tuple[bytes, ...]) -> None:
    found = answer(address, *pieces, pause_s=0.1)
    assert not found or found.startswith(b"HTTP/1.1 200"), "only what was asked in full is answered"


def test_slow_callers_do_not_keep_others_waiting(address: tuple[str, int], patient: None) -> None:
    with contextlib.ExitStack() as many:
        for _ in range(100):
            slow = many.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
            slow.sendall(HEAD)
        connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
        connection.request("POST", "/v1/simulate?trace=none", json.dumps(SMALL), JSON)
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (HEAD + b"X: " + b"a" * 40_000 + b"\r\nContent-Length: 2\r\n\r\n{}", 431),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (HEAD + b"".join(b"X-%d: 1\r\n" % n for n in range(4000)) + b"\r\n", 431),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    ],
)
def test_what_is_no_http_is_a_problem_too(
    address: tuple[str, int], patient: None, request_: bytes, status: int
) -> None:
    found = answer(address, request_)
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d" % status), found[:300]
    assert b"application/problem+json" in head
    assert json.loads(body)["status"] == status


def test_a_slow_body_that_goes_on_is_waited_for(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not patience with silence, but with a thin line: at the least rate and more it may take its time."""
    monkeypatch.setattr(connections, "REQUEST_S", 1.0)
    monkeypatch.setattr(connections, "LEAST_RATE", 1 << 10)  # which a machine that stalls keeps up as well
    content = json.dumps([{"tensor_id": f"t{n}", "size_mb": 1} for n in range(16_000)]).encode()
    head = (
        b"POST /v1/traces?name=a.json HTTP/1.1\r\nHost: localhost\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n"
    )
    pieces = [content[at : at + 60_000] for at in range(0, len(content), 60_000)]
    found = answer(address, head % len(content), *pieces, pause_s=0.15)
    assert found.startswith(b"HTTP/1.1 201"), found[:300]
