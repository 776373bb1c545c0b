"""The offloaded operands of one operation, and their bytes as ordinary tensors while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from accelera.offload.block import Block, Use

if TYPE_CHECKING:
    from accelera.offload.keeper import Keeper
    from accelera.offload.tensor import OffloadedTensor


def each_tensor(args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Go through the tensors among arguments, those in lists as well."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (one for one in value if isinstance(one, torch.Tensor))


def replaced(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return an argument with its tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [replaced(change, one) for one in value]
    return value


def place_of(tensor: OffloadedTensor) -> tuple[Block, int]:
    """Return the block in which ``tensor`` lies, and the tensor's offset in it in elements.

    It must lie in one block.
    """
    contents = tensor.contents
    if len(contents.blocks) == 1:
        return contents.blocks[0], int(tensor.storage_offset())
    from accelera.offload.tiled import layout_of

    layout = layout_of(tensor)
    return contents.blocks[layout.block], layout.offset - layout.starts[layout.block]


def show(tensor: OffloadedTensor, flat: torch.Tensor, offset: int) -> torch.Tensor:
    """Return the ordinary tensor that ``tensor`` is while the bytes of its block are in ``flat``."""
    typed = flat.view(tensor.dtype)
    shown = typed.as_strided(tensor.shape, tensor.stride(), typed.storage_offset() + offset)
    if tensor.is_conj():
        torch._C._set_conj(shown, True)
    if tensor.is_neg():
        torch._C._set_neg(shown, True)
    return shown


class Operands:
    """Which blocks an operation uses and how; a context in which their bytes are there."""

    def __init__(self, op: str) -> None:
        self._op = op
        self._uses: dict[Block, Use] = {}
        self._keepers: dict[Block, Keeper] = {}
        self._flats: dict[Block, torch.Tensor] = {}

    def add(self, tensor: OffloadedTensor, *, read: bool = True, write: bool = False) -> None:
        """Note that ``tensor`` is used."""
        block, _ = place_of(tensor)
        known = self._uses.get(block)
        if known is not None:
            read, write = read or known.read, write or known.write
        self._uses[block] = Use(block, read, write)
        self._keepers[block] = tensor.contents.keeper

    def __enter__(self) -> Operands:
        self._stack = ExitStack()
        for keeper in sorted(set(self._keepers.values()), key=id):
            uses = [use for block, use in self._uses.items() if self._keepers[block] is keeper]
            try:
                flats = self._stack.enter_context(keeper.use(uses, self._op))
            except BaseException:
                self._stack.close()
                raise
            self._flats.update((use.block, flat) for use, flat in zip(uses, flats, strict=True))
        return self

    def __exit__(self, *error: Any) -> None:
        self._flats.clear()
        self._stack.__exit__(*error)

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the ordinary tensor for an operand; one that is ordinary is given as it is."""
        contents = getattr(tensor, "contents", None)
        if contents is None:
            return tensor
        block, offset = place_of(tensor)  # type: ignore[arg-type]
        return show(tensor, self._flats[block], offset)  # type: ignore[arg-type]

    def kept(self, result: Any) -> Any:
        """Return a result as it may outlive the blocks: copied if it lies in one of them."""
        return replaced(self._kept, result)

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.device.type == "meta":
            return tensor
        storage = tensor.untyped_storage()._cdata
        for flat in self._flats.values():
            if flat.untyped_storage()._cdata == storage:
                return tensor.clone()
        return tensor
