"""A result computed piece by piece: what memory has run out for is halved, and at last left to the CPU."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence

import torch

from accelera.devices import is_out_of_memory
from accelera.interceptor.falling_back import is_accelerator
from accelera.interceptor.regions import Region, halved


class Pieces(abc.ABC):
    """The pieces of one call's result.

    Parameters
    ----------
    device
        Where the call's operands are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._left_to_cpu = False
        self._fallbacks: list[str] = []

    @abc.abstractmethod
    def at_once(self, region: Region) -> None:
        """Compute one piece on the device, and store it when it is complete."""

    @abc.abstractmethod
    def on_cpu(self, region: Region) -> None:
        """Compute the same piece on the CPU."""

    @abc.abstractmethod
    def axes(self, region: Region) -> Sequence[int]:
        """Return the axes along which a piece may be halved, the first that can be is."""

    @abc.abstractmethod
    def release(self) -> None:
        """Free what the pieces share."""

    def compute(self, regions: Iterable[Region]) -> list[str]:
        """Compute every region; return the fallbacks taken.

        Raises torch's own error when not even the smallest piece can be computed.
        """
        for region in regions:
            self._compute(region)
        return self._fallbacks

    def _compute(self, region: Region) -> None:
        try:
            (self.on_cpu if self._left_to_cpu else self.at_once)(region)
            return
        except RuntimeError as error:
            smaller = self._smaller(region) if is_out_of_memory(error) else None
            if smaller is None:
                raise
            where = "in half the tile" if len(smaller) > 1 else "on the CPU"
            self._fallbacks.append(f"{where} after running out of memory: {error}")
        # Here the error and what its frames held are gone.
        self.release()
        for each in smaller:
            self._compute(each)

    def _smaller(self, region: Region) -> Sequence[Region] | None:
        """Return halves, or the region itself for the CPU, which does the rest too; None: nothing helps."""
        halves = halved(region, self.axes(region))
        if halves is not None or self._left_to_cpu or not is_accelerator(self._device):
            return halves
        self._left_to_cpu = True
        return [region]
