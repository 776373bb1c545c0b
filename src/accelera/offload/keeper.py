"""Keeps the blocks of one model: where they live, who is resident, and what comes next."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import final

import torch

from accelera.offload.block import Block, Use
from accelera.offload.homes import Home, Homes, ScratchHomes
from accelera.offload.places import CpuPlace, Place
from accelera.offload.plain import has_bytes
from accelera.offload.report import OffloadReport
from accelera.offload.residence import Residence
from accelera.offload.rows import row_parts
from accelera.offload.streaming import Pins, Stream
from accelera.policy import create_policy
from accelera.trace import Trace, TraceLog

LEAST_BYTES = 64 << 10
"""Tensors below stay ordinary ones."""


@final
class Keeper:
    """The pool, the homes and the streaming of one model.

    Parameters
    ----------
    capacity_bytes
        Most bytes of blocks that are resident at once.
    policy
        Name of an online eviction policy.
    block_bytes
        Largest block; None means a quarter of the capacity.
    store
        Folder for what is written; None means the system's folder for temporary files.
    recorder
        Whether to keep a trace.
    """

    def __init__(
        self,
        capacity_bytes: int,
        *,
        policy: str = "loop",
        least_bytes: int = LEAST_BYTES,
        block_bytes: int | None = None,
        store: str | Path | None = None,
        place: Place | None = None,
        homes: Homes | None = None,
        recorder: bool = False,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.least_bytes = least_bytes
        self.block_bytes = max(1, capacity_bytes // 4) if block_bytes is None else block_bytes
        self._place = CpuPlace() if place is None else place
        self.device: torch.device = self._place.device
        self._homes: Homes = ScratchHomes(store) if homes is None else homes
        self._log = TraceLog() if recorder else None
        if self._log is not None:
            facts = {"operation": "offload", "policy": policy, "capacity_bytes": capacity_bytes}
            self._log.begin({**facts, "device": str(self.device)})
        self._residence = Residence(
            capacity_bytes, create_policy(policy), self._place, self._homes, self._log
        )
        self._stream = Stream(self._residence)
        self._lock = threading.RLock()
        self._blocks: dict[int, Block] = {}
        self._dying: deque[Block] = deque()
        self._uses = 0
        self._stall_s = self._compute_s = 0.0

    def adopt(self, tensor: torch.Tensor, name: str = "", role: str = "weight") -> tuple[Block, ...]:
        """Take over the contents of ``tensor``, in row-major order: they go home now; return its blocks.

        A tensor of more than ``block_bytes`` is cut along its first axis.
        """
        parts = row_parts(tensor.shape, tensor.element_size(), self.block_bytes)
        rows = tensor.detach() if tensor.ndim else tensor.detach().reshape(1)
        return tuple(self._adopt_rows(rows[part], _part_name(name, part, len(parts)), role) for part in parts)

    def attach(self, home: Home, nbytes: int, name: str = "", role: str = "weight") -> Block:
        """Return a block whose contents ``home`` holds already; what is read-only is saved elsewhere."""
        return self._register(nbytes, name, role, home, filled=True)

    def create(self, nbytes: int, name: str = "", role: str = "") -> Block:
        """Return a block without contents: the first use writes them."""
        return self._register(nbytes, name, role, None, filled=False)

    def use(self, uses: Sequence[Use], op: str = "") -> Using:
        """Return a context in which the blocks are resident; it gives flat uint8 tensors on ``device``.

        Entering raises BudgetExceededError when the blocks do not fit together.
        """
        return Using(self, uses, op)

    def free(self, block: Block) -> None:
        """End a block's life; may be called from a finaliser in any thread."""
        self._dying.append(block)

    def flush(self) -> None:
        """Write every dirty block home."""
        with self._lock:
            self._bury()
            for block in self._residence.blocks():
                self._residence.save(block, self._stream.step)

    def mapped(self, block: Block) -> torch.Tensor:
        """Return the bytes of ``block`` as an ordinary tensor that costs no anonymous memory."""
        with self._lock:
            self._bury()
            self._residence.save(block, self._stream.step)
            if block.home is None:
                return torch.zeros(block.nbytes, dtype=torch.uint8)
            return torch.from_numpy(block.home.mapped())

    def trace(self) -> Trace:
        """Return what happened so far; raises ValueError when the keeper was made without a recorder."""
        if self._log is None:
            raise ValueError("[offload] no trace was recorded; offload with record=True")
        with self._lock:
            return self._log.trace()

    def report(self) -> OffloadReport:
        """Return what was moved, held and waited for so far."""
        with self._lock:
            self._bury()
            stats, residence = self._residence.stats, self._residence
            return OffloadReport(
                uses=self._uses,
                hits=stats.hits,
                misses=stats.misses,
                evictions=stats.evictions,
                fetched_bytes=stats.fetched_bytes,
                saved_bytes=stats.saved_bytes,
                bytes_read=residence.bytes_read,
                bytes_written=residence.bytes_written,
                peak_bytes=stats.peak_bytes,
                capacity_bytes=self.capacity_bytes,
                stall_s=self._stall_s,
                compute_s=self._compute_s,
            )

    def close(self) -> None:
        """Return all memory and scratch space; contents are lost."""
        with self._lock:
            self._residence.close()
            self._homes.close()

    def _adopt_rows(self, rows: torch.Tensor, name: str, role: str) -> Block:
        home = self._homes.create(rows.nbytes)
        if has_bytes(rows):
            home.write(0, rows.cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return self._register(rows.nbytes, name, role, home, filled=True)

    def _register(self, nbytes: int, name: str, role: str, home: Home | None, *, filled: bool) -> Block:
        with self._lock:
            block = Block(len(self._blocks), nbytes, role, name, home, filled)
            self._blocks[block.id] = block
            return block

    def _begin(self, uses: Sequence[Use], op: str) -> Pins:
        with self._lock:
            self._bury()
            self._uses += 1
            return self._stream.begin(uses, op)

    def _end(self, pins: Pins, stall_s: float, compute_s: float) -> None:
        with self._lock:
            self._stream.end(pins)
            self._stall_s += stall_s
            self._compute_s += compute_s
            if self._log is not None:
                self._log.took(pins.step, compute_s, 0.0)

    def _bury(self) -> None:
        while self._dying:
            self._stream.free(self._dying.popleft())


@final
class Using:
    """The time of one operation, in which its blocks are resident."""

    __slots__ = ("_began_s", "_keeper", "_op", "_pins", "_stall_s", "_uses")

    def __init__(self, keeper: Keeper, uses: Sequence[Use], op: str) -> None:
        self._keeper = keeper
        self._uses = uses
        self._op = op

    def __enter__(self) -> list[torch.Tensor]:
        asked_s = time.perf_counter()
        self._pins = self._keeper._begin(self._uses, self._op)
        self._began_s = time.perf_counter()
        self._stall_s = self._began_s - asked_s
        return [slab.tensor for slab in self._pins.given]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        compute_s = time.perf_counter() - self._began_s
        self._keeper._end(self._pins, self._stall_s, compute_s)


def _part_name(name: str, part: slice, parts: int) -> str:
    return name if parts == 1 else f"{name}[{part.start}:{part.stop}]"
