"""Sampler of the memory of a process: the most it holds while a program runs."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import TracebackType
from typing import final

from accelera.interceptor import followed, stats
from accelera.memory import process_memory

_EVERY_S = 0.005


@final
class Samples:
    """Looks at this process' memory every few milliseconds, inside its ``with`` block.

    Private memory is counted above what the process holds at the beginning.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        """The most private memory."""
        self.without_bytes = 0
        """The most it would have been without interception: with what lies in files, and with what torch's
        own kernels would have added where calls went in pieces."""
        self._idle_bytes = process_memory().anon_bytes
        self._in_pieces = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._sample_periodically, daemon=True, name="accelera-samples"
        )
        self._lock = threading.Lock()
        self._following = ExitStack()

    def __enter__(self) -> Samples:
        self._following.enter_context(followed(self))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._following.close()

    def begin(self, added_bytes: int) -> None:
        """Sample before a call in pieces, for which torch's own kernel would add ``added_bytes``."""
        self._sample(added_bytes)
        with self._lock:
            self._in_pieces += 1

    def end(self) -> None:
        """Sample after a call in pieces."""
        with self._lock:
            self._in_pieces -= 1
        self._sample()

    def _sample(self, added_bytes: int = 0) -> None:
        grown = process_memory().anon_bytes - self._idle_bytes
        in_files = stats().spilled_now_bytes
        with self._lock:
            self.peak_bytes = max(self.peak_bytes, grown)
            if not self._in_pieces:
                self.without_bytes = max(self.without_bytes, grown + in_files + added_bytes)

    def _sample_periodically(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._sample()
        self._sample()
