"""Client of the Copilot's service: every endpoint as a method, over HTTP alone.

with CopilotClient("http://127.0.0.1:8000") as copilot:
    found = copilot.fit({"num_layers": 32, "hidden_size": 4096, "mode": "decode"}, "12GB")
    print(found["verdict"]["sentence"])
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from accelera._extras import needed_for
from accelera._json_values import shown
from accelera.errors import ArgumentError, JobError, ServiceError, ServiceUnreachableError
from accelera.service.settings import ENDED
from accelera.settings import current_value

with needed_for("CopilotClient"):
    import httpx

    from accelera.service.transport import Transport, content_of, member_of

Json = dict[str, Any]
Source = Mapping[str, Any] | str
"""A synthetic model by its fields (``num_layers``, ``mode`` …), or the digest of a stored trace."""
OnProgress = Callable[["JobStatus"], None]

_RECONNECT_S = 0.5
_RECONNECTS = 5
Record = TypeVar("Record", bound="_ReplyRecord")


@dataclass(frozen=True)
class _ReplyRecord:
    @classmethod
    def of(cls: type[Record], record: Mapping[str, Any]) -> Record:
        """Return the record; members that this version does not know are left out."""
        if not isinstance(record, Mapping):
            raise ServiceError(
                f"[client] the reply has {shown(record, repr)}, expected an object; the service may be of "
                "another version"
            )
        known = {field.name for field in fields(cls)}
        try:
            reply = cls(**{name: value for name, value in record.items() if name in known})
        except TypeError as error:
            raise ServiceError(
                f"[client] the reply is no {cls.__name__} ({error}); the service may be of another version"
            ) from error
        for field in fields(cls):
            value = getattr(reply, field.name)
            if field.type == "str" and not isinstance(value, str):
                raise ServiceError(
                    f"[client] {field.name} of a {cls.__name__} is {shown(value, repr)}, expected text; the "
                    "service may be of another version"
                )
        return reply


@dataclass(frozen=True)
class JobStatus(_ReplyRecord):
    """State and progress of a job of the service."""

    id: str
    kind: str
    """``"sweep"``, ``"advise"``, ``"bounds"``, ``"capture"`` …"""
    state: str
    """``"queued"``, ``"running"``, or one of ``ENDED``."""
    created_s: float = 0.0
    """Time of submission, in seconds since 1970."""
    finished_s: float | None = None
    attempt: int = 0
    progress: float = 0.0
    """From 0 to 1."""
    doing: str = ""
    sequence: int = 0
    """Rises with every change."""
    error: str | None = None
    request: Json | None = None
    """Body of the request; None where it is over 16,384 bytes as JSON, or left out."""

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended; it then stays unchanged until it is run again."""
        return self.state in ENDED


@dataclass(frozen=True)
class TraceRecord(_ReplyRecord):
    """A stored trace, without its contents."""

    digest: str
    """SHA-256 of the contents."""
    name: str
    created_s: float = 0.0
    model_type: str | None = None
    accesses: int = 0
    buffers: int = 0
    steps: int = 0
    footprint_bytes: int = 0


@dataclass(frozen=True)
class PastRun(_ReplyRecord):
    """A run in the history: its request, and a few figures of its result."""

    id: str
    kind: str
    created_s: float = 0.0
    title: str = ""
    request: Mapping[str, Any] | None = None
    headline: str = ""
    """The answer in a sentence."""
    figures: Mapping[str, Any] | None = None
    trace: str | None = None
    """Digest of the stored trace that it is about."""
    job: str | None = None
    """The job that found it."""


class CopilotClient:
    """Speaks to the Copilot's service.

    Needs httpx (the extra ``ui``), and nothing of the service's own packages.

    Parameters
    ----------
    url
        Such as ``http://127.0.0.1:8000``; by default the setting ``ACCELERA_COPILOT_URL``.
    token
        Where the service asks for one; by default the setting ``ACCELERA_COPILOT_TOKEN``.
    timeout
        Maximum duration of one request, in seconds. The client waits for jobs without a limit.
    transport
        A transport of httpx instead of the network, for tests.

    Raises
    ------
    ArgumentError
        No address, or one that is no HTTP address.
    ServiceError
        By every method: the service refused or failed; ``status`` and ``problem`` say more.
    ServiceUnreachableError
        By every method: no service answers.
    JobError
        By methods that wait for a job which ends without a result.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        address = url or current_value("copilot_url")
        if not address:
            raise ArgumentError(
                "[client] no address of a service: give url=, or set ACCELERA_COPILOT_URL; "
                "`accelera serve` starts a service and prints its address"
            )
        secret = current_value("copilot_token") if token is None else token
        self._transport = Transport(address, secret or "", timeout, transport)

    @property
    def url(self) -> str:
        """Address of the service."""
        return self._transport.url

    def __enter__(self) -> CopilotClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    # The service itself

    def health(self) -> Json:
        """Return ``status`` and ``version``; needs no token."""
        return self._json("GET", "/v1/health")

    def hardware(self) -> Json:
        """Return the devices and memory of the service's machine."""
        return self._json("GET", "/v1/hardware")

    def metrics(self) -> str:
        """Return the counters of the service as Prometheus reads them."""
        return self._transport.send("GET", "/v1/metrics").text

    def models(self) -> Json:
        """Return ``models`` and ``cards`` that a first look can start from."""
        return self._json("GET", "/v1/models")

    # A synthetic model's trace, as the seed has it

    def simulate(self, workload: Mapping[str, Any], policy: str = "lru", trace: str = "rows") -> Json:
        """Return metrics, the trace with eviction scores, and with ``validate`` its validation.

        ``trace`` is ``"rows"``, ``"columns"`` or ``"none"``.
        """
        return self._post("/v1/simulate", workload, {"policy": policy, "trace": trace})

    def predict_schedule(self, workload: Mapping[str, Any], trace: str = "rows") -> Json:
        """Return the trace with eviction scores from 0 (keep) to 1 (evict first)."""
        return self._post("/v1/predict-schedule", workload, {"trace": trace})

    def validate_trace(self, workload: Mapping[str, Any]) -> Json:
        """Return reuse entropy, locality and the fit of sizes, and what they mean."""
        return self._post("/v1/validate-trace", workload)

    def generate_trace(self, workload: Mapping[str, Any], trace: str = "rows") -> Json:
        """Return the accesses in order, and what the trace holds."""
        return self._post("/v1/generate-trace", workload, {"trace": trace})

    def predict_compile(self, workload: Mapping[str, Any]) -> Json:
        """Return what compiling a model, or the text in ``source``, would bring."""
        return self._post("/v1/predict-compile", workload)

    # Will it fit, and what does it cost if it does not

    def fit(self, source: Source, budget: str | int, **options: Any) -> Json:
        """Return ``verdict``, ``occupancy`` and ``comparison`` of a trace in a budget.

        Options: ``hierarchy``, ``link_bytes_per_s``, ``policies``, and ``on_progress`` for long traces.
        """
        return self._post("/v1/fit", _source_body(source, budget=budget), **options)

    def ways_to_fit(self, source: Source, budget: str | int, **options: Any) -> Json:
        """Return ``ways`` that make it fit, and ``room`` for more when it does; options as of ``fit``."""
        return self._post("/v1/fit/ways", _source_body(source, budget=budget), **options)

    def least_bytes(self, source: Source, budget: str | int, **options: Any) -> int | None:
        """Return the least bytes that any schedule moves per step, token or pass; options as of ``fit``.

        None where no schedule runs in the budget.
        """
        found = self._post("/v1/fit/least", _source_body(source, budget=budget), {"wait": 10}, **options)
        return None if found["least_bytes"] is None else int(found["least_bytes"])

    def curves(self, source: Source, **options: Any) -> Json:
        """Return what each policy moves at each capacity, the knee, and with ``bound`` the least possible.

        Options: ``policies``, ``points``, ``hierarchy``, ``link_bytes_per_s``, ``bound``, ``on_progress``.
        """
        return self._post("/v1/curves", _source_body(source), **options)

    def timeline(self, source: Source, budget: str | int, **options: Any) -> Json:
        """Return transfers against compute, and the occupancy under the budget.

        Options: ``hierarchy``, ``link_bytes_per_s``, ``policy``, ``lookahead``, ``on_progress``.
        """
        return self._post("/v1/timeline", _source_body(source, budget=budget), **options)

    # Analyses that are jobs: without `wait` for their results, see `submit`

    def sweep(self, source: Source, *, on_progress: OnProgress | None = None, **options: Any) -> Json:
        """Return what policies move at capacities; options ``policies``, ``capacities``, ``seed``."""
        return self._post("/v1/sweeps", _source_body(source), on_progress=on_progress, **options)

    def advise(self, source: Source, capacity: str | int, **options: Any) -> Json:
        """Return the policy, lookahead and tensors to keep.

        Options: ``hierarchy``, ``bound``, ``on_progress``.
        """
        return self._post("/v1/advise", _source_body(source, capacity=capacity), **options)

    def bounds(self, source: Source, capacities: Sequence[str | int], **options: Any) -> Json:
        """Return the least bytes that any schedule moves in all, at each capacity."""
        return self._post(
            "/v1/bounds", _source_body(source, capacities=list(map(str, capacities))), **options
        )

    def capture(
        self, config: Mapping[str, Any], *, on_progress: OnProgress | None = None, **options: Any
    ) -> TraceRecord:
        """Trace a model of a Hugging Face configuration, which is stored.

        Options: ``batch``, ``context``, ``training``, ``dtype``.
        """
        reply = self._post("/v1/captures", {"config": dict(config)}, on_progress=on_progress, **options)
        return self.trace(member_of(reply, "digest"))

    def submit(self, kind: str, body: Mapping[str, Any]) -> JobStatus:
        """Queue ``"sweeps"``, ``"advise"``, ``"bounds"`` or ``"captures"`` and return at once.

        For a request that has a stored result this is the job that found it.
        """
        reply = self._transport.post(f"/v1/{kind}", body)
        if reply.status_code == httpx.codes.ACCEPTED:
            return JobStatus.of(content_of(reply))
        location = reply.headers.get("location")
        if location is None:
            raise ServiceError(
                f"[client] the reply to POST /v1/{kind} has no Location header, expected that of a job; the "
                "service may be of another version"
            )
        return self.job(location.rpartition("/")[2])

    # Jobs

    def jobs(self, limit: int = 50, offset: int = 0) -> list[JobStatus]:
        """Return jobs, newest first."""
        return [JobStatus.of(each) for each in self._listed("jobs", limit, offset)]

    def job(self, id: str) -> JobStatus:
        """Return a job's state and progress."""
        return JobStatus.of(self._transport.get(f"/v1/jobs/{id}"))

    def watch(self, id: str) -> Iterator[JobStatus]:
        """Yield a job after each change until it has ended; a lost connection is opened again."""
        seen: int | None = None
        lost = 0
        while True:
            try:
                for event in self._transport.events(f"/v1/jobs/{id}/events", seen):
                    status, lost = JobStatus.of(event), 0
                    seen = status.sequence
                    yield status
                    if status.has_ended:
                        return
            except ServiceUnreachableError:
                lost += 1
                if lost > _RECONNECTS:
                    raise
            time.sleep(_RECONNECT_S)

    def result(self, id: str) -> Json:
        """Return a job's result; raises ServiceError (409) while the job is not done."""
        return self._json("GET", f"/v1/jobs/{id}/result")

    def wait(self, id: str, on_progress: OnProgress | None = None) -> Json:
        """Wait for a job and return its result; ``on_progress`` is called after each change."""
        for status in self.watch(id):
            if on_progress is not None:
                on_progress(status)
            if status.has_ended and status.state != "done":
                raise JobError(
                    f"[client] job {id} ({status.kind}) is {status.state}: "
                    f"{status.error or 'no reason given'}; rerun(id) runs it again",
                    id=id,
                    state=status.state,
                )
        return self.result(id)

    def cancel(self, id: str) -> JobStatus:
        """Cancel a job that waits or runs."""
        return JobStatus.of(content_of(self._transport.post(f"/v1/jobs/{id}/cancel")))

    def rerun(self, id: str) -> JobStatus:
        """Queue a job again that failed, was cancelled or interrupted."""
        return JobStatus.of(content_of(self._transport.post(f"/v1/jobs/{id}/rerun")))

    def delete_job(self, id: str) -> None:
        """Forget a job that has ended, and its result."""
        self._transport.send("DELETE", f"/v1/jobs/{id}")

    # Stored traces

    def upload_trace(
        self, content: Path | str | bytes, name: str | None = None, format: str | None = None
    ) -> TraceRecord:
        """Store a trace from a file or from bytes; the same contents are stored once.

        ``format`` is ``"parquet"``, ``"csv"`` …, by the end of ``name`` when absent; bytes need a name.
        """
        body = content if isinstance(content, bytes) else Path(content).read_bytes()
        file_name = name or (None if isinstance(content, bytes) else Path(content).name)
        if not file_name:
            raise ArgumentError(
                "[client] bytes have no name: give name='trace.parquet', by whose end they are read"
            )
        parameters = {"name": file_name} | ({} if format is None else {"format": format})
        headers = {"Content-Type": "application/octet-stream"}
        reply = self._transport.send("POST", "/v1/traces", params=parameters, content=body, headers=headers)
        return TraceRecord.of(content_of(reply))

    def traces(self, limit: int = 50, offset: int = 0) -> list[TraceRecord]:
        """Return stored traces, newest first."""
        return [TraceRecord.of(each) for each in self._listed("traces", limit, offset)]

    def trace(self, digest: str) -> TraceRecord:
        """Return what a stored trace holds."""
        return TraceRecord.of(self._transport.get(f"/v1/traces/{digest}"))

    def download_trace(self, digest: str) -> bytes:
        """Return a stored trace as Parquet."""
        return self._transport.send("GET", f"/v1/traces/{digest}/content").content

    def delete_trace(self, digest: str) -> None:
        """Delete a stored trace; results about it stay."""
        self._transport.send("DELETE", f"/v1/traces/{digest}")

    # Plans

    def plan(self, kind: str, *, on_progress: OnProgress | None = None, **request: Any) -> Json:
        """Return a plan from shapes: of a product (``"matmul"``), or of a model (``"offload"``)."""
        return self._post("/v1/plan", {"kind": kind}, on_progress=on_progress, **request)

    def estimate(self, config: Mapping[str, Any], **options: Any) -> Json:
        """Return the memory that a Hugging Face configuration needs.

        Options: ``batch``, ``context``, ``dtypes``, ``mode``, ``optimizer``, ``budget``.
        """
        return self._post("/v1/estimate", {"config": dict(config)}, **options)

    # History

    def runs(self, limit: int = 50, offset: int = 0) -> list[PastRun]:
        """Return past runs, newest first."""
        return [PastRun.of(each) for each in self._listed("runs", limit, offset)]

    def run(self, id: str) -> PastRun:
        """Return a past run."""
        return PastRun.of(self._transport.get(f"/v1/runs/{id}"))

    def save_run(
        self,
        kind: str,
        request: Mapping[str, Any],
        *,
        title: str | None = None,
        headline: str = "",
        figures: Mapping[str, Any] | None = None,
    ) -> PastRun:
        """Keep what was asked, such as ``"fit"``, and the answer's sentence and figures."""
        body: Json = {"kind": kind, "request": dict(request), "headline": headline}
        optional = {"title": title, "figures": None if figures is None else dict(figures)}
        reply = self._transport.post(
            "/v1/runs", body | {name: value for name, value in optional.items() if value}
        )
        return PastRun.of(content_of(reply))

    def delete_run(self, id: str) -> None:
        """Delete a past run."""
        self._transport.send("DELETE", f"/v1/runs/{id}")

    def _listed(self, name: str, limit: int, offset: int) -> list[Any]:
        listed = member_of(self._transport.get(f"/v1/{name}", limit=limit, offset=offset), name)
        if not isinstance(listed, list):
            raise ServiceError(
                f"[client] {name} of the reply are {shown(listed, repr)}, expected a list; the service may "
                "be of another version"
            )
        return listed

    def _json(self, method: str, path: str) -> Json:
        reply_json: Json = content_of(self._transport.send(method, path))
        return reply_json

    def _post(
        self,
        path: str,
        body: Mapping[str, Any],
        query: Mapping[str, Any] | None = None,
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> Json:
        """Send a request and wait for its job if it becomes one; options that are None are not sent."""
        present = {name: value for name, value in options.items() if value is not None}
        reply = self._transport.post(path, {**body, **present}, **(query or {}))
        reply_json: Json = content_of(reply)
        if reply.status_code != httpx.codes.ACCEPTED:
            return reply_json
        return self.wait(member_of(reply_json, "id"), on_progress)


def _source_body(source: Source, **more: Any) -> Json:
    source_json = source if isinstance(source, str) else dict(source)
    fields = {name: str(value) if isinstance(value, int) else value for name, value in more.items()}
    return {"source": source_json, **fields}


__all__ = [
    "CopilotClient",
    "JobError",
    "JobStatus",
    "PastRun",
    "ServiceError",
    "ServiceUnreachableError",
    "TraceRecord",
]
