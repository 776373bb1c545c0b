"""Cache of the blocks of one model on one device: resident, prefetched, evicted, written back."""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import final

import torch

from accelera._native import Arena
from accelera.devices import Device
from accelera.errors import ArgumentError, BudgetExceededError, DeviceError
from accelera.memory._internal import (
    LEDGER,
    AsyncBuffers,
    BufferTable,
    Pins,
    PoolBlock,
    Prefetcher,
    Reservation,
    Slab,
    Use,
    trim_heap,
    window_of,
)
from accelera.offload.allocation_scope import AllocationScope
from accelera.offload.backing import BackingStore, BackingStores, RamBacking, ScratchBacking, TieredBacking
from accelera.offload.block_layout import part_name, row_parts
from accelera.offload.config import CacheBudget, OffloadConfig
from accelera.offload.device_memory import SimulatedTensorMemory, TorchMemory, memory_on
from accelera.offload.memory_guard import (
    ArenaCount,
    HeldCount,
    MemoryGuard,
    arenas_in_torch,
    free_heap_bytes,
    give_pages_back,
    held_on,
    refusal,
    tensor_refusal,
)
from accelera.offload.op_schema import has_bytes
from accelera.trace import Trace, TraceLog


@dataclass(frozen=True)
class OffloadReport:
    """Counters since the model was offloaded; bytes are bytes of blocks."""

    uses: int
    """Operations that used a block."""
    hits: int
    misses: int
    evictions: int
    fetched_bytes: int
    """Bytes of misses that were read, as the books count them."""
    saved_bytes: int
    """Bytes written back, as the books count them."""
    bytes_read: int
    """Bytes that came from backing stores."""
    bytes_written: int
    """Bytes that went to backing stores."""
    peak_bytes: int
    """Most bytes that were resident."""
    capacity_bytes: int
    stall_s: float
    """Seconds that operations waited for their blocks."""
    compute_s: float
    """Seconds between getting the blocks and giving them back."""
    peak_tensor_bytes: int = 0
    """Most bytes of tensors beside blocks, such as activations, that counted against the budget at once."""
    activation_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of what the latest forward pass saved for its backward pass, by what was chosen: ``keep``,
    ``pack``, ``recompute`` or ``offload``; empty before there was a plan."""
    activation_added_s: float = 0.0
    """Seconds that this choice is predicted to add to a step in which everything is kept."""
    home_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes that lie beside the accelerators, in ``ram`` and in ``files``, where a budget for the CPU bounds
    those in RAM; else empty."""
    device: str = "cpu"
    """Name of the device that computes."""
    budget_bytes: int = 0
    """Bytes of the device's memory that the model may take; 0 without a limit."""
    by_device: Sequence[OffloadReport] = ()
    """Of a model over several devices, the report of each."""
    crossed_bytes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Bytes of activations and gradients that went from one device, or the ``"host"``, to another."""


_DEFAULTS = OffloadConfig()


@final
class BlockCache:
    """The pool, the backing stores and the streaming of one model.

    Parameters
    ----------
    capacity_bytes
        Most bytes of blocks that are resident at once.
    config
        Options; ``block_bytes`` and ``prefetch_bytes`` of None are chosen by the capacity.
    budget
        Bytes for blocks and everything else together; None means that nobody watches.
    device
        Device that computes; None means the CPU.
    memory, backing
        Memory of resident blocks, and stores of the others, instead of what ``device`` and the config say.
    """

    def __init__(
        self,
        capacity_bytes: int,
        config: OffloadConfig = _DEFAULTS,
        *,
        budget: CacheBudget | None = None,
        device: Device | torch.device | str | None = None,
        memory: TorchMemory | None = None,
        backing: BackingStores | None = None,
    ) -> None:
        self._reservation: Reservation | None = None
        if budget is not None and (not isinstance(device, Device) or device.host_memory):
            self._reservation = LEDGER.reserve("offload", "offload", budget.limit_bytes)
            weakref.finalize(self, self._reservation.release).atexit = False
        self.capacity_bytes = capacity_bytes
        self.least_bytes = config.least_bytes
        self.block_bytes = max(1, capacity_bytes // 4) if config.block_bytes is None else config.block_bytes
        self.window_bytes = window_of(capacity_bytes, config.prefetch_bytes)
        shared_bytes = capacity_bytes if budget is None else budget.limit_bytes - budget.fixed_bytes
        make_arena = functools.partial(_arena, shared_bytes, weakref.ref(self))
        self._memory = memory_on(device, make_arena) if memory is None else memory
        self.device: torch.device = self._memory.device
        self.name = device.name if isinstance(device, Device) else str(self.device)
        """Name of the device that computes."""
        self._backing = _backing_for(self._memory, config.store) if backing is None else backing
        self._log = TraceLog() if config.record else None
        if self._log is not None:
            facts = {"operation": "offload", "policy": config.policy, "capacity_bytes": capacity_bytes}
            self._log.begin({**facts, "device": str(self.device)})
        self._buffers = AsyncBuffers(capacity_bytes, self._memory, self._backing)
        self._table = BufferTable(capacity_bytes, config.policy, self._buffers, self._log)
        self._prefetcher = Prefetcher(self._table, self.window_bytes)
        self._budget_bytes = None if budget is None else budget.limit_bytes
        self._arena = self._memory.arena
        self._guard: MemoryGuard | None = None
        if budget is not None:
            self._guard = self._make_guard(budget)
        charged = self._arena if self._guard is not None and self._guard.exact else None
        self.scope = AllocationScope(charged, self._guard)
        """Scope in which new tensors count against the budget."""
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._closed = False
        self._pending_free: deque[PoolBlock] = deque()
        self._uses = 0
        self._alive_bytes = self._most_alive_bytes = self._most_pinned_bytes = 0
        self._stall_s = self._compute_s = 0.0

    @property
    def step(self) -> int:
        """The latest step of the trace."""
        return self._prefetcher.step

    @property
    def watched(self) -> bool:
        """Whether a result's size must be announced before it is made, so that blocks are evicted in time."""
        return self._guard is not None and not self._guard.exact

    @property
    def events(self) -> int:
        """Number of events that the trace has so far; 0 without a recorder."""
        return 0 if self._log is None else len(self._log)

    @property
    def peak_allocated_bytes(self) -> int:
        """Most memory that was allocated for blocks, what was kept for reuse included."""
        return self._buffers.peak_allocated_bytes

    @property
    def most_alive_bytes(self) -> int:
        """Most bytes of blocks that existed at once, resident or not, without saved activations."""
        return self._most_alive_bytes

    @property
    def most_pinned_bytes(self) -> int:
        """Most bytes of blocks that one operation used."""
        return self._most_pinned_bytes

    def working_s(self) -> float:
        """Return a time in seconds that stands still while operations wait for their blocks."""
        return time.perf_counter() - self._stall_s

    def expect(self, phase: str, nbytes: int) -> None:
        """Expect that tensors take ``nbytes`` in a phase; see ``MemoryGuard.expect``."""
        if self._guard is not None:
            self._guard.expect(phase, nbytes)

    def adopt(self, tensor: torch.Tensor, name: str = "", role: str = "weight") -> tuple[PoolBlock, ...]:
        """Take over the contents of ``tensor``, in row-major order, into backing stores; return its blocks.

        A tensor of more than ``block_bytes`` is cut along its first axis.
        """
        parts = row_parts(tensor.shape, tensor.element_size(), self.block_bytes)
        rows = tensor.detach() if tensor.ndim else tensor.detach().reshape(1)
        return tuple(self._adopt_rows(rows[part], part_name(name, part, len(parts)), role) for part in parts)

    def attach(self, home: BackingStore, nbytes: int, name: str = "", role: str = "weight") -> PoolBlock:
        """Return a block over the contents of the store ``home``; changes to a read-only one go elsewhere."""
        return self._register(nbytes, name, role, home)

    def create(self, nbytes: int, name: str = "", role: str = "") -> PoolBlock:
        """Return a block without contents: the first use writes them."""
        return self._register(nbytes, name, role, None)

    def use(self, uses: Sequence[Use], op: str = "", output_bytes: int = 0) -> PinnedBlocks:
        """Return a context in which the blocks are resident; it gives flat uint8 tensors on ``device``.

        Beside them, the budget is to have room for ``output_bytes``, such as a result. Entering raises
        BudgetExceededError when the blocks do not fit together.
        """
        self.check_there(op)
        return PinnedBlocks(self, uses, op, output_bytes)

    def free(self, block: PoolBlock) -> None:
        """Free a block later; may be called from a finaliser in any thread."""
        self._pending_free.append(block)

    def reap(self) -> None:
        """Free the blocks for which ``free`` was called."""
        with self._lock:
            self._reap()

    def flush(self) -> None:
        """Write back all dirty blocks and await all transfers; raises StoreError when one cannot be saved."""
        with self._lock:
            self._reap()
            for block in self._table.resident:
                self._save(block)
            self._buffers.drain()

    def mapped(self, block: PoolBlock) -> torch.Tensor:
        """Return the bytes of ``block`` as an ordinary tensor that costs no anonymous memory."""
        self.check_there("mapped")
        with self._lock:
            self._reap()
            self._save(block)
            if block.home is None:
                return torch.zeros(block.nbytes, dtype=torch.uint8)
            return torch.from_numpy(block.home.mapped())

    def joined(self, blocks: Sequence[PoolBlock]) -> torch.Tensor:
        """Return the bytes of ``blocks``, one after the other, as ``mapped`` does for one of them.

        They are copied to a backing store of their own, released when nobody holds the tensor.
        """
        home = self._backing.create(sum(block.nbytes for block in blocks))
        start = 0
        for block in blocks:
            start += home.write(start, self.mapped(block).numpy())
        pages = home.mapped()[:]
        weakref.finalize(pages, home.release)
        return torch.from_numpy(pages)

    def trace(self) -> Trace:
        """Return what happened so far; raises ValueError when the cache was made without a recorder."""
        if self._log is None:
            raise ArgumentError("[offload] no trace was recorded; offload with record=True")
        with self._lock:
            return self._log.trace()

    def report(self) -> OffloadReport:
        """Return what was moved, held and waited for so far."""
        with self._lock:
            self._reap()
            stats, residence = self._table.stats, self._buffers
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
                peak_tensor_bytes=0 if self._guard is None else self._guard.most_bytes,
                device=self.name,
                budget_bytes=self._budget_bytes or 0,
                home_bytes=self._backing.nbytes if isinstance(self._backing, TieredBacking) else {},
            )

    def check_there(self, op: str) -> None:
        """Raise DeviceError when it is closed, or in a process that was forked without its threads."""
        if self._closed:
            raise DeviceError(
                f"[{op}] the weights are gone: close() gave their memory and files back; make the model "
                "again, or open its checkpoint again, and offload it (restore() keeps the weights instead)"
            )
        if os.getpid() != self._process:
            raise DeviceError(
                f"[{op}] the model was offloaded in the process {self._process}, of which this one is a fork "
                "without its threads; offload it here, or in a process that is started with 'spawn'"
            )

    def close(self) -> None:
        """Return all memory and scratch space; contents are lost."""
        with self._lock:
            self._closed = True
            for block in self._table.resident:
                self._table.free(block, self._prefetcher.step)
            self._buffers.close()
            self._backing.close()
        self.release_budget()

    def release_budget(self) -> None:
        """Return the budget to the account of the process; the cache no longer keeps to it."""
        if self._reservation is not None:
            self._reservation.release()

    def _adopt_rows(self, rows: torch.Tensor, name: str, role: str) -> PoolBlock:
        home = self._backing.create(rows.nbytes)
        if has_bytes(rows):
            home.write(0, rows.cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return self._register(rows.nbytes, name, role, home)

    def _register(self, nbytes: int, name: str, role: str, home: BackingStore | None) -> PoolBlock:
        with self._lock:
            self._reap()
            block = self._prefetcher.create(nbytes, role, name)
            if role != "activation":
                self._alive_bytes += nbytes
                self._most_alive_bytes = max(self._most_alive_bytes, self._alive_bytes)
            block.home = home
            block.filled = home is not None
            return block

    def _begin(self, uses: Sequence[Use], op: str, output_bytes: int = 0) -> tuple[Pins, list[torch.Tensor]]:
        with self._lock:
            if self._pending_free:
                self._reap()
            if self._guard is not None:
                self._update_withheld(self._guard, output_bytes)
            self._uses += 1
            self._most_pinned_bytes = max(self._most_pinned_bytes, sum(block.nbytes for block, _, _ in uses))
            pins = self._pin(uses, op, output_bytes)
        try:
            return pins, [self._wait_ready(slab, use) for slab, use in zip(pins.given, uses, strict=True)]
        except BaseException:
            self._cancel_use(pins, uses)
            raise

    def _pin(self, uses: Sequence[Use], op: str, output_bytes: int) -> Pins:
        """Pin the blocks of an operation; what a phase is expected to need gives way to them."""
        try:
            return self._prefetcher.begin(uses, op)
        except BudgetExceededError as error:
            if self._guard is not None and self._guard.drop_expectation():
                self._update_withheld(self._guard, output_bytes)
                return self._pin(uses, op, output_bytes)
            heap_bytes = free_heap_bytes() if self.watched and self._arena is not None else 0
            raise refusal(op, uses, self._budget_bytes, error, heap_bytes) from error

    def _wait_ready(self, slab: Slab, use: Use) -> torch.Tensor:
        if use.write:
            slab.wait_saved()
        tensor: torch.Tensor = slab.wait_loaded()
        self._memory.lend(slab.memory)
        return tensor

    def _cancel_use(self, pins: Pins, uses: Sequence[Use]) -> None:
        """End a use whose blocks could not be loaded; loading is retried at their next use."""
        with self._lock:
            self._prefetcher.end(pins)
            self._prefetcher.forget_predictions()
            for use, slab in zip(uses, pins.given, strict=True):
                if slab.loading is not None and not self._table.pinned(use.block):
                    self._table.free(use.block, self._prefetcher.step)

    def _end(self, pins: Pins, stall_s: float, compute_s: float) -> None:
        for slab in pins.given:
            self._memory.used(slab.memory)
        with self._lock:
            self._prefetcher.end(pins)
            self._stall_s += stall_s
            self._compute_s += compute_s
            if self._log is not None:
                self._log.took(pins.step, compute_s, 0.0)

    def _make_guard(self, budget: CacheBudget) -> MemoryGuard:
        reserve_bytes = budget.limit_bytes - self.capacity_bytes
        if self._arena is not None:
            if arenas_in_torch():
                return MemoryGuard(reserve_bytes - budget.fixed_bytes, ArenaCount(self._arena))
            self._arena.keep_pages(False)
            give_pages_back(self)
        residence = self._buffers
        count = HeldCount(held_on(self.device), lambda: residence.allocated_bytes)
        return MemoryGuard(reserve_bytes, count, learns=not budget.planned)

    def _update_withheld(self, guard: MemoryGuard, output_bytes: int) -> None:
        withheld = self._withheld_bytes(guard, output_bytes)
        if withheld > self._prefetcher.withheld_bytes and self._arena is not None and not guard.exact:
            trim_heap()  # what a heap holds and nobody uses is no reason for blocks to leave
            withheld = self._withheld_bytes(guard, output_bytes)
        if withheld != self._prefetcher.withheld_bytes:
            self._set_withheld(withheld)

    def _withheld_bytes(self, guard: MemoryGuard, output_bytes: int) -> int:
        return guard.withheld_bytes(output_bytes, settled=self._buffers.settled)

    def _set_withheld(self, withheld_bytes: int) -> None:
        """Evict blocks until ``withheld_bytes`` of the capacity are free, and keep them free."""
        self._prefetcher.withheld_bytes = withheld_bytes
        self._prefetcher.forget_predictions()
        self._table.evict(withheld_bytes - self._table.room_bytes, self._prefetcher.step)
        self._buffers.limit(self.capacity_bytes - withheld_bytes)

    def _make_room(self, missing_bytes: int) -> bool:
        """Evict blocks for a tensor for which the arena lacks ``missing_bytes``.

        Raises BudgetExceededError when too few blocks can be evicted.
        """
        arena = self._arena
        assert arena is not None, "an arena asks for room"
        with self._lock:
            wanted = arena.committed_bytes - missing_bytes
            self._buffers.limit(self.capacity_bytes - self._prefetcher.withheld_bytes)
            if arena.committed_bytes > wanted:
                self._set_withheld(self.capacity_bytes - wanted)
            if arena.committed_bytes <= wanted:
                return True
            refused = tensor_refusal(arena, arena.committed_bytes - wanted, self._budget_bytes or 0)
        self.scope.end_lingering()
        raise refused

    def _save(self, block: PoolBlock) -> None:
        """Write ``block`` back to its backing store; changes that are only predicted do not count."""
        if block in self._table:
            self._prefetcher.forget_predictions()
            self._table.save(block, self._prefetcher.step)
            self._buffers.here(block).wait_saved()
        elif block.leaving is not None:
            block.leaving.wait_or_repeat()

    def _reap(self) -> None:
        for _ in range(len(self._pending_free)):
            block = self._pending_free.popleft()
            if not self._prefetcher.free(block):
                self._pending_free.append(block)
                continue
            if block.role != "activation":
                self._alive_bytes -= block.nbytes
            if block.home is not None:
                self._buffers.vacate(block)


@final
class PinnedBlocks:
    """The time of one operation, in which its blocks are resident."""

    __slots__ = ("_began_s", "_cache", "_entry", "_op", "_output_bytes", "_pins", "_stall_s", "_uses")

    def __init__(self, cache: BlockCache, uses: Sequence[Use], op: str, output_bytes: int) -> None:
        self._cache = cache
        self._uses = uses
        self._op = op
        self._output_bytes = output_bytes

    def __enter__(self) -> list[torch.Tensor]:
        asked_s = time.perf_counter()
        self._pins, tensors = self._cache._begin(self._uses, self._op, self._output_bytes)
        self._began_s = time.perf_counter()
        self._stall_s = self._began_s - asked_s
        self._entry = self._cache.scope.open_for_use()
        return tensors

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._entry is not None:
            self._entry.close()
        compute_s = time.perf_counter() - self._began_s
        self._cache._end(self._pins, self._stall_s, compute_s)


def _arena(limit_bytes: int, cache: weakref.ref[BlockCache]) -> Arena:
    """Return memory for the blocks of a cache and for tensors, of which blocks make room for tensors."""

    def make_room(missing_bytes: int) -> bool:
        alive = cache()
        return alive is not None and alive._make_room(missing_bytes)

    return Arena(limit_bytes, make_room)


def _backing_for(place: TorchMemory, store: str | Path | None) -> BackingStores:
    simulated = isinstance(place, SimulatedTensorMemory)
    if store is not None or (place.device.type == "cpu" and not simulated):
        return ScratchBacking(store)
    return RamBacking(pinned_for=place.device if place.device.type == "cuda" else None)
