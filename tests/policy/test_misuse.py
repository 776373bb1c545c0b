"""Compiled policies called out of order from Python raise, and never crash or hang."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

from accelera import AcceleraError, Trace, simulate, simulate_cache
from accelera.policy import POLICIES, EvictionPolicy, Knowledge, create_policy
from tests.children import answer_of

KNOWN = Knowledge.of_sequence([2, 0, 1, 3, 2, 0] * 3, capacity_bytes=700)
IDS = (-3, 0, 1, 5, 1_500_000_000)
METHODS = ("miss", "insert", "touch", "evict", "remove", "victim", "dead")
NAMES = sorted(set(POLICIES) - {"scored", "learned", "iteration_replay"})


def call(policy: Any, method: str, buffer: int, time: int) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "miss": (buffer, 10, time, False),
        "insert": (buffer, 10, time, False),
        "touch": (buffer, time, True),
        "victim": (lambda candidate: candidate != buffer,),
    }
    getattr(policy, method)(*arguments.get(method, (buffer,)))


def main() -> None:
    refused = 0
    for name in NAMES:
        for first, second in itertools.product(METHODS, METHODS):
            for buffer in IDS:
                policy = create_policy(name, KNOWN)
                for time, method in enumerate(("insert", first, second, "victim")):
                    try:
                        call(policy, method, buffer if time else 1, time)
                    except AcceleraError:
                        refused += 1
    print(json.dumps(refused))


def test_misuse_of_any_policy_raises() -> None:
    assert answer_of("-m", "tests.policy.test_misuse") > 1000


class Careless(EvictionPolicy):
    """A policy that keeps its callback and may choose an impossible victim."""

    callbacks: list[Any]
    answer: Any = None

    def __init__(self) -> None:
        self.order: list[int] = []
        self.callbacks = []

    def insert(self, buffer: int, size: int, time: int, write: bool) -> None:
        self.order.append(buffer)

    def touch(self, buffer: int, time: int, write: bool) -> None: ...

    def remove(self, buffer: int) -> None:
        self.order.remove(buffer)

    def victim(self, evictable: Any) -> Any:
        self.callbacks.append(evictable)
        return self.answer or next((buffer for buffer in self.order if evictable(buffer)), None)


TRACE = Trace.from_arrays(np.arange(90) % 13, np.full(90, 64))


def replay_cache(policy: Careless) -> None:
    simulate_cache(TRACE, capacity_bytes=400, policy=policy)


@pytest.mark.parametrize("run", [replay_cache, lambda policy: simulate(TRACE, 400, policy)])
def test_callback_after_its_call_raises(run: Any) -> None:
    policy = Careless()
    run(policy)
    for callback, buffer in itertools.product(policy.callbacks, (0, 3, 12, 10**8, -2)):
        with pytest.raises(AcceleraError, match="evictable"):
            callback(buffer)


@pytest.mark.parametrize("answer", [10**12, "three", 2.5])
def test_impossible_victim_is_refused(answer: Any) -> None:
    policy = Careless()
    policy.answer = answer
    with pytest.raises(AcceleraError, match="victim"):
        replay_cache(policy)


if __name__ == "__main__":
    main()
