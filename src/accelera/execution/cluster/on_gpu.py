"""What the GPU of a node did of a part: told by the node, and passed on to whoever watches the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

from accelera.execution.executors.workers.raised import Raised, unpack_error
from accelera.execution.watching.watch import Watch

Happened = tuple[int, Raised]
"""How many tasks an error of the device met, and the error."""


@final
class OnGpu(NamedTuple):
    """What a node's GPU did since the part before."""

    device: str
    """Its name on the node."""
    tasks: int
    """How many of the part's outcomes are its own."""
    seconds: float
    """In which it worked at them."""
    splits: Sequence[Happened] = ()
    """It ran out of memory, and went on with fewer tasks at once."""
    fallbacks: Sequence[Happened] = ()
    """Tasks that the node's processors took over."""

    def tell(self, watch: Watch, node: str, index: int, done: int) -> None:
        """Let ``watch`` know, by the name of ``node`` and the device.

        ``index`` is a task of the lease; ``done``: how many of the GPU's tasks did not fail.
        """
        name = f"{node} {self.device}"
        if self.tasks:
            watch.ran(name, done, self.seconds, whole=done == self.tasks)
        for count, raised in self.splits:
            watch.split(name, count, unpack_error(raised, index, "ray"))
        for count, raised in self.fallbacks:
            watch.fell_back(name, count, unpack_error(raised, index, "ray"))


def together_s(cpu_tasks: int, cpu_s: float, gpu: OnGpu | None) -> float:
    """Return the seconds in which a node does a part when both sides are as fast as they were, at once."""
    if gpu is None or not gpu.tasks:
        return cpu_s
    if not cpu_tasks:
        return gpu.seconds
    speed = cpu_tasks / max(cpu_s, 1e-9) + gpu.tasks / max(gpu.seconds, 1e-9)
    return (cpu_tasks + gpu.tasks) / speed
