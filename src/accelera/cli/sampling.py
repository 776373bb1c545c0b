"""The most memory a program holds while it runs, looked at again and again."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import final

from accelera.interceptor import stats
from accelera.memory import process_memory

_EVERY_S = 0.005


@final
class Samples:
    """Looks at this process' memory every few milliseconds, inside its ``with`` block.

    Private memory is counted above what the process holds at the beginning; results that lie in files are
    what it would hold besides without interception.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        """The most private memory, above the beginning."""
        self.without_bytes = 0
        """The same with results in files and what torch's own kernels would have added counted in."""
        self._idle_bytes = process_memory().anon_bytes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="accelera-samples")
        self._lock = threading.Lock()

    def __enter__(self) -> Samples:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def look(self, added_bytes: int = 0) -> None:
        """Look once; a call in pieces tells what torch's own kernel would add now."""
        grown = process_memory().anon_bytes - self._idle_bytes
        without = grown + stats().spilled_now_bytes + added_bytes
        with self._lock:
            self.peak_bytes = max(self.peak_bytes, grown)
            self.without_bytes = max(self.without_bytes, without)

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self.look()
        self.look()
