"""Buckets: several tensors of one type and device side by side in flat memory, as collectives like them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelera.tensora import autograd
from accelera.tensora.core import Tensor, native
from accelera.tensora.distributed.group import ProcessGroup

BUCKET_BYTES = 25 << 20
"""Bytes of a bucket by default; a larger tensor has one of its own."""


class Bucket:
    """Flat memory with a place for each of several tensors of one type and device."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._shapes = [tuple(each.shape) for each in tensors]
        self._places: list[slice] = []
        end = 0
        for each in tensors:
            self._places.append(slice(end, end + each.size))
            end += each.size
        first = tensors[0]
        self.flat = native.full((end,), 0, first.dtype, first.device)
        """The memory."""

    def put(self, i: int, tensor: Any | None) -> None:
        """Copy a tensor to the place of number `i`; zeros for None."""
        place = self.flat[self._places[i]]
        if tensor is None:
            place.zero_()
        else:
            place[...] = native.reshape(tensor.detach(), (tensor.size,))

    def take(self, i: int, tensor: Tensor) -> None:
        """Copy the elements of tensor `i` in the bucket into a tensor."""
        tensor.detach()[...] = native.reshape(self.flat[self._places[i]], self._shapes[i])


def in_buckets(tensors: Sequence[Any], bucket_bytes: int) -> list[list[int]]:
    """Numbers of the tensors by bucket, in the order given; it depends on shapes, types and devices alone."""
    buckets: list[list[int]] = []
    open_ones: dict[Any, tuple[list[int], int]] = {}
    for i, each in enumerate(tensors):
        kind = each.dtype.name, str(each.device)
        bucket, used = open_ones.get(kind, ([], bucket_bytes))
        if used + each.nbytes > bucket_bytes:
            bucket, used = [], 0
            buckets.append(bucket)
        bucket.append(i)
        open_ones[kind] = bucket, used + each.nbytes
    return buckets


def share(group: ProcessGroup, tensors: Sequence[Any], source: int = 0) -> None:
    """Give tensors, in all ranks, the elements that they have in one rank; a few buckets at a time."""
    with autograd.no_grad():
        under_way: list[tuple[Bucket, list[Any], Any]] = []
        for numbers in in_buckets(tensors, BUCKET_BYTES):
            members = [tensors[i] for i in numbers]
            bucket = Bucket(members)
            if group.rank == source:
                for place, each in enumerate(members):
                    bucket.put(place, each)
            under_way.append((bucket, members, group.broadcast(bucket.flat, source)))
            if len(under_way) > 1:
                _unpack_bucket(group, source, *under_way.pop(0))
        for each in under_way:
            _unpack_bucket(group, source, *each)


def _unpack_bucket(group: ProcessGroup, source: int, bucket: Bucket, members: list[Any], work: Any) -> None:
    work.wait()
    if group.rank != source:
        for place, each in enumerate(members):
            bucket.take(place, each)
