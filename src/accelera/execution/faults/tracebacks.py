"""Exceptions that are kept: their notes, and their frames, which must not keep tasks or device memory."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterable

_LOGGER = logging.getLogger("accelera.execution")


def clear_caller_frames(errors: Iterable[BaseException]) -> None:
    """Drop the local variables of the calls that led to where ``errors`` were caught, those that are over.

    An exception keeps them all: if one of them knows it in turn, neither goes before the collector comes.
    """
    seen: set[int] = set()
    for error in errors:
        frame = None if error.__traceback__ is None else error.__traceback__.tb_frame
        while frame is not None and id(frame) not in seen:
            seen.add(id(frame))
            with contextlib.suppress(RuntimeError):
                frame.clear()
            frame = frame.f_back


def release_attempt(error: BaseException, executor: object) -> None:
    """Drop the local variables of the calls that ``error``, a device's own, came through; empty the cache.

    Variables of the errors that it was raised from go as well. ``executor`` may offer ``empty_cache()``.
    """
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        each = chain.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            chain += [each.__cause__, each.__context__]
    clear_caller_frames([error])
    empty_cache = getattr(executor, "empty_cache", None)
    if empty_cache is None:
        return
    try:
        empty_cache()
    except Exception:
        _LOGGER.exception("empty_cache() of %r raised; the work goes on", executor)


def add_note(error: BaseException, note: str) -> None:
    """Add ``note`` unless it is there, also to an exception whose class forbids to set attributes."""
    notes = [*getattr(error, "__notes__", ())]
    if note not in notes:
        error.__dict__["__notes__"] = [*notes, note]
