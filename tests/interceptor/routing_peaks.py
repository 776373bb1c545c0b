"""What calls really take, measured from inside a process of its own.

``python -m tests.interceptor.routing_peaks '<json>'`` prints the most private memory above the idle
baseline, without interception and with it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

import accelera
from accelera.errors import BudgetExceededError
from accelera.memory import process_memory, reset_peak
from tests.children import answer_of

RETURNED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Makes the C library keep no freed memory, which would hide what the next job takes."""


def measured(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run ``main`` on ``jobs`` in a new process."""
    program = ("-m", "tests.interceptor.routing_peaks", json.dumps(jobs))
    answers: list[dict[str, Any]] = answer_of(*program, environment=RETURNED_AT_ONCE)
    return answers


def main(text: str) -> None:
    torch.set_num_threads(1)
    _warm_up()
    print(json.dumps([_answer(job) for job in json.loads(text)]))


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    """Run one job; a refused one once more with the budget that the refusal names."""
    names = {"torch": torch, "x": _operand(job, "x"), "y": _operand(job, "y")}
    function: Callable[[], torch.Tensor] = eval(f"lambda: {job['call']}", names)
    answer: dict[str, Any] = {}
    try:
        found = _within(job, job["budget"], function, answer)
    except BudgetExceededError as refusal:
        answer.update(refused=str(refusal), needed_bytes=refusal.needed_bytes)
        found = _within(job, refusal.needed_bytes, function, answer)
    answer["without_bytes"], expected = _counted_peak_of(function)
    answer["equal"] = torch.allclose(found, expected, rtol=1e-2, atol=1e-2)
    return answer


def _within(
    job: dict[str, Any], budget: int, function: Callable[[], torch.Tensor], answer: dict[str, Any]
) -> torch.Tensor:
    with accelera.intercepted(budget, 0, 1 << 20, spill_dir=job.get("spill")):
        accelera.stats(reset=True)
        answer["with_bytes"], found = _peak_of(function)
    total = accelera.stats().total
    answer.update(chunked=total.chunked, spilled=total.spilled, direct=total.direct)
    return found


def _operand(job: dict[str, Any], name: str) -> torch.Tensor | None:
    if name not in job:
        return None
    shape, dtype = job[name]
    generator = torch.Generator().manual_seed(len(name))
    value = torch.empty(shape, dtype=getattr(torch, dtype))
    return value.random_(0, 3, generator=generator)


def _warm_up() -> None:
    """Start the threads and load the code of both sides."""
    small = torch.ones(64, 64)
    for _ in range(2):
        with accelera.intercepted(1 << 14, 0, 0):
            (small + small.double()).softmax(0)
        with accelera.intercepted("64MiB", 0, 0, device="sim:64MiB"):
            small @ small
        small.bfloat16() @ small.bfloat16()
        small @ small


def _peak_of(function: Callable[[], torch.Tensor]) -> tuple[int, torch.Tensor]:
    """Return the most private memory seen while ``function`` ran, above what there was, and its value."""
    ended, peak = threading.Event(), [0]
    before = process_memory().anon_bytes

    def watch() -> None:
        while not ended.is_set():
            peak[0] = max(peak[0], process_memory().anon_bytes)
            ended.wait(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        value = function()
    finally:
        ended.set()
        watcher.join()
    return max(peak[0], process_memory().anon_bytes) - before, value


def _counted_peak_of(function: Callable[[], torch.Tensor]) -> tuple[int, torch.Tensor]:
    """Return the same of a function that maps no files, as the kernel counted it, however short it was."""
    assert reset_peak()
    before = process_memory()
    value = function()
    after = process_memory()
    return after.peak_bytes - before.rss_bytes - max(0, after.file_bytes - before.file_bytes), value


if __name__ == "__main__":
    main(sys.argv[1])
