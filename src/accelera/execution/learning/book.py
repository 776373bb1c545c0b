"""All measurements of this machine: in memory while the process runs, in one small file from run to run."""

from __future__ import annotations

import atexit
import functools
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from accelera.atomic import atomic_write
from accelera.execution.learning.entry import Entry
from accelera.execution.learning.machine import fingerprint
from accelera.settings import cache_folder

_LOGGER = logging.getLogger("accelera.execution")

FORMAT = 1
MOST_ENTRIES = 2000
"""Of more functions the ones that were used longest ago are left out of the file."""
SAVE_EVERY_S = 60.0
"""Changes go to the file when it is older, and at the end of the process."""


@final
class Book:
    """Entries by function and size, and how long devices take to begin.

    Parameters
    ----------
    path
        Where it is kept; None: in memory only. What cannot be read is left alone and begun anew; the next
        save puts ours in its place.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.lock = threading.Lock()
        """Held while something is changed."""
        self.begun: set[tuple[str, str]] = set()
        """Functions and devices that have met in this process: the first piece tells little of the others."""
        self.begun_devices: set[str] = set()
        """Devices that have run something in this process."""
        self._path = path
        self._clock = clock
        self._changed = False
        self._saved_s = clock()
        self._begin_s: dict[str, float] = {}
        self._entries: dict[str, Entry] = {}
        if path is not None:
            self._load(path)

    def entry(self, key: str) -> Entry | None:
        """Return what is known of a function's tasks of one size; None when it never ran."""
        return self._entries.get(key)

    def begin_s(self, device: str) -> float:
        """Return the seconds that ``device`` would take now, before its first piece, to become usable."""
        return 0.0 if device in self.begun_devices else self._begin_s.get(device, 0.0)

    def changing(self, key: str) -> Entry:
        """Return the entry to be changed; the lock is held."""
        entry = self._entries.pop(key, None) or Entry()
        self._entries[key] = entry
        self._changed = True
        return entry

    def began(self, device: str, seconds: float) -> None:
        """Note how long ``device`` took to become usable, on top of its first piece; the lock is held."""
        before = self._begin_s.get(device)
        self._begin_s[device] = seconds if before is None else (before + seconds) / 2

    def save_if_old(self) -> None:
        """Save what has changed, unless that was done a short while ago."""
        if self._changed and self._clock() - self._saved_s >= SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Put what has changed into the file, as a whole or not at all; where that fails, go on without."""
        if self._path is None or not self._changed:
            return
        with self.lock:
            self._changed, self._saved_s = False, self._clock()
            entries = list(self._entries.items())[-MOST_ENTRIES:]
            functions = {key: entry.state() for key, entry in entries}
            state = {
                "format": FORMAT,
                "machine": fingerprint(),
                "begin_s": self._begin_s,
                "functions": functions,
            }
            text = json.dumps(state)
        try:
            _replace(self._path, text)
        except OSError as error:
            _LOGGER.debug("measured rates cannot be kept in %s: %s", self._path, error)

    def _load(self, path: Path) -> None:
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            if state["format"] != FORMAT or state["machine"] != fingerprint():
                raise ValueError("it is of another machine, or of other libraries")
            self._begin_s, self._entries = _begins(state), _entries(state)
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            _LOGGER.debug("the measured rates in %s are not used: %r", path, error)


@functools.cache
def shared_book() -> Book:
    """Return the book of this process, kept in the user's cache folder."""
    book = Book(cache_folder() / "rates.json")
    atexit.register(book.save)
    return book


def _begins(state: Mapping[str, Any]) -> dict[str, float]:
    begins = {str(device): float(seconds) for device, seconds in state["begin_s"].items()}
    if not all(0 <= seconds < math.inf for seconds in begins.values()):
        raise ValueError(f"{begins} are no seconds")
    return begins


def _entries(state: Mapping[str, Any]) -> dict[str, Entry]:
    return {str(key): Entry.of_state(entry) for key, entry in state["functions"].items()}


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")
