"""What a caller may ask of one batch, in words."""

from __future__ import annotations

from typing import Literal

OnError = Literal["raise", "collect", "skip"]
"""A task that fails ends the work; leaves its ``TaskFailure`` in its place; or is left out of the outputs."""
Fallback = Literal["unfinished", "all", "never"]
"""What the CPU does when a GPU fails: what is left, everything again (seed 002), or nothing."""
Rerun = Literal["on_failure", "freely", "never"]
"""When a task may run twice: after its attempt failed; whenever it is late elsewhere; at no time."""
