"""Connection to a Ray cluster that runs already; the only place that imports Ray."""

from __future__ import annotations

import platform
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any, Final, final

import accelera
from accelera._extras import needed_for
from accelera.errors import ArgumentError, ClusterError
from accelera.execution.cluster.contract import last_line


def check_amounts(op: str, resources: Any, **amounts: Any) -> None:
    """Check ``amounts`` and ``resources``, which are amounts by name, for errors of ``op``.

    Raises
    ------
    TypeError
        When ``resources`` has no names, or for what is no number.
    ValueError
        For a number below 0, or NaN.
    """
    if not isinstance(resources, Mapping):
        raise ArgumentError(f"[{op}] resources={resources!r}: give amounts by name, such as {{'disk': 1}}")
    given: dict[str, Any] = {**amounts, **resources}
    for name, amount in given.items():
        if not isinstance(amount, (int, float, Real)):
            raise ArgumentError(f"[{op}] {name}={amount!r}: give a number of them for each node")
        if not float(amount) >= 0:
            raise ArgumentError(f"[{op}] {name}={amount!r}: give a number from 0")


@final
class UseCount:
    """Counts the users of something shared; ending it waits for them, and lets none begin meanwhile."""

    def __init__(self) -> None:
        self._count = 0
        self._turn = threading.Condition()

    @contextmanager
    def using(self) -> Iterator[None]:
        """Use it; waits while another thread ends it."""
        with self._turn:
            self._count += 1
        try:
            yield
        finally:
            with self._turn:
                self._count -= 1
                self._turn.notify_all()

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Wait until it has no users, and let all others wait; must not be called by a user."""
        with self._turn:
            self._turn.wait_for(lambda: not self._count)
            yield


PROBE_S: Final = 5.0
"""Seconds within which a cluster must answer."""
START: Final = (
    "nothing is started by itself: run `ray start --head` here, enough for this machine alone, and"
    " `ray start --address=HOST:6379` on other machines; a machine of the cluster finds it by itself, any"
    " other by RAY_ADDRESS=HOST:6379. A program may also give address='HOST:6379', or call ray.init() before"
)


def import_ray() -> Any:
    """Return the module ``ray``.

    Raises
    ------
    BackendMissingError
        When it is not installed.
    """
    with needed_for("ray"):
        import ray
    return ray


def connect(ray: Any, address: str | None) -> bool:
    """Connect to the cluster at ``address``; return whether this call did it.

    None stands for the cluster that the program is connected to, that RAY_ADDRESS names, or that this machine
    is part of.

    Raises
    ------
    ClusterError
        When the address is malformed, there is no cluster, its versions are others, or the program is
        connected to another.
    """
    _check_form(address, "address")
    if ray.is_initialized():
        _check_is_same(ray, address)
        return False
    where = "on this machine, and RAY_ADDRESS names none"
    try:
        found = _resolve_address(ray, address)
        where = f"at {found}"
        _check_form(found, "RAY_ADDRESS")
        _probe_address(ray, found)
        ray.init(address=address or "auto", logging_level="warning")
    except ClusterError:
        raise
    except (OSError, ValueError) as error:
        raise ClusterError(f"[ray] no running cluster answers {where}; {START}") from error
    except ray.exceptions.AuthenticationError as error:
        raise ClusterError(f"[ray] the cluster lets nobody in without its token: {error}") from error
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        raise ClusterError(f"[ray] {error}\n{_SAME_VERSIONS}") from error
    return True


def check_connected(ray: Any) -> None:
    """Raise ``ClusterError`` when the program has let go of its cluster: Ray would quietly take another."""
    if not ray.is_initialized():
        raise ClusterError(
            "[ray] the connection to the cluster was closed, perhaps by ray.shutdown(): make another executor"
        )


def is_memory_shortage(ray: Any, error: Exception) -> bool:
    """Return whether Ray killed the process of an actor because the memory of its node was short."""
    return isinstance(error, ray.exceptions.OutOfMemoryError) or "running low on memory" in str(error)


def death_reason(ray: Any, error: Exception) -> str:
    """Return the reason for the death of an actor in one line, without Ray's references to its manual."""
    if not is_memory_shortage(ray, error):
        return last_line(error)
    used = re.search(r"[\d.]+ ?GB / [\d.]+ ?GB", str(error))
    facts = f" ({used.group()} used)" if used else ""
    return f"Ray killed the agent because the memory of the node was short{facts}"


def without_auto_init(function: Any) -> Any:
    """Return a function of Ray without its auto-init wrapper: unconnected, it raises and does not connect."""
    return getattr(function, "__wrapped__", function)


def closed_error() -> ClusterError:
    """Return what is raised where something is asked of an executor or a connection after ``close``."""
    return ClusterError(
        "[ray] the executor was closed: its agents are gone; make a new RayExecutor or RayCluster"
    )


def _resolve_address(ray: Any, address: str | None) -> str:
    """Return where Ray will look for a cluster; raises ``OSError`` when there is nothing to look for."""
    if address not in (None, "auto"):
        return str(address)
    return str(ray._private.services.get_ray_address_from_environment("auto", None))


def _check_form(address: Any, name: str) -> None:
    """Raise ``ClusterError`` for a text that Ray cannot look for a cluster at, ``TypeError`` for no text."""
    if address is None or address in ("auto", "local"):
        return
    if not isinstance(address, str):
        raise ArgumentError(f"[ray] {name}={address!r}: give 'HOST:6379', or None")
    if address.startswith("ray://"):
        raise ClusterError(
            f"[ray] {name}={address!r}: a Ray Client has no streams of results; run the program on a machine"
            f" of the cluster, as `ray job submit` does, and give its address without ray://"
        )
    host, _, port = address.rpartition(":")
    if not (re.fullmatch(r"\[?[\w.:%-]+\]?", host) and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ClusterError(
            f"[ray] {name}={address!r} is malformed: give HOST:PORT with a port up to 65535, such as"
            f" '10.0.0.7:6379', as `ray start --head` prints it"
        )


def _probe_address(ray: Any, address: str) -> None:
    """Raise ``OSError`` when nobody listens at ``address``, ``ValueError`` when it is none.

    Ray itself takes minutes to say so, and would start a cluster for ``"local"``.
    """
    found = ray._private.services.canonicalize_bootstrap_address(address, None)
    if found is None:
        raise ArgumentError(f"{address!r} asks Ray to start a cluster")
    host, _, port = found.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()


_SAME_VERSIONS: Final = (
    "The same Ray and the same Python (first two numbers at least) must run on every machine."
)


def check_versions(theirs: Mapping[str, str], ours: Mapping[str, str], where: str) -> None:
    """Raise ``ClusterError`` when ``where`` runs other versions than this process.

    Of Python the first two numbers count, of everything else all.
    """
    differ = [
        f"{name} {theirs[name]} (here: {ours[name]})"
        for name in ours
        if _compared_part(name, theirs[name]) != _compared_part(name, ours[name])
    ]
    if differ:
        raise ClusterError(
            f"[ray] {where} runs {', '.join(differ)}; {_SAME_VERSIONS} Install what runs here there, or "
            "the other way"
        )


def own_versions(ray: Any) -> dict[str, str]:
    """Return the versions that run here, as ``Agent.versions`` tells its own."""
    return {"Ray": ray.__version__, "Python": platform.python_version(), "Accelera": accelera.__version__}


def _compared_part(name: str, version: str) -> str:
    return ".".join(version.split(".")[:2]) if name == "Python" else version


def _check_is_same(ray: Any, address: str | None) -> None:
    connected = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", connected):
        raise ClusterError(
            f"[ray] address={address!r}: this program is connected to {connected} already, and Ray allows"
            f" one; give that address or none, or call ray.shutdown() first"
        )
