"""Backing stores of blocks that are not resident: host memory, regions of files, scratch files."""

from __future__ import annotations

from accelera.memory import BackingStore, BackingStores, Bytes
from accelera.offload.backing.file import FileRegion, OpenFile
from accelera.offload.backing.ram import RamBacking
from accelera.offload.backing.scratch import ScratchBacking, TieredBacking

__all__ = [
    "BackingStore",
    "BackingStores",
    "Bytes",
    "FileRegion",
    "OpenFile",
    "RamBacking",
    "ScratchBacking",
    "TieredBacking",
]
