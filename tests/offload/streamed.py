"""A model of nothing but blocks, used, made and freed in a run and on paper, with contents checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from accelera.memory._internal import BufferTable, PoolBlock, Prefetcher, Use, window_of
from accelera.offload.block_cache import BlockCache
from accelera.offload.config import OffloadConfig

BLOCK_BYTES = 4096
"""Size of the smallest block."""


@dataclass(frozen=True)
class Step:
    """One operation on blocks by their number: those it reads, those it changes, those it sets anew."""

    reads: tuple[int, ...] = ()
    changes: tuple[int, ...] = ()
    sets: tuple[int, ...] = ()
    frees: tuple[int, ...] = ()
    """Blocks that end after it; the next use of such a number makes a new one."""


class Run:
    """Steps carried out by a cache; every byte that is read is checked against what was written."""

    def __init__(self, sizes: list[int], capacity_bytes: int, **options: Any) -> None:
        where = {name: options.pop(name) for name in ("device", "memory", "backing") if name in options}
        config = OffloadConfig(**{"record": True, "block_bytes": 1 << 30, **options})
        self.cache = BlockCache(capacity_bytes, config, **where)
        self.sizes = sizes
        self.values = list(range(len(sizes)))
        self.blocks: dict[int, PoolBlock] = {}
        for number, nbytes in enumerate(sizes):
            content = torch.full((nbytes,), number % 251, dtype=torch.uint8)
            (self.blocks[number],) = self.cache.adopt(content, f"w{number}")

    def step(self, step: Step) -> None:
        """Carry out one step."""
        numbers, uses = uses_of(step, self._block)
        known = [use.read and use.block.filled for use in uses]
        with self.cache.use(uses, "step") as memories:
            for number, is_known, memory in zip(numbers, known, memories, strict=True):
                if is_known:
                    self.check(number, memory)
            for number, use, is_known, memory in zip(numbers, uses, known, memories, strict=True):
                if use.write or not is_known:
                    self.values[number] += 7
                    memory.fill_(self.values[number] % 251)
        for number in step.frees:
            if number in self.blocks:
                self.cache.free(self.blocks.pop(number))

    def check(self, number: int, memory: torch.Tensor) -> None:
        """Raise unless ``memory`` holds what block ``number`` should."""
        expected = self.values[number] % 251
        assert bool((memory == expected).all()), (number, expected, memory[:4])

    def check_homes(self) -> None:
        """Raise unless every living block, saved and mapped, holds what it should."""
        self.cache.flush()
        for number, block in self.blocks.items():
            self.check(number, self.cache.mapped(block))

    def _block(self, number: int) -> PoolBlock:
        if number not in self.blocks:
            self.blocks[number] = self.cache.create(self.sizes[number], f"n{number}")
            self.values[number] = 0
        return self.blocks[number]


class Paper:
    """The same steps on paper."""

    def __init__(
        self, sizes: list[int], capacity_bytes: int, policy: str = "loop", prefetch_bytes: int | None = None
    ) -> None:
        self.books = BufferTable(capacity_bytes, policy)
        self.stream = Prefetcher(self.books, window_of(capacity_bytes, prefetch_bytes))
        self.sizes = sizes
        self.blocks = {
            number: self._made(nbytes, "weight", filled=True) for number, nbytes in enumerate(sizes)
        }

    def step(self, step: Step) -> None:
        """Count one step."""
        _, uses = uses_of(step, self._block)
        self.stream.end(self.stream.begin(uses, "step"))
        for number in step.frees:
            if number in self.blocks:
                assert self.stream.free(self.blocks.pop(number))

    def _block(self, number: int) -> PoolBlock:
        if number not in self.blocks:
            self.blocks[number] = self._made(self.sizes[number], "", filled=False)
        return self.blocks[number]

    def _made(self, nbytes: int, role: str, *, filled: bool) -> PoolBlock:
        block = self.stream.create(nbytes, role, "")
        block.filled = filled
        return block


def uses_of(step: Step, block: Any) -> tuple[list[int], list[Use]]:
    """Return the blocks of a step by number, and how it uses each; nobody twice."""
    ways = {**dict.fromkeys(step.sets, (False, True)), **dict.fromkeys(step.reads, (True, False))}
    ways.update(dict.fromkeys(step.changes, (True, True)))
    return list(ways), [Use(block(number), *way) for number, way in ways.items()]
