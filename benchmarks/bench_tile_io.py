"""How fast a file store moves a tile: bandwidth and processor time against the length of its pieces.

A tile of a row-major file is one piece per row. Each line moves the same pieces through the page
cache (cold and warm), around it, and as a store does by itself; then writes them.

    python -m benchmarks tile_io
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from accelera.stores import Store, open_store
from accelera.stores._internal import create_store
from benchmarks.machine import save

PLACES = [
    (512, 64 << 10),
    (4 << 10, 64 << 10),
    (16 << 10, 64 << 10),
    (64 << 10, 256 << 10),
    (256 << 10, 1 << 20),
    (1 << 20, 4 << 20),
    (4 << 20, 4 << 20),
]
"""Bytes of a piece, bytes of a row."""
HUGE_PAGE = 2 << 20
READS: dict[str, tuple[bool | None, bool]] = {
    "cached, cold": (False, True),
    "cached, warm": (False, False),
    "direct": (True, True),
    "by itself, cold": (None, True),
    "by itself, warm": (None, False),
}
WRITES: dict[str, bool | None] = {"write cached": False, "write by itself": None}


def main(arguments: list[str]) -> dict[str, Any]:
    """Run, print and save the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tile_io")
    parser.add_argument("--folder", default=".", help="where the file is written; a disk, not tmpfs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    file_bytes, rounds = (32 << 20, 1) if options.small else (1 << 30, options.rounds)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        path = Path(name) / "noise.bin"
        _write_noise(path, file_bytes)
        figures = {"file_bytes": file_bytes, "pieces": [_line(path, *place, rounds) for place in PLACES]}
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def _write_noise(path: Path, nbytes: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
    with path.open("wb") as file:
        for _ in range(nbytes >> 20):
            file.write(noise.data)
        os.fsync(file.fileno())


def _line(path: Path, piece: int, row_bytes: int, rounds: int) -> dict[str, Any]:
    """Measure pieces of one length, all ways in turn, and keep the best round of each."""
    shape = (path.stat().st_size // row_bytes, row_bytes)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in (*READS, *WRITES)}
    for _ in range(rounds):
        for name, (direct, cold) in READS.items():
            runs[name].append(_read(path, shape, piece, direct, cold))
        for name, direct in WRITES.items():
            runs[name].append(_write(path.with_name("written.bin"), shape, piece, direct))
    best = {name: max(each, key=lambda run: run["gb_per_s"]) for name, each in runs.items()}
    print(
        f"{piece:8d} B",
        *(f"{n}: {b['gb_per_s']:.3g} GB/s {b['core_s_per_gb']:.2g} s/GB;" for n, b in best.items()),
    )
    return {"piece_bytes": piece, "row_bytes": row_bytes, **best}


def _read(
    path: Path, shape: tuple[int, int], piece: int, direct: bool | None, cold: bool
) -> dict[str, float]:
    store = open_store(path, shape=shape, dtype="uint8", direct=direct)
    tile = _tile(store, piece)
    out = _buffer((tile[0].stop, piece))
    if cold:
        _drop_cache(path)
    else:
        store.use_direct(False)
        store.read(tile, out)
        store.use_direct(direct)
    return _timed(lambda: store.read(tile, out))


def _write(path: Path, shape: tuple[int, int], piece: int, direct: bool | None) -> dict[str, float]:
    output = create_store(path, shape, "uint8", direct=direct)
    tile = _tile(output, piece)
    data = _buffer((tile[0].stop, piece))

    def write() -> int:
        moved = output.write(tile, data)
        output.flush()
        return moved

    run = _timed(write)
    output.abort()
    return run


def _tile(store: Store, piece: int) -> tuple[slice, slice]:
    """Return a tile of at most 256 MiB in pieces that begin at a page."""
    rows = min(store.shape[0], (256 << 20) // piece)
    start = 4096 if piece + 4096 <= store.shape[1] else 0
    return slice(0, rows, 1), slice(start, start + piece, 1)


def _buffer(shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Return memory like the pool's: in huge pages, and touched before it is timed."""
    nbytes = shape[0] * shape[1]
    pages = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    start = -memory.ctypes.data % HUGE_PAGE
    buffer = memory[start : start + nbytes]
    buffer[:] = 1
    return buffer.reshape(shape)


def _timed(move: Callable[[], int]) -> dict[str, float]:
    began, busy = time.perf_counter(), time.process_time()
    gigabytes = move() / 1e9
    seconds, core_s = time.perf_counter() - began, time.process_time() - busy
    return {"gb_per_s": gigabytes / seconds, "core_s_per_gb": core_s / gigabytes}


def _drop_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1:])
