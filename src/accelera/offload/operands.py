"""Offloaded operands of one operator, pinned and shown as ordinary tensors while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import torch

from accelera.memory import PoolBlock, Use
from accelera.offload.tensor import layout_of

if TYPE_CHECKING:
    from accelera.offload.block_cache import BlockCache
    from accelera.offload.block_layout import BlockLayout
    from accelera.offload.tensor import OffloadedTensor


def place_of(tensor: OffloadedTensor) -> tuple[PoolBlock, int]:
    """Return the block in which ``tensor`` lies, and the tensor's offset in it in elements.

    It must lie in one block.
    """
    blocks = tensor.block_storage.blocks
    if len(blocks) == 1:
        return blocks[0], int(tensor.storage_offset())
    layout = layout_of(tensor)
    return blocks[layout.block], layout.offset - layout.starts[layout.block]


def show(
    tensor: OffloadedTensor, flat: torch.Tensor, offset: int, part: BlockLayout | None = None
) -> torch.Tensor:
    """Return the ordinary tensor that ``tensor``, or a part of it, is while its block is in ``flat``.

    ``offset`` is its offset in the block in elements.
    """
    typed = flat.view(tensor.dtype)
    sizes, strides = (tensor.shape, tensor.stride()) if part is None else (part.sizes, part.strides)
    shown = typed.as_strided(sizes, strides, typed.storage_offset() + offset)
    if tensor.is_conj():
        torch._C._set_conj(shown, True)
    if tensor.is_neg():
        torch._C._set_neg(shown, True)
    return shown


class PinnedOperands:
    """A context in which the bytes of an operation's offloaded operands are there.

    Each lies in one block. Those in ``changed`` (by identity) are written; ``overwrites``: with no regard to
    what they held. Room for ``output_bytes`` is to be beside them.
    """

    __slots__ = (
        "_caches",
        "_context",
        "_offsets",
        "_op",
        "_output_bytes",
        "_shown",
        "_storages",
        "_tensors",
        "_uses",
    )

    def __init__(
        self,
        op: str,
        tensors: Iterable[OffloadedTensor],
        changed: Iterable[int] = (),
        *,
        overwrites: bool = False,
        output_bytes: int = 0,
    ) -> None:
        self._op = op
        self._output_bytes = output_bytes
        self._tensors: dict[int, tuple[OffloadedTensor, PoolBlock, int]] = {}
        self._uses: dict[PoolBlock, Use] = {}
        self._caches: dict[PoolBlock, BlockCache] = {}
        for tensor in tensors:
            block, offset = place_of(tensor)
            write = id(tensor) in changed
            read = not (write and overwrites and _covers(tensor))
            known = self._uses.get(block)
            if known is not None:
                read, write = read or known.read, write or known.write
            self._tensors[id(tensor)] = (tensor, block, offset)
            self._uses[block] = Use(block, read, write)
            self._caches[block] = tensor.block_storage.cache

    def __enter__(self) -> PinnedOperands:
        caches = set(self._caches.values())
        if len(caches) == 1:
            self._context: AbstractContextManager[Any] = caches.pop().use(
                list(self._uses.values()), self._op, self._output_bytes
            )
            flats = dict(zip(self._uses, self._context.__enter__(), strict=True))
        else:
            flats = self._enter_each(caches)
        self._shown = {
            key: show(tensor, flats[block], offset) for key, (tensor, block, offset) in self._tensors.items()
        }
        self._storages = {flat.untyped_storage()._cdata for flat in flats.values()}
        return self

    def _enter_each(self, caches: set[BlockCache]) -> dict[PoolBlock, torch.Tensor]:
        """Enter the pools of several caches, in the same order in every thread.

        That of the first operand makes room for the output.
        """
        first = next(iter(self._caches.values()))
        flats: dict[PoolBlock, torch.Tensor] = {}
        with ExitStack() as stack:
            for cache in sorted(caches, key=id):
                uses = [use for block, use in self._uses.items() if self._caches[block] is cache]
                given = stack.enter_context(
                    cache.use(uses, self._op, self._output_bytes if cache is first else 0)
                )
                flats.update((use.block, flat) for use, flat in zip(uses, given, strict=True))
            self._context = stack.pop_all()
        return flats

    def __exit__(self, *error: Any) -> None:
        self._shown = {}
        self._context.__exit__(*error)

    def bring(self, value: Any) -> Any:
        """Return an argument with ordinary tensors for the operands; what is ordinary is given as it is."""
        if isinstance(value, torch.Tensor):
            return self._shown.get(id(value), value)
        if isinstance(value, (list, tuple)):
            return [self.bring(one) for one in value]
        return value

    def kept(self, result: Any) -> Any:
        """Return a result as it may outlive the blocks: copied if it lies in one of them."""
        if isinstance(result, torch.Tensor):
            return result.clone() if self._is_here(result) else result
        if isinstance(result, (list, tuple)):
            return type(result)(self.kept(one) for one in result)
        return result

    def _is_here(self, tensor: torch.Tensor) -> bool:
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._storages


def _covers(tensor: OffloadedTensor) -> bool:
    """Whether ``tensor`` is all of its block."""
    return len(tensor.blocks) == 1 and tensor.numel() * tensor.element_size() == tensor.block_storage.nbytes
