"""A piece of work carried out in the calling thread, task by task."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from accelera.execution.work.contract import Work
from accelera.execution.work.pieces import Piece

Caught = TypeVar("Caught", bound=BaseException)


def apply(
    function: Callable[[Any], Any], tasks: Sequence[Any], caught: type[Caught]
) -> tuple[list[Any], Caught | None]:
    """Return the outputs of ``tasks`` up to the first that raises what is ``caught``, and what it raised."""
    outputs: list[Any] = []
    keep = outputs.append
    try:
        for task in tasks:
            keep(function(task))
    except caught as error:
        return outputs, error
    return outputs, None


def carry_out(work: Work, piece: Piece, device: str, caught: type[BaseException] = Exception) -> int:
    """Run the user's function on every task of ``piece``; return how many came to an end.

    What raises what is ``caught`` is retried or told, and the others go on; what was not begun is given back.
    """
    done, attempts = 0, 1
    began = time.perf_counter()
    while done < len(piece.tasks) and not work.stopped:
        outputs, error = apply(work.function, piece.tasks[done:] if done else piece.tasks, caught)
        if outputs or error is not None:
            seconds, began = time.perf_counter() - began, time.perf_counter()
            work.watch.ran(device, len(outputs), seconds, whole=len(outputs) == len(piece.tasks))
        if outputs:
            work.finish(piece.start + done, outputs)
            done, attempts = done + len(outputs), 1
        if error is None:
            return done
        if work.retry is not None and work.retry.allows(error, attempts):
            work.watch.retried(piece.start + done, error, device)
            if work.retry.wait_s:
                work.rest(work.retry.pause_s(attempts))
            attempts += 1
            continue
        work.fail(piece.start + done, error, device)
        done, attempts = done + 1, 1
    if done < len(piece.tasks):
        work.give_back(piece.part(done, len(piece.tasks)))
    return done
