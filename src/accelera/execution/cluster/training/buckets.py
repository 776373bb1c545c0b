"""Many tensors seen as a few flat ones of bounded size, as collective operations like them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import torch

BUCKET_BYTES: Final = 4 << 20
"""Bytes that one bucket has at most: all the memory that this takes beside the tensors."""


class _Piece(NamedTuple):
    """Some elements of a flat tensor, and where they are in a bucket."""

    elements: torch.Tensor
    start: int
    stop: int


def in_buckets(
    tensors: Iterable[torch.Tensor], *, write: bool = False, bucket_bytes: int = BUCKET_BYTES
) -> Iterator[torch.Tensor]:
    """Yield all elements of ``tensors`` in buckets: flat ordinary tensors of one dtype and device each.

    With ``write`` what was made of a bucket is put back before the next one. Tensors may be offloaded. The
    order depends on shapes, dtypes and devices alone, so that it is the same in every rank.
    """
    import torch

    groups: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(_as_it_lies(tensor.detach()))
    for (dtype, device), group in groups.items():
        room = max(1, bucket_bytes // dtype.itemsize)
        bucket = torch.empty(min(room, sum(one.numel() for one in group)), dtype=dtype, device=device)
        flats = [one.reshape(-1) for one in group]
        for pieces in _filled(flats, room):
            for piece in pieces:
                bucket[piece.start : piece.stop].copy_(piece.elements)
            yield bucket[: pieces[-1].stop]
            for piece in pieces if write else ():
                piece.elements.copy_(bucket[piece.start : piece.stop])
        for one, flat in zip(group, flats, strict=True) if write else ():
            if not one.is_contiguous():
                one.copy_(flat.view(one.shape))


def _as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view with the dimensions in the order of memory, which is mostly contiguous.

    Of elements that are one in memory, as ``expand`` makes them, it has the first.
    """
    if tensor.is_contiguous():
        return tensor
    for dimension, stride in enumerate(tensor.stride()):
        tensor = tensor if stride else tensor.narrow(dimension, 0, min(1, tensor.shape[dimension]))
    return tensor.permute(sorted(range(tensor.ndim), key=tensor.stride, reverse=True))


def _filled(flats: Iterable[torch.Tensor], room: int) -> Iterator[list[_Piece]]:
    """Yield the pieces of one bucket of ``room`` elements after the other."""
    pieces: list[_Piece] = []
    used = 0
    for flat in flats:
        taken = 0
        while taken < flat.numel():
            count = min(room - used, flat.numel() - taken)
            pieces.append(_Piece(flat[taken : taken + count], used, used + count))
            taken, used = taken + count, used + count
            if used == room:
                yield pieces
                pieces, used = [], 0
    if pieces:
        yield pieces
