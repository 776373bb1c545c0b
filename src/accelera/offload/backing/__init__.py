"""Backing stores of blocks that are not resident: host memory, regions of files, scratch files."""

from __future__ import annotations

from accelera.memory import Bytes, Home, Homes
from accelera.offload.backing.file import FileRegion, OpenFile
from accelera.offload.backing.ram import RamBacking
from accelera.offload.backing.scratch import ScratchBacking, TieredBacking

__all__ = [
    "Bytes",
    "FileRegion",
    "Home",
    "Homes",
    "OpenFile",
    "RamBacking",
    "ScratchBacking",
    "TieredBacking",
]
