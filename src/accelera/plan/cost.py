"""Cost model: how long moves and arithmetic take, and what a run remembers of its own plan.

What it remembers is overhead: bytes that are no blocks, more of them the longer its passes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from accelera.plan.limits import Eviction

_NOMINAL_FLOPS_PER_S = 1.5e11
_NOMINAL_CORES = 2


@dataclass(frozen=True)
class CostModel:
    """Rates of one machine; defaults are those of a small two-core server with an SSD."""

    flops_per_s: float = _NOMINAL_FLOPS_PER_S
    """Peak rate of the device's matrix product, in f32 flop/s."""
    read_bytes_per_s: float = 2.1e9
    """Sequential read bandwidth of the slow tier."""
    write_bytes_per_s: float = 2.0e9
    """Sequential write bandwidth of the slow tier."""
    half_run_bytes: float = 28 * 1024
    """Piece length at which strided reads reach half the sequential bandwidth."""
    host_bytes_per_s: float = 6e9
    """Copy bandwidth between RAM and the device's memory that cuts are chosen by."""
    upload_bytes_per_s: float = 6e9
    """Copy bandwidth from RAM to the device's memory that seconds are predicted by."""
    download_bytes_per_s: float = 6e9
    """Copy bandwidth from the device's memory to RAM that seconds are predicted by."""
    copy_core_s: float = 5e-11
    """Processor seconds per byte read or written: the copy to or from the system."""
    piece_core_s: float = 5e-6
    """Processor seconds per contiguous piece: one request to the system."""
    cores: int = _NOMINAL_CORES
    """Cores that share arithmetic and moves."""
    step_s: float = 1e-4
    """Fixed cost of one step: threads meeting, a call into the arithmetic library."""
    nominal_flops_per_s: float = _NOMINAL_FLOPS_PER_S
    """The rate that choices go by in place of ``flops_per_s``, which was measured."""

    def nominal(self) -> CostModel:
        """Return the model that choices go by: nothing in it is measured.

        A plan decides in which order numbers are added up, and so the last bits of a result. Were it chosen
        by a rate that was measured, a machine that is busy for a moment would give other bits.
        """
        return replace(
            self,
            flops_per_s=self.nominal_flops_per_s,
            upload_bytes_per_s=self.host_bytes_per_s,
            download_bytes_per_s=self.host_bytes_per_s,
            cores=_NOMINAL_CORES,
        )

    def read_s(self, nbytes: int, run_bytes: int, tier: str) -> float:
        """Return the seconds to read ``nbytes`` in pieces of ``run_bytes``."""
        if not nbytes:
            return 0.0
        if tier != "disk":
            return nbytes / self.upload_bytes_per_s
        return nbytes / self.read_bytes_per_s * (1 + self.half_run_bytes / run_bytes)

    def write_s(self, nbytes: int, run_bytes: int, tier: str) -> float:
        """Return the seconds to write ``nbytes`` in pieces of ``run_bytes``."""
        if not nbytes:
            return 0.0
        if tier != "disk":
            return nbytes / self.download_bytes_per_s
        return nbytes / self.write_bytes_per_s * (1 + self.half_run_bytes / run_bytes)

    def stolen_s(self, nbytes: int, run_bytes: int, tier: str) -> float:
        """Return the seconds of arithmetic lost because the same cores move ``nbytes``."""
        if tier != "disk" or not nbytes:
            return 0.0
        return nbytes * (self.copy_core_s + self.piece_core_s / run_bytes) / self.cores

    def gemm_s(self, m: int, k: int, n: int, flops_scale: float = 1.0) -> float:
        """Return the seconds of an ``m x k @ k x n`` product.

        Thin shapes pay for packing and for passing over C: measured for OpenBLAS, the loss is
        close to ``10/k + 32/m + 32/n``.
        """
        loss = 1 + 10 / max(k, 1) + 32 / max(m, 1) + 32 / max(n, 1)
        return 2.0 * m * k * n * flops_scale * loss / self.flops_per_s + self.step_s


BLOCK_BYTES = 1024
"""Bytes the run keeps for each distinct block of a pass: region, number, entries in two tables."""
FREE_BYTES = 2 << 20
"""Bookkeeping that every run reserves anyway, for its threads and lists."""
SHARE = 16
"""Bookkeeping may take up to 1/16 of the blocks' capacity besides; a plan that needs more has passes."""
WHOLE_STEPS = 12_000
"""A plan of more steps runs in passes, as a forecast walks every step of each kind of pass."""
_LONGEST = 6144
_ACCESSES = 3
"""Accesses of a step, each to a block of its own at worst."""


def overhead_bytes(accesses: Any, blocks: Any, eviction: Eviction) -> Any:
    """Return the bytes of a run's bookkeeping beyond ``FREE_BYTES``; counts may be columns.

    >>> overhead_bytes(768, 192, Eviction())
    0
    """
    needed = accesses * eviction.access_bytes + blocks * BLOCK_BYTES - FREE_BYTES
    return needed * (needed > 0)


def overhead_limit(capacity_bytes: int) -> int:
    """Return the most bytes that the bookkeeping of one pass should take beyond ``FREE_BYTES``."""
    return max(capacity_bytes, 0) // SHARE


def pass_lengths(capacity_bytes: int, eviction: Eviction) -> tuple[int, int]:
    """Return the most steps of a pass within ``overhead_limit``, and of one within ``FREE_BYTES``.

    Both are 0 where all steps must be one pass.
    """
    if not eviction.by_pass:
        return 0, 0
    each = _ACCESSES * (eviction.access_bytes + BLOCK_BYTES)
    return min(_LONGEST, (FREE_BYTES + overhead_limit(capacity_bytes)) // each), FREE_BYTES // each
