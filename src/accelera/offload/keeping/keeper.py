"""Keeps the blocks of one model: where they live, who is resident, and what comes next."""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import final

import torch

from accelera._native import Arena
from accelera.devices import Device
from accelera.errors import BudgetExceededError, DeviceError
from accelera.memory import Block, Books, Pins, Residence, Slab, Stream, Use, window_of
from accelera.offload.homes import Home, Homes, RamHomes, ScratchHomes, TieredHomes
from accelera.offload.keeping.allocation_scope import AllocationScope
from accelera.offload.keeping.allocator import arenas_in_torch, free_heap_bytes, give_pages_back, trim
from accelera.offload.keeping.guard import ArenaCount, Guard, HeldCount, held_on
from accelera.offload.keeping.plain import has_bytes
from accelera.offload.keeping.refusing import refusal, tensor_refusal
from accelera.offload.keeping.report import OffloadReport
from accelera.offload.keeping.rows import row_parts
from accelera.offload.places import SimulatedPlace, TensorPlace, place_on
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
    window_bytes
        How much may be on its way beside what operations use; 0 for nothing, None for a choice by capacity.
    budget_bytes
        Most bytes for blocks and everything else together; what the process holds beyond the difference
        makes blocks leave. None means that nobody watches.
    fixed_bytes
        Part of the difference for what is neither block nor tensor, such as staging buffers.
    planned
        Whether the difference was planned, so that it holds all that operations take at once; else what
        they took is learned.
    store
        Folder for what is written; None means RAM beside an accelerator, else the system's folder for
        temporary files.
    device
        Device that computes; None means the CPU.
    place, homes
        Where resident bytes are, and the others, instead of what ``device`` and ``store`` say.
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
        window_bytes: int | None = None,
        budget_bytes: int | None = None,
        fixed_bytes: int = 0,
        planned: bool = False,
        store: str | Path | None = None,
        device: Device | torch.device | str | None = None,
        place: TensorPlace | None = None,
        homes: Homes | None = None,
        recorder: bool = False,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.least_bytes = least_bytes
        self.block_bytes = max(1, capacity_bytes // 4) if block_bytes is None else block_bytes
        self.window_bytes = window_of(capacity_bytes, window_bytes)
        shared_bytes = capacity_bytes if budget_bytes is None else budget_bytes - fixed_bytes
        make_arena = functools.partial(_arena, shared_bytes, weakref.ref(self))
        self._place = place_on(device, make_arena) if place is None else place
        self.device: torch.device = self._place.device
        self.name = device.name if isinstance(device, Device) else str(self.device)
        """Name of the device that computes."""
        self._homes = _homes_for(self._place, store) if homes is None else homes
        self._log = TraceLog() if recorder else None
        if self._log is not None:
            facts = {"operation": "offload", "policy": policy, "capacity_bytes": capacity_bytes}
            self._log.begin({**facts, "device": str(self.device)})
        self._residence = Residence(capacity_bytes, self._place, self._homes)
        self._books = Books(capacity_bytes, policy, self._residence, self._log)
        self._stream = Stream(self._books, self.window_bytes)
        self._budget_bytes = budget_bytes
        self._arena = self._place.arena
        self._guard: Guard | None = None
        if budget_bytes is not None:
            self._guard = self._made_guard(budget_bytes - capacity_bytes, fixed_bytes, planned)
        charged = self._arena if self._guard is not None and self._guard.exact else None
        self.scope = AllocationScope(charged, self._guard)
        """The parts of a program in which new tensors count against the budget."""
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._closed = False
        self._dying: deque[Block] = deque()
        self._uses = 0
        self._alive_bytes = self._most_alive_bytes = self._most_pinned_bytes = 0
        self._stall_s = self._compute_s = 0.0

    @property
    def step(self) -> int:
        """The latest step of the trace."""
        return self._stream.step

    @property
    def watched(self) -> bool:
        """Whether results have to be announced before they are made, so that blocks leave in time."""
        return self._guard is not None and not self._guard.exact

    @property
    def events(self) -> int:
        """Number of events that the trace has so far; 0 without a recorder."""
        return 0 if self._log is None else len(self._log)

    @property
    def peak_allocated_bytes(self) -> int:
        """Most memory that was allocated for blocks, what was kept for reuse included."""
        return self._residence.peak_allocated_bytes

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
        """Expect that tensors take ``nbytes`` in a phase; see ``Guard``."""
        if self._guard is not None:
            self._guard.expect(phase, nbytes)

    def adopt(self, tensor: torch.Tensor, name: str = "", role: str = "weight") -> tuple[Block, ...]:
        """Take over the contents of ``tensor``, in row-major order: they go home now; return its blocks.

        A tensor of more than ``block_bytes`` is cut along its first axis.
        """
        parts = row_parts(tensor.shape, tensor.element_size(), self.block_bytes)
        rows = tensor.detach() if tensor.ndim else tensor.detach().reshape(1)
        return tuple(self._adopt_rows(rows[part], _part_name(name, part, len(parts)), role) for part in parts)

    def attach(self, home: Home, nbytes: int, name: str = "", role: str = "weight") -> Block:
        """Return a block whose contents ``home`` holds already; what is read-only is saved elsewhere."""
        return self._register(nbytes, name, role, home)

    def create(self, nbytes: int, name: str = "", role: str = "") -> Block:
        """Return a block without contents: the first use writes them."""
        return self._register(nbytes, name, role, None)

    def use(self, uses: Sequence[Use], op: str = "", coming_bytes: int = 0) -> Using:
        """Return a context in which the blocks are resident; it gives flat uint8 tensors on ``device``.

        Beside them, the budget is to have room for ``coming_bytes``, such as a result. Entering raises
        BudgetExceededError when the blocks do not fit together.
        """
        self.check_there(op)
        return Using(self, uses, op, coming_bytes)

    def free(self, block: Block) -> None:
        """End a block's life; may be called from a finaliser in any thread."""
        self._dying.append(block)

    def let_go(self) -> None:
        """Give the room of blocks back whose life has ended."""
        with self._lock:
            self._bury()

    def flush(self) -> None:
        """Write every dirty block home, let all transfers end; raises StoreError when one cannot be saved."""
        with self._lock:
            self._bury()
            for block in self._books.resident:
                self._save(block)
            self._residence.drain()

    def mapped(self, block: Block) -> torch.Tensor:
        """Return the bytes of ``block`` as an ordinary tensor that costs no anonymous memory."""
        self.check_there("mapped")
        with self._lock:
            self._bury()
            self._save(block)
            if block.home is None:
                return torch.zeros(block.nbytes, dtype=torch.uint8)
            return torch.from_numpy(block.home.mapped())

    def joined(self, blocks: Sequence[Block]) -> torch.Tensor:
        """Return the bytes of ``blocks``, one after the other, as ``mapped`` does for one of them.

        They are copied to a home of their own, which is given back when nobody holds the tensor.
        """
        home = self._homes.create(sum(block.nbytes for block in blocks))
        start = 0
        for block in blocks:
            start += home.write(start, self.mapped(block).numpy())
        pages = home.mapped()[:]
        weakref.finalize(pages, home.release)
        return torch.from_numpy(pages)

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
            stats, residence = self._books.stats, self._residence
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
                home_bytes=self._homes.nbytes if isinstance(self._homes, TieredHomes) else {},
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
            for block in self._books.resident:
                self._books.free(block, self._stream.step)
            self._residence.close()
            self._homes.close()

    def _adopt_rows(self, rows: torch.Tensor, name: str, role: str) -> Block:
        home = self._homes.create(rows.nbytes)
        if has_bytes(rows):
            home.write(0, rows.cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return self._register(rows.nbytes, name, role, home)

    def _register(self, nbytes: int, name: str, role: str, home: Home | None) -> Block:
        with self._lock:
            self._bury()
            block = self._stream.create(nbytes, role, name)
            if role != "activation":
                self._alive_bytes += nbytes
                self._most_alive_bytes = max(self._most_alive_bytes, self._alive_bytes)
            block.home = home
            block.filled = home is not None
            return block

    def _begin(self, uses: Sequence[Use], op: str, coming_bytes: int = 0) -> tuple[Pins, list[torch.Tensor]]:
        with self._lock:
            if self._dying:
                self._bury()
            if self._guard is not None:
                self._withhold(self._guard, coming_bytes)
            self._uses += 1
            self._most_pinned_bytes = max(self._most_pinned_bytes, sum(block.nbytes for block, _, _ in uses))
            try:
                pins = self._stream.begin(uses, op)
            except BudgetExceededError as error:
                heap_bytes = free_heap_bytes() if self.watched and self._arena is not None else 0
                raise refusal(op, uses, self._budget_bytes, error, heap_bytes) from error
        try:
            return pins, [self._ready(slab, use) for slab, use in zip(pins.given, uses, strict=True)]
        except BaseException:
            self._give_up(pins, uses)
            raise

    def _ready(self, slab: Slab, use: Use) -> torch.Tensor:
        if use.write:
            slab.wait_saved()
        tensor: torch.Tensor = slab.wait_loaded()
        self._place.lend(slab.memory)
        return tensor

    def _give_up(self, pins: Pins, uses: Sequence[Use]) -> None:
        """Let go of what could not be brought; it is tried again when it is used again."""
        with self._lock:
            self._stream.end(pins)
            self._stream.forget_guesses()
            for use, slab in zip(uses, pins.given, strict=True):
                if slab.loading is not None and not self._books.pinned(use.block):
                    self._books.free(use.block, self._stream.step)

    def _end(self, pins: Pins, stall_s: float, compute_s: float) -> None:
        for slab in pins.given:
            self._place.used(slab.memory)
        with self._lock:
            self._stream.end(pins)
            self._stall_s += stall_s
            self._compute_s += compute_s
            if self._log is not None:
                self._log.took(pins.step, compute_s, 0.0)

    def _made_guard(self, reserve_bytes: int, fixed_bytes: int, planned: bool) -> Guard:
        if self._arena is not None:
            if arenas_in_torch():
                return Guard(reserve_bytes - fixed_bytes, ArenaCount(self._arena))
            self._arena.keep_pages(False)
            give_pages_back(self)
        residence = self._residence
        count = HeldCount(held_on(self.device), lambda: residence.allocated_bytes)
        return Guard(reserve_bytes, count, learns=not planned)

    def _withhold(self, guard: Guard, coming_bytes: int) -> None:
        withheld = self._withheld_by(guard, coming_bytes)
        if withheld > self._stream.withheld_bytes and self._arena is not None and not guard.exact:
            trim()  # what a heap holds and nobody uses is no reason for blocks to leave
            withheld = self._withheld_by(guard, coming_bytes)
        if withheld != self._stream.withheld_bytes:
            self._leave_empty(withheld)

    def _withheld_by(self, guard: Guard, coming_bytes: int) -> int:
        return guard.withheld_bytes(coming_bytes, settled=self._residence.settled)

    def _leave_empty(self, withheld_bytes: int) -> None:
        """Let blocks leave until so much of the capacity is empty, and keep it so."""
        self._stream.withheld_bytes = withheld_bytes
        self._stream.forget_guesses()
        self._books.evict(withheld_bytes - self._books.room_bytes, self._stream.step)
        self._residence.limit(self.capacity_bytes - withheld_bytes)

    def _make_room(self, missing_bytes: int) -> bool:
        """Let blocks leave for a tensor for which the arena lacks ``missing_bytes``.

        Raises BudgetExceededError when those that may leave are not enough.
        """
        arena = self._arena
        assert arena is not None, "an arena asks for room"
        with self._lock:
            wanted = arena.committed_bytes - missing_bytes
            self._residence.limit(self.capacity_bytes - self._stream.withheld_bytes)
            if arena.committed_bytes > wanted:
                self._leave_empty(self.capacity_bytes - wanted)
            if arena.committed_bytes <= wanted:
                return True
            refused = tensor_refusal(arena, arena.committed_bytes - wanted, self._budget_bytes or 0)
        self.scope.end_lingering()
        raise refused

    def _save(self, block: Block) -> None:
        """Let the home of ``block`` hold its contents; a change that is only expected is yet to be made."""
        if block in self._books:
            self._stream.forget_guesses()
            self._books.save(block, self._stream.step)
            self._residence.here(block).wait_saved()
        elif block.leaving is not None:
            block.leaving.wait_or_repeat()

    def _bury(self) -> None:
        for _ in range(len(self._dying)):
            block = self._dying.popleft()
            if not self._stream.free(block):
                self._dying.append(block)
                continue
            if block.role != "activation":
                self._alive_bytes -= block.nbytes
            if block.home is not None:
                self._residence.vacate(block)


@final
class Using:
    """The time of one operation, in which its blocks are resident."""

    __slots__ = ("_began_s", "_coming_bytes", "_entry", "_keeper", "_op", "_pins", "_stall_s", "_uses")

    def __init__(self, keeper: Keeper, uses: Sequence[Use], op: str, coming_bytes: int) -> None:
        self._keeper = keeper
        self._uses = uses
        self._op = op
        self._coming_bytes = coming_bytes

    def __enter__(self) -> list[torch.Tensor]:
        asked_s = time.perf_counter()
        self._pins, tensors = self._keeper._begin(self._uses, self._op, self._coming_bytes)
        self._began_s = time.perf_counter()
        self._stall_s = self._began_s - asked_s
        self._entry = self._keeper.scope.open_for_use()
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
        self._keeper._end(self._pins, self._stall_s, compute_s)


def _arena(limit_bytes: int, keeper: weakref.ref[Keeper]) -> Arena:
    """Return memory for the blocks of a keeper and for tensors, of which blocks make room for tensors."""

    def make_room(missing_bytes: int) -> bool:
        alive = keeper()
        return alive is not None and alive._make_room(missing_bytes)

    return Arena(limit_bytes, make_room)


def _homes_for(place: TensorPlace, store: str | Path | None) -> Homes:
    simulated = isinstance(place, SimulatedPlace)
    if store is not None or (place.device.type == "cpu" and not simulated):
        return ScratchHomes(store)
    return RamHomes(pinned_for=place.device if place.device.type == "cuda" else None)


def _part_name(name: str, part: slice, parts: int) -> str:
    return name if parts == 1 else f"{name}[{part.start}:{part.stop}]"
