"""Threads of tests that do something at the same time, or elsewhere than in the test's own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def run_in_threads(*calls: Callable[[], Any], longest_s: float | None = None) -> None:
    """Make each call in a thread of its own, all at once, and wait for them, ``longest_s`` for each."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(longest_s)
