"""Timeline of a real product out of core: reads, arithmetic and writes, and the pool's bytes.

The stores pace themselves to a link of a given speed, so that the picture shows a disk and no cache.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from accelera import MatrixEngine
from accelera._plotting import LIGHT
from accelera.devices import CpuDevice
from accelera.stores import Store, open_store
from accelera.stores._internal import Layout, Region
from accelera.units import parse_bytes
from tools.pictures.drawing import BLUE, ORANGE, SKY, figure_svg, plain_figure, words_in

SIZE, BUDGET, BYTES_PER_S = 3072, "72MiB", 5e7
Array = np.ndarray[Any, Any]


class Span(NamedTuple):
    """A stretch of time in seconds since the clock began."""

    begin_s: float
    end_s: float


class Clock:
    """Spans by lane, and the pool's bytes from each time on."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.spans: dict[str, list[Span]] = {"read": [], "compute": [], "write": []}
        self.held: list[tuple[float, int]] = [(0.0, 0)]

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.perf_counter() - self.began

    def restart(self) -> None:
        """Begin anew, with nothing noted."""
        self.began = time.perf_counter()
        self.spans = {"read": [], "compute": [], "write": []}
        self.held = [(0.0, 0)]

    def timed(self, lane: str, work: Callable[[], Any]) -> Any:
        """Carry ``work`` out as a span of ``lane``."""
        begin = self.now()
        found = work()
        self.spans[lane].append(Span(begin, self.now()))
        return found


class PacedStore(Store):
    """An array behind a link of a given speed, which notes what goes over it."""

    tier = "disk"

    def __init__(self, array: Array, name: str, clock: Clock, link: threading.Lock) -> None:
        self.shape, self.dtype, self.name = array.shape, array.dtype, name
        self._base, self._clock, self._link = open_store(array), clock, link

    def read(self, region: Region, out: Array) -> int:
        """Read as fast as the link allows."""
        return self._paced("read", lambda: self._base.read(region, out))

    def write(self, region: Region, data: Array) -> int:
        """Write as fast as the link allows."""
        return self._paced("write", lambda: self._base.write(region, data))

    @property
    def layout(self) -> Layout:
        """The array's."""
        return self._base.layout

    def _paced(self, lane: str, move: Callable[[], int]) -> int:
        with self._link:
            return int(self._clock.timed(lane, lambda: self._slowly(move)))

    @staticmethod
    def _slowly(move: Callable[[], int]) -> int:
        began = time.perf_counter()
        moved = move()
        time.sleep(max(0.0, moved / BYTES_PER_S - (time.perf_counter() - began)))
        return moved


class TimedCpu(CpuDevice):  # type: ignore[misc]  # final, and measured here
    """The CPU, which notes when it multiplies and what its buffers take."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def gemm(self, a: Array, b: Array, c: Array, *, accumulate: bool, conjugate_a: bool = False) -> None:
        """Multiply, timed."""
        self._clock.timed(
            "compute", lambda: CpuDevice.gemm(self, a, b, c, accumulate=accumulate, conjugate_a=conjugate_a)
        )

    def allocate(self, nbytes: int) -> Array:
        """Allocate, noted."""
        found = super().allocate(nbytes)
        self._clock.held.append((self._clock.now(), self.allocated_bytes))
        return found

    def release(self, buffer: Array) -> None:
        """Release, noted."""
        super().release(buffer)
        self._clock.held.append((self._clock.now(), self.allocated_bytes))


def product_timeline() -> str:
    """Run the product and return the picture."""
    clock, plan, report = _run()
    figure, axes = plain_figure(800, 330)
    figure.subplots_adjust(left=0.125, right=0.975, top=0.76, bottom=0.13)
    last = max(span.end_s for spans in clock.spans.values() for span in spans)
    colours = {"read": SKY, "compute": BLUE, "write": ORANGE}
    for row, (lane, spans) in enumerate(clock.spans.items()):
        bars = [(each.begin_s, each.end_s - each.begin_s) for each in spans]
        axes.broken_barh(bars, (2.62 - row * 0.62, 0.46), color=colours[lane], linewidth=0)
        busy = sum(length for _, length in bars) / last
        axes.text(
            -0.008 * last,
            2.85 - row * 0.62,
            f"{lane} {busy:.0%}",
            ha="right",
            va="center",
            color=words_in(colours[lane]),
            size=9,
        )
    _pool(axes, clock, last, plan)
    axes.set_xlim(0, last)
    axes.set_ylim(0, 3.2)
    axes.set_yticks([])
    axes.set_xlabel("seconds")
    figure.text(0.02, 0.925, "A product of two files, while it runs", size=12, weight="bold")
    planned = sum(plan.forecast.bytes_read.values()) + plan.forecast.bytes_written
    said = (
        f"{SIZE} × {SIZE} float32, behind a link of {BYTES_PER_S / 1e6:.0f} MB/s; "
        f"{report.moved_bytes / 1e6:.1f} MB moved of {planned / 1e6:.1f} planned"
    )
    figure.text(0.02, 0.845, said, size=9, color=LIGHT.muted)
    return figure_svg(figure, "Reads, arithmetic and writes of a product of files overlap inside its budget")


def _run() -> tuple[Clock, Any, Any]:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((SIZE, SIZE), dtype=np.float32) for _ in range(2)]
    result = np.empty((SIZE, SIZE), np.float32)
    clock, reading, writing = Clock(), threading.Lock(), threading.Lock()
    a, b = (PacedStore(each, name, clock, reading) for each, name in zip(arrays, "AB", strict=True))
    c = PacedStore(result, "C", clock, writing)
    engine = MatrixEngine(TimedCpu(clock), enable_progress=False)
    engine.matmul(a, b, out=c, budget=BUDGET)
    clock.restart()
    engine.matmul(a, b, out=c, budget=BUDGET)
    assert np.allclose(result[:8], arrays[0][:8] @ arrays[1], rtol=1e-3, atol=1e-2)
    report = engine.last_report
    return clock, report.plan, report


def _pool(axes: Any, clock: Clock, last: float, plan: Any) -> None:
    """Draw the pool's bytes over time, and the budget above them, in the lower part."""
    times = [when for when, _ in clock.held] + [last]
    blocks = [held / parse_bytes(BUDGET) for _, held in clock.held]
    blocks.append(blocks[-1])
    reserve = (plan.peak_bytes["ram"] - plan.forecast.peak_pool_bytes) / parse_bytes(BUDGET)
    axes.fill_between(
        times, [each + reserve for each in blocks], 0, step="post", color=LIGHT.grid, linewidth=0
    )
    axes.fill_between(times, blocks, 0, step="post", color=LIGHT.plain, linewidth=0)
    axes.axhline(1, color=LIGHT.least, linewidth=1.4)
    axes.text(0.006 * last, 1.04, f"budget {BUDGET}", color=LIGHT.least, size=9, weight="bold", va="bottom")
    top = max(blocks)
    axes.text(last / 2, top / 2, "blocks", ha="center", va="center", color=LIGHT.ink, size=9)
    said = "staging, arithmetic, runtime"
    axes.text(last / 2, top + reserve / 2, said, ha="center", va="center", color=LIGHT.muted, size=9)
    axes.text(-0.008 * last, 0.5, "memory", ha="right", va="center", color=LIGHT.muted, size=9)
