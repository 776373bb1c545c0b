"""Progress of planning: a line on stderr, on a terminal or in a notebook, when a plan takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from accelera.settings import current

PATIENCE_S = 1.0
"""A plan that is made sooner says nothing."""


@contextmanager
def planning_progress(model: str) -> Iterator[Callable[[str], None]]:
    """Give a function that tells what is being done; ``ACCELERA_PROGRESS`` decides who sees it."""
    wish = current().progress
    watched = wish == "always" or (wish == "auto" and (sys.stderr.isatty() or "ipykernel" in sys.modules))
    began_s, shown = time.monotonic(), False

    def tell(doing: str) -> None:
        nonlocal shown
        elapsed_s = time.monotonic() - began_s
        if watched and elapsed_s >= PATIENCE_S:
            shown = True
            sys.stderr.write(f"\r\x1b[Kplanning {model}: {doing} ({elapsed_s:.0f} s)")
            sys.stderr.flush()

    try:
        yield tell
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
