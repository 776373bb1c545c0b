"""A piece handed to an executor as a whole, and its outcomes taken apart again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

from accelera.errors import DeviceError
from accelera.execution.executors.guarded import Guarded, Raised
from accelera.execution.work.contract import Work
from accelera.execution.work.pieces import Piece

ExecuteBatch = Callable[[Sequence[Any], Callable[[Any], Any]], Iterable[Any]]
Failed = tuple[Piece, Exception]


def hand_over(
    execute_batch: ExecuteBatch,
    work: Work,
    piece: Piece,
    device: str,
    is_device_error: Callable[[Exception], bool] = lambda error: False,
) -> list[Failed]:
    """Run ``piece`` through ``execute_batch`` and bring its outcomes; tasks are retried as ``work`` allows.

    Whoever watches ``work`` is told of what ran. Returns the parts that are neither finished nor failed: what
    ``execute_batch`` itself raised on, and where the user's function met an error of the device.
    """
    failed: list[Failed] = []
    waiting, attempts = [piece], 1
    while waiting:
        raised: list[Failed] = []
        for part in waiting:
            began = time.perf_counter()
            try:
                outcomes = _listed(execute_batch(part.tasks, Guarded(work.function)), part, device)
            except Exception as error:
                work.watch.ran(device, 0, time.perf_counter() - began, whole=False)
                failed.append((part, error))
            else:
                raised += _bring(work, part, outcomes, device, time.perf_counter() - began)
        failed += [each for each in raised if is_device_error(each[1])]
        waiting = _to_retry(work, [each for each in raised if not is_device_error(each[1])], device, attempts)
        attempts += 1
    return _joined(failed)


def _to_retry(work: Work, raised: list[Failed], device: str, attempts: int) -> list[Piece]:
    """Return, after the wait, the tasks that are to be tried again; the others fail for good."""
    retry, again = work.retry, list[Piece]()
    for piece, error in raised:
        if retry is not None and retry.allows(error, attempts):
            work.watch.retried(piece.start, error, device)
            again.append(piece)
        else:
            work.fail(piece.start, error, device)
    if again and retry is not None and retry.wait_s:
        work.rest(retry.pause_s(attempts))
    if not work.stopped:
        return again
    for piece in again:
        work.give_back(piece)
    return []


def _listed(outcomes: Any, piece: Piece, device: str) -> Sequence[Any]:
    """Return the outcomes as a list, whatever they came in that has an order: no text, dict or set."""
    if not isinstance(outcomes, Iterable) or isinstance(outcomes, (str, bytes, Mapping, Set)):
        got = f"returned {type(outcomes).__name__}"
    else:
        listed = outcomes if isinstance(outcomes, list) else list(outcomes)
        if len(listed) == len(piece.tasks):
            return listed
        got = f"returned {len(listed)} outputs"
    raise DeviceError(
        f"[{device}] execute_batch got {len(piece.tasks)} tasks and {got}: it must return one output for"
        f" each, in their order, such as a list"
    )


def _bring(work: Work, piece: Piece, outcomes: Sequence[Any], device: str, seconds: float) -> list[Failed]:
    """Finish the tasks that have an output; return each of the others with what was raised on it."""
    count = sum(not isinstance(each, Raised) for each in outcomes)
    work.watch.ran(device, count, seconds, whole=count == len(outcomes))
    raised: list[Failed] = []
    begin = 0
    for position, outcome in enumerate(outcomes):
        if isinstance(outcome, Raised):
            _finish(work, piece, outcomes, begin, position)
            begin = position + 1
            raised.append((piece.part(position, begin), outcome.error))
    _finish(work, piece, outcomes, begin, len(outcomes))
    return raised


def _finish(work: Work, piece: Piece, outcomes: Sequence[Any], begin: int, end: int) -> None:
    if begin < end:
        work.finish(piece.start + begin, outcomes[begin:end])


def _joined(failed: list[Failed]) -> list[Failed]:
    """Return neighbours as one piece, with the first one's error."""
    joined: list[Failed] = []
    for piece, error in sorted(failed, key=lambda each: each[0].start):
        if joined and joined[-1][0].stop == piece.start:
            before, first = joined[-1]
            joined[-1] = (Piece(before.start, [*before.tasks, *piece.tasks]), first)
        else:
            joined.append((piece, error))
    return joined
