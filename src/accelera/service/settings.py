"""Settings of the service: where it listens, who may call it, and how much one request may ask for."""

from __future__ import annotations

import difflib
import ipaddress
import math
import secrets
import socket
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import psutil

from accelera._json_values import parse_json
from accelera.errors import ArgumentError, SettingError

ENDED = frozenset({"done", "failed", "cancelled", "interrupted"})
"""States in which a job stays until it is run again."""
REMOTE_RATE = 1_200
"""Requests a minute of a caller from another machine, unless the limits say otherwise."""
LEAST_TOKEN = 16
"""Characters of the shortest token that is taken."""


@dataclass(frozen=True)
class ServiceLimits:
    """Limits of one request; what exceeds one is refused with a problem that names it."""

    requests_per_minute: int | None = None
    """Of one caller; None: 1,200 where other machines can ask, unlimited on this one; 0: unlimited."""
    concurrent_requests: int = 512
    """Worked at together; event streams do not count."""
    body_bytes: int = 1 << 20
    """Of a JSON body."""
    upload_bytes: int = 64 << 20
    """Of an uploaded trace."""
    uploads: int = 8
    """Uploads that are received and read at once."""
    stored_accesses: int = 5_000_000
    """Of a stored trace."""
    stored_bytes: int = 4 << 30
    """Of all stored traces."""
    result_bytes: int = 64 << 20
    """Of one job's result."""
    kept_jobs: int = 2_000
    """Jobs that have ended; beyond, the oldest go."""
    kept_result_bytes: int = 1 << 30
    """Of the results of jobs; beyond, the oldest go, the newest never."""
    waiting_jobs: int = 100
    """Jobs that wait at once."""
    runs: int = 10_000
    """Runs in the history; beyond, the oldest go."""
    job_s: float = 600.0
    """Seconds that a job may take."""
    accesses: int = 500_000
    """Of a generated trace."""
    quick_accesses: int = 30_000
    """Of a trace that is analysed while the caller waits."""
    cached_replies: int = 512
    """Replies that are kept for the same question."""
    cached_bytes: int = 128 << 20
    """Of these replies."""


USUAL = ServiceLimits()


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of ``create_app`` and ``serve``.

    Parameters
    ----------
    host
        Address to listen on. Only a loopback address does without a token.
    port
        0 for one that is free.
    token
        What callers send as ``Authorization: Bearer …``; empty for none.
    database_url
        ``sqlite:///FILE`` or ``postgresql://…``; empty for a file that ends with the service.
    workers
        Jobs that are done at once.
    ray_address
        ``HOST:6379`` of a Ray cluster that does the jobs, or ``auto`` for that which this machine is part of;
        empty for processes of this machine.
    limits
        See ``ServiceLimits``.
    hosts
        Names, beside those of the loopback address and ``host``, by which callers without a token may reach
        the service, such as that of a proxy on this machine.

    Raises SettingError for an address beyond this machine without a token, for a token that is short, and for
    a cluster of other machines whose nodes could not reach the database.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(default="", repr=False)
    database_url: str = field(default="", repr=False)
    workers: int = 1
    ray_address: str = ""
    limits: ServiceLimits = USUAL
    hosts: tuple[str, ...] = ()

    @property
    def own_hosts(self) -> frozenset[str]:
        """Names and addresses in a ``Host`` header that mean this service, beside those of loopback."""
        return frozenset(each.lower() for each in (self.host, *self.hosts))

    @property
    def requests_per_minute(self) -> int:
        """Requests a minute that one caller may make; 0: any number."""
        limit = self.limits.requests_per_minute
        return (0 if is_loopback(self.host) else REMOTE_RATE) if limit is None else limit

    def __post_init__(self) -> None:
        if self.token and (len(self.token) < LEAST_TOKEN or not self.token.isascii()):
            raise SettingError(
                f"[serve] the token has {len(self.token)} characters; it must have at least {LEAST_TOKEN}, "
                "of ASCII: python -c 'import secrets; print(secrets.token_urlsafe())' makes one"
            )
        if not self.token and not is_loopback(self.host):
            raise SettingError(
                f"[serve] {self.host} can be reached from other machines: give --token-file with a token "
                "that callers have to send, or listen on 127.0.0.1"
            )
        if self.ray_address and not self.database_url.startswith("postgres") and not self._ray_is_here():
            raise SettingError(
                f"[serve] the Ray cluster at {self.ray_address} is on other machines, which cannot open an "
                "SQLite file of this one: give --db postgresql://…, a database that every node reaches"
            )

    def _ray_is_here(self) -> bool:
        host = self.ray_address.rpartition(":")[0].strip("[]")
        return self.ray_address == "auto" or is_loopback(host) or host in own_addresses()


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is a loopback address; of names only ``localhost`` counts as one."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_addresses() -> frozenset[str]:
    """Return the addresses of this machine's network interfaces, and its name."""
    found = {each.address for interface in psutil.net_if_addrs().values() for each in interface}
    return frozenset({*found, socket.gethostname()})


def read_token(path: Path) -> str:
    """Return the token in a file, without white space around it; raises ArgumentError for none."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"[serve] the token file {path} cannot be read: {error}") from error
    if not token:
        raise ArgumentError(f"[serve] the token file {path} is empty; write a token into it")
    return token


def read_limits(path: Path) -> ServiceLimits:
    """Return the limits in a file, a JSON object of fields of ``ServiceLimits``; the others stay usual.

    Raises ArgumentError for a file that cannot be read, a name that is none of them, or a wrong number.
    """
    try:
        members = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ArgumentError(f"[serve] the limits in {path} cannot be read: {error}") from error
    if not isinstance(members, dict):
        raise ArgumentError(
            f'[serve] the limits in {path} are no JSON object; write for example {{"job_s": 1200}}'
        )
    for name, value in members.items():
        _check_limit(name, value)
    return ServiceLimits(**members)


def _check_limit(name: str, value: Any) -> None:
    known = {each.name: each.default for each in fields(ServiceLimits)}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
        raise ArgumentError(f"[serve] there is no limit {name!r}; {hint}")
    if value is None and known[name] is None:
        return
    is_real = isinstance(known[name], float)
    is_number = isinstance(value, (int, float) if is_real else int) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        wanted = "a number" if is_real else "a whole number"
        raise ArgumentError(f"[serve] the limit {name} is {value!r}; give {wanted} of 0 or more")


def is_token(given: str, expected: str) -> bool:
    """Return whether the tokens are equal, in a time that does not depend on them."""
    return secrets.compare_digest(given.encode(), expected.encode())
