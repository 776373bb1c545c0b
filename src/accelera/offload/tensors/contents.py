"""The bytes behind offloaded tensors: one or more blocks, shared by a tensor and all its views."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from accelera.memory import Block
    from accelera.offload.keeping.keeper import Keeper


class Contents:
    """Contiguous bytes of one tensor, whole in one block or cut along its rows.

    The blocks are freed when the last tensor that refers to them is.
    """

    __slots__ = (
        "__weakref__",
        "_mapped",
        "_mapped_version",
        "blocks",
        "dtype",
        "keeper",
        "nbytes",
        "row_splits",
        "shape",
    )

    def __init__(
        self, keeper: Keeper, blocks: Sequence[Block], shape: Sequence[int], dtype: torch.dtype
    ) -> None:
        self.keeper = keeper
        self.blocks = tuple(blocks)
        self.shape = tuple(shape)
        """Shape of the contiguous tensor that the bytes are; rows are along its first dimension."""
        self.dtype = dtype
        self.nbytes = sum(block.nbytes for block in self.blocks)
        self.row_splits = self._splits()
        """First row of each block, then the number of rows."""
        self._mapped: weakref.ref[torch.Tensor] | None = None
        self._mapped_version: int | None = None

    def _splits(self) -> tuple[int, ...]:
        if len(self.blocks) < 2:
            return (0, self.shape[0] if self.shape else 1)
        row_bytes = self.nbytes // self.shape[0]
        splits = [0]
        for block in self.blocks:
            splits.append(splits[-1] + block.nbytes // row_bytes)
        return tuple(splits)

    def mapped(self, version: int | None = None) -> torch.Tensor:
        """Return the bytes as an ordinary flat uint8 tensor over a file or the host's memory.

        It takes no anonymous memory. As long as somebody holds it, the same one is given again, and these
        contents live. Another ``version``, which counts changes, is shown anew.
        """
        known = self._mapped() if self._mapped is not None else None
        if known is None or (version is not None and version != self._mapped_version):
            self._mapped_version = version
            one = len(self.blocks) == 1
            shown = self.keeper.mapped(self.blocks[0]) if one else self.keeper.joined(self.blocks)
            pages = shown.numpy()
            weakref.finalize(pages, _let_go, self).atexit = False
            known = torch.from_numpy(pages)
            self._mapped = weakref.ref(known)
        return known

    def __del__(self) -> None:
        for block in self.blocks:
            self.keeper.free(block)


def _let_go(contents: Contents) -> None:
    """Hold ``contents`` until their bytes are shown no more: after their death others take their homes."""
