"""What runs on a node of a cluster: one block of a product, from shared files into a shared result."""

from __future__ import annotations

import functools
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import numpy as np

from accelera.devices import Device, get_device, usable_processors
from accelera.engine.job import carry_out
from accelera.engine.journal import mark_of
from accelera.engine.operands import multiplier, result_view
from accelera.engine.options import OperationOptions
from accelera.engine.planned import PlannedMatmul
from accelera.engine.report import RunReport
from accelera.engine.reserve import MemorySplit
from accelera.errors import BudgetExceededError, StoreError
from accelera.logs import logger
from accelera.memory import MemoryManager
from accelera.plan import PlanStep
from accelera.stores import Address, Store, join_output

_TURN = threading.Lock()
"""Held by the block that a process is at: it takes all cores and the whole budget."""


@functools.cache
def use_all_cores() -> None:
    """Let products of this process run on all cores it may use; Ray starts its workers with one thread."""
    import threadpoolctl
    from scipy.linalg import cython_blas  # noqa: F401 - so that its library is found

    threadpoolctl.threadpool_limits(usable_processors(), user_api="blas")


def _place(device: str) -> str:
    """Return the name of this process, and of what computed in it unless that was the CPU."""
    process = f"{platform.node()}/{os.getpid()}"
    return process if device == "cpu" else f"{process} {device}"


@final
class NodeReport(NamedTuple):
    """What making one block took; the block itself is in the result."""

    node: str
    seconds: float
    bytes_read: dict[str, int]
    bytes_written: int
    peak_pool_bytes: int
    """In the memory of what computed."""
    fallbacks: tuple[str, ...] = ()
    """What had to be done otherwise than planned, in words."""

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return sum(self.bytes_read.values()) + self.bytes_written


@final
@dataclass(frozen=True)
class NodeTask:
    """Makes blocks of one product; travels to nodes by pickling.

    A block made twice is written twice with the same elements, so that who gives it out need not know whether
    a lost attempt came to its end.
    """

    a: Address
    b: Address
    out: str
    """Absolute path of the result, whose partial file another process has begun."""
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    ranks: tuple[int, int]
    """Axes of A and of B as the caller gave them."""
    budget_bytes: int
    """Most RAM that a block may take on its node."""
    readers: int
    mark: int
    """Of the run's journal: what lies under the result's name may be of another run, or not shared."""
    device: str | None = "cpu"
    """What computes, in its own memory as far as that is free; None: the node's first accelerator, if any."""

    def __call__(self, step: PlanStep) -> NodeReport:
        """Make the block that ``step`` writes, durably.

        Raises BudgetExceededError when it does not fit the budget, StoreError when a file is not to be found.
        """
        use_all_cores()
        with _TURN:
            report = self._made_somewhere(step)
        return NodeReport(
            _place(report.device),
            report.seconds,
            dict(report.bytes_read),
            report.bytes_written,
            report.peak_pool_bytes,
            report.fallbacks,
        )

    def _made_somewhere(self, step: PlanStep) -> RunReport:
        """Make the block where it is to be made, or on the CPU when that fails or has no room."""
        try:
            return self._made(step, get_device(self.device))
        except (BudgetExceededError, RuntimeError) as error:
            if self.device == "cpu":
                raise
            note = f"a block went to the CPU: {error}"
        logger.warning("matmul: %s", note)
        report = self._made(step, get_device("cpu"))
        return replace(report, fallbacks=(note, *report.fallbacks))

    def _made(self, step: PlanStep, device: Device) -> RunReport:
        """Make the block on ``device``, by a plan for the memory that it has now."""
        with self.a.opened() as a, self.b.opened() as b, self._joined() as result:
            left, right = a[step.reads[0].region], b[step.reads[1].region]
            device = multiplier(device, left.dtype)
            out = result_view(result, *self.ranks)[step.write.region]
            options = OperationOptions(readers=self.readers).within(self.budget_bytes, self.budget_bytes)
            product = PlannedMatmul(left, right, out, options)
            if not device.host_memory:
                self._check_has_room(product, device)
                options = options.within(MemoryManager(device).get_usable_memory(), self.budget_bytes)
                product = replace(product, options=options)
            return carry_out(product.job(), device, options)[1]

    def _check_has_room(self, product: PlannedMatmul, device: Device) -> None:
        """Raise ``BudgetExceededError`` when what ``device`` takes of the RAM does not fit the budget."""
        reserved = MemorySplit.on(device, 0, product.problem(device).operands, self.readers, 0).reserved
        needed_bytes = sum(reserved.values()) + device.staging_bytes()
        if needed_bytes > self.budget_bytes:
            raise BudgetExceededError(
                f"[matmul] a block on {device.name} takes {needed_bytes} bytes of its node's RAM, and the"
                f" budget is {self.budget_bytes}; give node_budget= that much",
                needed_bytes=needed_bytes,
                budget_bytes=self.budget_bytes,
            )

    @contextmanager
    def _joined(self) -> Iterator[Store]:
        output = join_output(self.out, self.shape, self.dtype)
        try:
            if mark_of(self.out) != self.mark:
                raise StoreError(
                    f"[matmul] {self.out}.partial on {platform.node()} is of another run: this one was given"
                    f" up, or its result is not in a folder that all nodes share"
                )
            yield output
        finally:
            output.abort(keep_partial=True)
