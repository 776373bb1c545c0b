"""How long a captured program takes: rounds of it in which nothing is recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

WARMING = 2
"""Rounds before those that count: allocators, libraries and caches are ready then."""


def step_clock() -> Callable[[], float]:
    """Return the clock of steps: CPU time where torch has one thread, so that other programs do not count."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def quickest_s(call: Callable[[], Any], rounds: int) -> float:
    """Return the seconds of the quickest of ``rounds`` calls, after some that warm up."""
    clock, found = step_clock(), []
    for _ in range(WARMING + rounds):
        began = clock()
        call()
        found.append(clock() - began)
    return min(found[WARMING:])


class Unrecorded:
    """In place of a recording, where a program is only to run."""

    def __init__(self) -> None:
        self.scope = self

    def begin_iteration(self) -> None:
        """Do nothing."""

    def add_gradients(self, named: Any) -> None:
        """Do nothing."""

    @contextmanager
    def outputs_given_back(self) -> Iterator[None]:
        """Do nothing."""
        yield
