"""Why a training ended before its end, as an exception for the caller."""

from __future__ import annotations

from typing import Any

from accelera.errors import ClusterError
from accelera.execution.notes import add_note


def failure_of(error: Any, name: str, max_failures: int) -> Exception:
    """Return what is to be raised for a ``TrainingFailedError`` of Ray Train.

    The exception of the function, if it raised one, with the rank and the traceback in a note. When one rank
    stops, PyTorch raises in those that wait for it: what says more comes first. Else ``ClusterError``.
    """
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    raised = {rank: each for rank, each in sorted(failures.items()) if not _is_of(each, "ray")}
    telling = {rank: each for rank, each in raised.items() if not _may_follow(each)}
    if telling or (raised and len(raised) == len(failures)):
        rank, chosen = next(iter((telling or raised).items()))
        add_note(chosen, f"rank {rank}, and max_failures={max_failures}\n{error}")
        return chosen
    lost = [f"rank {rank}: {_reason(each)}" for rank, each in sorted(failures.items())]
    return ClusterError(
        f"[train] ranks were lost more often than max_failures={max_failures} allows:"
        f" {'; '.join(lost) or error}. To go on from the last checkpoint, train again with name={name!r} in"
        f" the same storage"
    )


def _is_of(error: Exception, package: str) -> bool:
    return type(error).__module__.partition(".")[0] == package


def _may_follow(error: Exception) -> bool:
    """Whether this is what PyTorch raises in a rank whose peers are gone."""
    return type(error) is RuntimeError or type(error).__module__.startswith("torch.distributed")


def _reason(error: Exception) -> str:
    told = str(getattr(error, "health_check_failure", error)).strip().splitlines()
    return told[-1].partition(" Some common causes")[0] if told else type(error).__name__
