"""Homes in RAM up to a limit, and in files from there on."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import final

from accelera.offload.homes.file import FileHome
from accelera.offload.homes.ram import RamHome, RamHomes
from accelera.offload.homes.scratch import ScratchHomes


@final
class TieredHomes:
    """RAM for what is created first, as long as it is at most ``ram_limit_bytes``; files for the rest.

    A home stays where it is: a pass uses all blocks in turn, so none of them deserves the RAM more than
    another. What is given back is there for homes that are created later. Safe to use from several threads.
    """

    def __init__(self, ram: RamHomes, files: ScratchHomes, ram_limit_bytes: int) -> None:
        self.ram_limit_bytes = ram_limit_bytes
        self._ram = ram
        self._files = files
        self._bytes = {"ram": 0, "files": 0}
        self._lock = threading.RLock()
        """The garbage collector may give a home back while this thread takes one."""

    @property
    def nbytes(self) -> Mapping[str, int]:
        """Bytes of the homes that there are, in ``"ram"`` and in ``"files"``."""
        with self._lock:
            return dict(self._bytes)

    def create(self, nbytes: int) -> RamHome | FileHome:
        """Return a home of ``nbytes``; raises DeviceMemoryError, StoreError when there is no room for it."""
        tier = self._reserved(nbytes)
        try:
            homes = self._ram if tier == "ram" else self._files
            return homes.create(nbytes, lambda: self._count(tier, -nbytes))
        except BaseException:
            self._count(tier, -nbytes)
            raise

    def close(self) -> None:
        """Give up every home made here."""
        self._ram.close()
        self._files.close()

    def _reserved(self, nbytes: int) -> str:
        with self._lock:
            tier = "ram" if self._bytes["ram"] + nbytes <= self.ram_limit_bytes else "files"
            self._count(tier, nbytes)
        return tier

    def _count(self, tier: str, nbytes: int) -> None:
        with self._lock:
            self._bytes[tier] += nbytes
