"""The compiled kernels, one section per file of csrc/bindings."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from accelera.policy import EvictionPolicy

_Array = np.ndarray[Any, np.dtype[Any]]

# arena
class Arena:
    limit_bytes: int
    ordinary_bytes: int
    committed_bytes: int
    touched_bytes: int
    peak_ordinary_bytes: int
    peak_bytes: int
    peak_touched_bytes: int
    log_size: int
    def __init__(self, limit_bytes: int, on_full: Callable[[int], bool] | None = None) -> None: ...
    def slab(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]: ...
    def commit(self, nbytes: int) -> None: ...
    def trim(self) -> None: ...
    def reset_peaks(self) -> None: ...
    def start_log(self) -> None: ...
    def take_log(self) -> np.ndarray[Any, np.dtype[np.int64]]: ...
    def block_at(self, address: int) -> int: ...
    def keep_pages(self, keeps: bool) -> None: ...
    def enter(self) -> int: ...

def leave_arena(token: int) -> None: ...
def arena_functions() -> tuple[int, int, int]: ...

# spmm
def spmm(
    pointers: _Array,
    indices: _Array,
    values: _Array,
    by_rows: bool,
    in_order: bool,
    rows: tuple[int, int],
    cols: tuple[int, int],
    b: _Array,
    c: _Array,
    accumulate: bool = False,
    threads: int = 0,
) -> None: ...

# igemm
def igemm(a: _Array, b: _Array, c: _Array, accumulate: bool = False, threads: int = 0) -> None: ...
def igemm_workspace_bytes(itemsize: int, threads: int = 0) -> int: ...
def igemm_cuda(
    a: int,
    b: int,
    c: int,
    m: int,
    n: int,
    k: int,
    a_strides: tuple[int, int],
    b_strides: tuple[int, int],
    c_strides: tuple[int, int],
    itemsize: int,
    accumulate: bool = False,
    stream: int = 0,
) -> None: ...
def igemm_cuda_launches(rows: int, cols: int) -> list[tuple[int, int, int, int, int, int]]: ...
def cuda_compiled() -> bool: ...

# tile_io
def set_io_backend(name: Literal["automatic", "kernel", "threads"]) -> None: ...

STAGING_BYTES_PER_THREAD: int

def read_region(
    file: int,
    offset: int,
    strides: list[int],
    out: _Array,
    direct_file: int = -1,
    prefer_cached: bool = False,
) -> tuple[int, int, int, int] | None: ...
def write_region(
    file: int,
    offset: int,
    strides: list[int],
    data: _Array,
    direct_file: int = -1,
    prefer_cached: bool = False,
) -> tuple[int, int, int, int] | None: ...

# order
class Order:
    def __init__(self) -> None: ...
    def note(self, id: int) -> None: ...
    def ahead(self, k: int) -> int: ...

# planner
_Prices = tuple[float, float, int, int]
_Lists = tuple[_Array, _Array]

class ActivationStep:
    def __init__(
        self,
        base: _Array,
        nbytes: _Array,
        producer: _Array,
        idle_from: _Array,
        needed: _Array,
        ends: _Array,
        packable: _Array,
        seconds: _Array,
        pure: _Array,
        reads: _Lists,
        makes: _Lists,
    ) -> None: ...
    def plans(self, prices: _Prices) -> list[tuple[int, float, bytes]]: ...
    def recomputations(self, prices: _Prices, fates: bytes) -> list[tuple[int, list[int]]]: ...

class StepGraph:
    def __init__(
        self,
        seconds: _Array,
        workspace: _Array,
        pure: _Array,
        reads: _Lists,
        writes: _Lists,
        births: _Lists,
        nbytes: _Array,
        born: _Array,
        freed: _Array,
        fixed: _Array,
        packed_bytes: _Array,
        pack_seconds: _Array,
    ) -> None: ...
    def choices(self, spill_s_per_byte: float, least_bytes: int) -> list[tuple[float, int, bytes]]: ...
    def memory(self, spill_s_per_byte: float, least_bytes: int, fates: bytes) -> tuple[int, int]: ...
    def schedule(
        self, spill_s_per_byte: float, least_bytes: int, fates: bytes, overlap: bool = True
    ) -> tuple[list[tuple[int, int, int, int]], list[int], int, int, float]: ...
    def added_seconds(self, spill_s_per_byte: float, least_bytes: int, fates: bytes) -> float: ...
    def gaps(self, least_bytes: int) -> list[tuple[int, int, int]]: ...

# policy
class PolicyKnowledge:
    capacity_bytes: int
    def __init__(
        self,
        capacity_bytes: int = 0,
        buffers: int = 0,
        next_use: _Array | None = None,
        next_read: _Array | None = None,
        score: _Array | None = None,
        seed: int = 0,
    ) -> None: ...

class Policy:
    def __init__(self, name: str, known: PolicyKnowledge) -> None: ...
    def miss(self, buffer: int, nbytes: int, time: int, write: bool) -> None: ...
    def insert(self, buffer: int, nbytes: int, time: int, write: bool) -> None: ...
    def touch(self, buffer: int, time: int, write: bool) -> None: ...
    def evict(self, buffer: int) -> None: ...
    def remove(self, buffer: int) -> None: ...
    def victim(self, evictable: Callable[[int], bool]) -> int | None: ...
    def dead(self, buffer: int) -> bool: ...

def policy_needs() -> dict[str, list[str]]: ...

# cache
class CacheFigures:
    hits: int
    misses: int
    miss_bytes: int
    evictions: int
    evicted_bytes: int
    peak_bytes: int

def simulate_cache(
    policy: str | EvictionPolicy, known: PolicyKnowledge, buffers: _Array, kinds: _Array | None, sizes: _Array
) -> CacheFigures: ...

# trace
def stack_distances(
    buffers: _Array,
    kinds: _Array | None,
    sizes: _Array,
    distances: _Array,
    distances_bytes: _Array,
    needed_bytes: _Array,
) -> None: ...
def find_oversized_opcode(data: bytes) -> int: ...
def miss_curve(buffers: _Array, needed_bytes: _Array, sizes: _Array) -> tuple[_Array, _Array, _Array]: ...

# hierarchy
class PreparedTrace:
    recorded: bool
    largest_step_bytes: int
    def __init__(
        self, buffers: _Array, kinds: _Array | None, steps: _Array | None, sizes: _Array
    ) -> None: ...

class Flow:
    moves: int
    bytes: int
    busy_s: float

class LinkFigures:
    towards: Flow
    away: Flow

class TierFigures:
    hits: int
    misses: int
    evictions: int
    evicted_bytes: int
    fetched_bytes: int
    created_bytes: int
    saved_bytes: int
    peak_bytes: int

class ReplayHistory:
    def __init__(self) -> None: ...
    def step(self) -> _Array: ...
    def step_begin_s(self) -> _Array: ...
    def step_end_s(self) -> _Array: ...
    def move_link(self) -> _Array: ...
    def move_away(self) -> _Array: ...
    def move_buffer(self) -> _Array: ...
    def move_step(self) -> _Array: ...
    def move_bytes(self) -> _Array: ...
    def move_begin_s(self) -> _Array: ...
    def move_end_s(self) -> _Array: ...
    def resident_since_s(self) -> _Array: ...
    def resident_bytes(self) -> _Array: ...

class HierarchyFigures:
    tiers: list[TierFigures]
    links: list[LinkFigures]
    compute_s: float
    stall_s: float
    tail_s: float
    oversized_steps: int
    streamed_bytes: int
    recomputed_steps: int
    recomputed_s: float

def simulate_hierarchy(
    policy: str | list[EvictionPolicy],
    known: list[PolicyKnowledge],
    trace: PreparedTrace,
    capacities: list[int],
    links: list[tuple[float, float, float, bool]],
    hit_s: float,
    seconds: _Array | None,
    next_read: _Array | None,
    window: int,
    history: ReplayHistory | None,
) -> HierarchyFigures: ...
