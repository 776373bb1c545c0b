"""A simulated accelerator: a small memory of its own, a slow link, and failures on request.

Its arithmetic is real (the CPU's), its memory is counted, its time is virtual: an operation begins when
its stream (one copies, one computes) is free and the buffers it uses are ready. So programs for an
accelerator, and the overlap of their transfers with their products, can be tested without one.
"""

from __future__ import annotations

import bisect
import random
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from accelera.devices.checks import check_upload
from accelera.devices.contract import Device
from accelera.devices.cpu import CpuDevice, copy, dense_view
from accelera.devices.pages import Pages, address
from accelera.errors import ArgumentError, DeviceError, DeviceMemoryError
from accelera.units import format_bytes, parse_bytes, parse_limit


@dataclass
class _VirtualStream:
    """A stream of operations that run one after another."""

    free_at: float = 0.0
    busy_s: float = 0.0
    spans: list[tuple[float, float]] = field(default_factory=list)
    """Busy intervals (begin, end) in seconds; adjacent ones are merged."""

    def run(self, begin: float, seconds: float) -> float:
        begin = max(begin, self.free_at)
        self.free_at = begin + seconds
        self.busy_s += seconds
        if self.spans and self.spans[-1][1] == begin:
            begin = self.spans.pop()[0]
        self.spans.append((begin, self.free_at))
        return self.free_at


@dataclass
class _BufferTimes:
    """Times at which a buffer was last written and last used."""

    written: float
    touched: float


class VirtualClock:
    """Virtual time of two streams, ``copy`` and ``compute``, and of each buffer; thread-safe."""

    def __init__(self) -> None:
        self._streams = {"copy": _VirtualStream(), "compute": _VirtualStream()}
        self._times: dict[int, _BufferTimes] = {}
        self._memory_free_at = 0.0
        self._lock = threading.Lock()

    def run(self, stream: str, seconds: float, reads: Iterable[int], writes: Iterable[int]) -> None:
        """Add ``seconds`` of work on ``stream`` that reads and writes the buffers of these keys."""
        with self._lock:
            sources = [self._times_of(key) for key in reads]
            targets = [self._times_of(key) for key in writes]
            ready = max([mark.written for mark in sources] + [mark.touched for mark in targets], default=0.0)
            end = self._streams[stream].run(ready, seconds)
            for mark in sources:
                mark.touched = max(mark.touched, end)
            for mark in targets:
                mark.written = mark.touched = end

    def forget(self, key: int) -> None:
        """Forget a released buffer; new buffers are ready once its last work is done."""
        with self._lock:
            mark = self._times.pop(key, None)
            if mark is not None:
                self._memory_free_at = max(self._memory_free_at, mark.touched)

    def busy_s(self, stream: str) -> float:
        """Return the seconds that ``stream`` worked."""
        with self._lock:
            return self._streams[stream].busy_s

    def makespan_s(self) -> float:
        """Return the time at which the last work ended."""
        with self._lock:
            return max(stream.free_at for stream in self._streams.values())

    def overlap_s(self) -> float:
        """Return the seconds in which both streams worked."""
        with self._lock:
            return _overlap_s(self._streams["copy"].spans, self._streams["compute"].spans)

    def _times_of(self, key: int) -> _BufferTimes:
        return self._times.setdefault(key, _BufferTimes(self._memory_free_at, self._memory_free_at))


def _overlap_s(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> float:
    """Return the length of the intersection of two ordered lists of spans."""
    total, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        begin = max(first[i][0], second[j][0])
        end = min(first[i][1], second[j][1])
        total += max(0.0, end - begin)
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return total


Nth = int | Iterable[int]
"""One ordinal or several; the first is 1."""


@dataclass(frozen=True)
class FaultPlan:
    """The operations that are to fail; by default none."""

    oom_at: Nth = ()
    """Allocations that run out of memory, counted from 1."""
    oom_above_bytes: int | None = None
    """Allocations that would take the device above this run out of memory."""
    oom_probability: float = 0.0
    """Share of the allocations that run out of memory, drawn from ``seed``."""
    seed: int = 0
    """Seed of the draws: the same one makes the same allocations fail."""
    fail_transfer_at: Nth = ()
    """Uploads and downloads, counted together from 1, that raise DeviceError."""
    fail_compute_at: Nth = ()
    """Products, counted from 1, that raise DeviceError."""


class Faults:
    """Counts a device's operations and makes those of the plan fail; thread-safe."""

    def __init__(self, plan: FaultPlan) -> None:
        if not 0 <= plan.oom_probability <= 1:
            raise ArgumentError(f"[faults] oom_probability={plan.oom_probability} must lie between 0 and 1")
        self._plan = plan
        self._oom_at, self._transfer_at, self._compute_at = (
            frozenset([nth] if isinstance(nth, int) else nth)
            for nth in (plan.oom_at, plan.fail_transfer_at, plan.fail_compute_at)
        )
        self._random = random.Random(plan.seed)
        self._lock = threading.Lock()
        self.allocations = 0
        """Allocations asked for so far, failed ones included."""
        self.transfers = 0
        """Uploads and downloads begun so far."""
        self.computations = 0
        """Products begun so far."""

    def on_allocate(self, nbytes: int, held_bytes: int) -> None:
        """Raise DeviceMemoryError when this allocation, on top of ``held_bytes``, is to fail."""
        with self._lock:
            self.allocations += 1
            count = self.allocations
            drawn = self._random.random() < self._plan.oom_probability
        above = self._plan.oom_above_bytes
        if count in self._oom_at or drawn or (above is not None and held_bytes + nbytes > above):
            raise DeviceMemoryError(
                f"[allocate] allocation {count}, {format_bytes(nbytes)} over {format_bytes(held_bytes)}: "
                f"the simulated device was told to run out of memory here"
            )

    def on_transfer(self, op: str) -> None:
        """Raise DeviceError when this transfer is to fail."""
        with self._lock:
            self.transfers += 1
            count = self.transfers
        self._fail(op, f"transfer {count}", count in self._transfer_at)

    def on_compute(self, op: str) -> None:
        """Raise DeviceError when this computation is to fail."""
        with self._lock:
            self.computations += 1
            count = self.computations
        self._fail(op, f"computation {count}", count in self._compute_at)

    def _fail(self, op: str, which: str, fails: bool) -> None:
        if fails:
            raise DeviceError(f"[{op}] {which}: the simulated device was told to fail here")


Array = np.ndarray[Any, Any]

_GARBAGE = 0xFF
"""Byte that fills new memory: NaN in every float, so that reading it before writing shows."""


@dataclass(frozen=True)
class SimulationReport:
    """Work of a simulated device, in bytes and virtual seconds."""

    bytes_up: int
    """Bytes that came from the host."""
    bytes_down: int
    """Bytes that went to the host."""
    copy_s: float
    """Seconds the copy stream worked."""
    compute_s: float
    """Seconds the compute stream worked."""
    makespan_s: float
    """When the last work was done."""
    overlap_fraction: float
    """Share of the less busy stream's seconds in which the other one worked too."""
    peak_bytes: int
    """Most bytes allocated at any time."""
    allocations: int
    """Buffers asked for, failures included."""
    transfers: int
    """Uploads and downloads, failures included."""
    computations: int
    """Products, failures included."""


@final
class SimulatedDevice(Device):
    """A simulated accelerator.

    Parameters
    ----------
    capacity : int or str
        Size of its memory, such as ``"64MiB"``.
    bandwidth_bytes_per_s : float
        Rate of the link to the host in either direction, in bytes per second.
    latency_s : float
        Seconds each transfer takes before its first byte.
    flops_per_s : float
        Rate of its products, which plans for it use too.
    oom_at, oom_above, oom_probability, seed
        Which allocations raise DeviceMemoryError: the nth (one or several, from 1), those that would
        hold more than so many bytes, a share of all.
    fail_transfer_at, fail_compute_at
        Which transfers and products raise DeviceError: the nth, one or several.
    name : str
        Name of the device.
    """

    host_memory = False

    def __init__(
        self,
        capacity: int | str = "64MiB",
        *,
        bandwidth_bytes_per_s: float = 16e9,
        latency_s: float = 10e-6,
        flops_per_s: float = 1e12,
        oom_at: Nth = (),
        oom_above: int | str | None = None,
        oom_probability: float = 0.0,
        seed: int = 0,
        fail_transfer_at: Nth = (),
        fail_compute_at: Nth = (),
        name: str = "sim",
    ) -> None:
        if bandwidth_bytes_per_s <= 0 or flops_per_s <= 0 or latency_s < 0:
            raise ArgumentError(
                f"[{name}] bandwidth_bytes_per_s={bandwidth_bytes_per_s}, flops_per_s={flops_per_s},"
                f" latency_s={latency_s}: rates must be above 0, the latency not below"
            )
        above_bytes = None if oom_above is None else parse_bytes(oom_above)
        plan = FaultPlan(oom_at, above_bytes, oom_probability, seed, fail_transfer_at, fail_compute_at)
        self.name = name
        self.flops_per_s = flops_per_s
        self.link_bytes_per_s = bandwidth_bytes_per_s
        self._latency_s = latency_s
        self._memory = _SimulatedMemory(name, parse_limit(name, capacity))
        self._faults = Faults(plan)
        self._clock = VirtualClock()
        self._cpu = CpuDevice()
        self._moved = {"upload": 0, "download": 0}
        self._lock = threading.Lock()

    def total_bytes(self) -> int:
        """Return the capacity."""
        return self._memory.capacity_bytes

    def available_bytes(self) -> int:
        """Return the capacity less the allocated bytes."""
        return self._memory.capacity_bytes - self._memory.allocated_bytes

    @property
    def allocated_bytes(self) -> int:
        """Sum of the buffers handed out and not released."""
        return self._memory.allocated_bytes

    def allocate(self, nbytes: int) -> Array:
        """Return a buffer full of garbage (NaN in every float).

        Raises DeviceMemoryError when the capacity is exceeded or a fault is due.
        """
        self._faults.on_allocate(nbytes, self._memory.allocated_bytes)
        return self._memory.allocate(nbytes)

    def release(self, buffer: Array) -> None:
        """Give the buffer back; using views of it raises DeviceError from then on."""
        self._clock.forget(self._memory.release(buffer))

    def view(
        self, buffer: Array, shape: tuple[int, ...], dtype: np.dtype[Any], order: tuple[int, ...]
    ) -> Array:
        """Return the start of ``buffer`` as a dense array."""
        return dense_view(buffer, shape, dtype, order)

    def upload(self, host: Array, target: Array) -> None:
        """Copy to the device at the link's rate, counted in the host's element type."""
        check_upload(host.shape, target.shape, "upload")
        key = self._memory.key_of(target, "upload")
        self._transfer("upload", host, target, host.nbytes)
        self._clock.run("copy", self._transfer_s(host.nbytes), (), (key,))

    def download(self, source: Array, host: Array) -> None:
        """Copy to the host at the link's rate, counted in the host's element type."""
        check_upload(source.shape, host.shape, "download")
        key = self._memory.key_of(source, "download")
        self._transfer("download", source, host, host.nbytes)
        self._clock.run("copy", self._transfer_s(host.nbytes), (key,), ())

    def gemm(self, a: Array, b: Array, c: Array, *, accumulate: bool, conjugate_a: bool = False) -> None:
        """``c (+)= a @ b``; takes 2 m n k flops of virtual time, complex ones four times that."""
        a_key, b_key, c_key = (self._memory.key_of(each, "gemm") for each in (a, b, c))
        self._faults.on_compute("gemm")
        self._cpu.gemm(a, b, c, accumulate=accumulate, conjugate_a=conjugate_a)
        self._clock.run("compute", self._product_s(c, a.shape[-1]), (a_key, b_key), (c_key,))

    def gram(self, a: Array, c: Array, *, accumulate: bool) -> None:
        """``c (+)= aᴴ @ a``, upper triangle; takes half the virtual time of the whole product."""
        a_key, c_key = (self._memory.key_of(each, "gram") for each in (a, c))
        self._faults.on_compute("gram")
        self._cpu.gram(a, c, accumulate=accumulate)
        self._clock.run("compute", self._product_s(c, a.shape[-2]) / 2, (a_key,), (c_key,))

    def symmetrize(self, c: Array) -> None:
        """Complete a Gram matrix; takes no virtual time."""
        key = self._memory.key_of(c, "symmetrize")
        self._cpu.symmetrize(c)
        self._clock.run("compute", 0.0, (), (key,))

    def can_take(self, array: Array) -> bool:
        """Return the answer of the CPU, which does the arithmetic."""
        return self._cpu.can_take(array)

    def workspace_bytes(self) -> int:
        """Return 0: the arithmetic's own memory is the host's."""
        return 0

    def synchronize(self) -> None:
        """Return at once: every call above is done when it returns."""

    def report(self) -> SimulationReport:
        """Return what was done so far."""
        copy_s, compute_s = self._clock.busy_s("copy"), self._clock.busy_s("compute")
        shorter = min(copy_s, compute_s)
        with self._lock:
            up, down = self._moved["upload"], self._moved["download"]
        return SimulationReport(
            bytes_up=up,
            bytes_down=down,
            copy_s=copy_s,
            compute_s=compute_s,
            makespan_s=self._clock.makespan_s(),
            overlap_fraction=self._clock.overlap_s() / shorter if shorter else 0.0,
            peak_bytes=self._memory.peak_bytes,
            allocations=self._faults.allocations,
            transfers=self._faults.transfers,
            computations=self._faults.computations,
        )

    def _transfer(self, op: str, source: Array, target: Array, nbytes: int) -> None:
        self._faults.on_transfer(op)
        copy(source, target, op)
        with self._lock:
            self._moved[op] += nbytes

    def _transfer_s(self, nbytes: int) -> float:
        return self._latency_s + nbytes / self.link_bytes_per_s

    def _product_s(self, c: Array, depth: int) -> float:
        return 2.0 * c.size * depth * (4 if c.dtype.kind == "c" else 1) / self.flops_per_s


class _SimulatedMemory:
    """The device's own memory: counted, limited, and distinguished from the host's."""

    def __init__(self, owner: str, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self._owner = owner
        self._pages = Pages(owner)
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> Array:
        with self._lock:
            free = self.capacity_bytes - self.allocated_bytes
            if nbytes > free:
                raise DeviceMemoryError(
                    f"[allocate] {format_bytes(nbytes)} on {self._owner}: {format_bytes(free)} of "
                    f"{format_bytes(self.capacity_bytes)} are free; work in smaller blocks"
                )
            self.allocated_bytes += nbytes
            self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        try:
            buffer = self._pages.allocate(nbytes)
        except DeviceMemoryError:
            self._uncount(nbytes)
            raise
        buffer.fill(_GARBAGE)
        with self._lock:
            start = address(buffer)
            bisect.insort(self._starts, start)
            self._ends[start] = start + max(nbytes, 1)
        return buffer

    def release(self, buffer: Array) -> int:
        """Release ``buffer`` and return its key."""
        start = address(buffer)
        with self._lock:
            if start in self._ends:
                self._starts.remove(start)
                del self._ends[start]
        self._uncount(self._pages.release(buffer))
        return start

    def key_of(self, array: Array, op: str) -> int:
        """Return the key of the buffer that ``array`` lies in; raise DeviceError when it lies in none."""
        place = address(array)
        with self._lock:
            index = bisect.bisect_right(self._starts, place) - 1
            start = self._starts[index] if index >= 0 else -1
            if start >= 0 and (place < self._ends[start] or array.size == 0):
                return start
        raise DeviceError(
            f"[{op}] an array of shape {array.shape} does not lie in a live buffer of {self._owner}; "
            f"allocate() and upload() it there first"
        )

    def _uncount(self, nbytes: int) -> None:
        with self._lock:
            self.allocated_bytes -= nbytes
