"""Where bytes live when they are not resident: regions of files, scratch space, host memory."""

from __future__ import annotations

from accelera.memory import Bytes, Home, Homes
from accelera.offload.homes.file import FileHome
from accelera.offload.homes.open_file import OpenFile
from accelera.offload.homes.ram import RamHomes
from accelera.offload.homes.scratch import ScratchHomes
from accelera.offload.homes.tiered import TieredHomes

__all__ = ["Bytes", "FileHome", "Home", "Homes", "OpenFile", "RamHomes", "ScratchHomes", "TieredHomes"]
