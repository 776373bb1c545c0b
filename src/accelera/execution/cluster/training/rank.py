"""``Rank``: one of the processes that train a model together, and averaging of gradients in buckets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from accelera.errors import ArgumentError, ClusterError
from accelera.execution.cluster.training.checkpoint import (
    Position,
    buffers_of,
    check_parts,
    check_ranks,
    folder_of,
    parameters_of,
    restore,
    save,
)

if TYPE_CHECKING:
    import torch


BUCKET_BYTES: Final = 4 << 20
"""Bytes that one bucket has at most: all the memory that this takes beside the tensors."""


class _BucketSlice(NamedTuple):
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
        groups.setdefault((tensor.dtype, tensor.device), []).append(_in_memory_order(tensor.detach()))
    for (dtype, device), group in groups.items():
        room = max(1, bucket_bytes // dtype.itemsize)
        bucket = torch.empty(min(room, sum(one.numel() for one in group)), dtype=dtype, device=device)
        flats = [one.reshape(-1) for one in group]
        for pieces in _fill_buckets(flats, room):
            for piece in pieces:
                bucket[piece.start : piece.stop].copy_(piece.elements)
            yield bucket[: pieces[-1].stop]
            for piece in pieces if write else ():
                piece.elements.copy_(bucket[piece.start : piece.stop])
        for one, flat in zip(group, flats, strict=True) if write else ():
            if not one.is_contiguous():
                one.copy_(flat.view(one.shape))


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view with the dimensions in the order of memory, which is mostly contiguous.

    Of elements that are one in memory, as ``expand`` makes them, it has the first.
    """
    if tensor.is_contiguous():
        return tensor
    for dimension, stride in enumerate(tensor.stride()):
        tensor = tensor if stride else tensor.narrow(dimension, 0, min(1, tensor.shape[dimension]))
    return tensor.permute(sorted(range(tensor.ndim), key=tensor.stride, reverse=True))


def _fill_buckets(flats: Iterable[torch.Tensor], room: int) -> Iterator[list[_BucketSlice]]:
    """Yield the pieces of one bucket of ``room`` elements after the other."""
    pieces: list[_BucketSlice] = []
    used = 0
    for flat in flats:
        taken = 0
        while taken < flat.numel():
            count = min(room - used, flat.numel() - taken)
            pieces.append(_BucketSlice(flat[taken : taken + count], used, used + count))
            taken, used = taken + count, used + count
            if used == room:
                yield pieces
                pieces, used = [], 0
    if pieces:
        yield pieces


@final
class Rank:
    """One process of a training on a cluster: its number, its steps, and the average of gradients.

    ``torch.distributed`` is set up between the ranks: gloo, or NCCL where each has a GPU.
    """

    def __init__(self, train: Any, run: Path, device: torch.device) -> None:
        context = train.get_context()
        self._train = train
        self._run = run
        self._begun = False
        self.number: int = context.get_world_rank()
        """Which of the ranks this is, from 0."""
        self.count: int = context.get_world_size()
        """How many ranks there are."""
        self.device = device
        """``cuda:…`` where the rank has a GPU, else ``cpu``."""
        self._position = Position(ranks=self.count)

    def steps(self, count: int, *, every: int = 25, **parts: Any) -> Iterator[int]:
        """Yield the numbers of the steps that are left of ``count``, and keep what the ranks need to go on.

        At the beginning all ranks get the parameters and buffers of rank 0; after every ``every`` steps, and
        after the last, all write a checkpoint. When a rank dies, all are started again, and come here to what
        they were after the last checkpoint: parts, the generators of random numbers, and the number of the
        step, which tells the place in the data.

        Parameters
        ----------
        count
            Steps in all.
        every
            Steps from one checkpoint to the next.
        **parts
            What is to be kept, by name: modules, optimizers, schedulers, samplers, whatever has
            ``state_dict`` and ``load_state_dict``; and ``torch.Generator``. Parameters and optimizers must be
            the same in all ranks, as averaged gradients leave them; all else each rank has for itself.

        Raises
        ------
        TypeError
            For a part that cannot be kept, or what is no whole number.
        ValueError
            For a second call, ``every`` below 1, or a checkpoint of another number of ranks.
        KeyError
            For a part that the checkpoint does not have.
        ClusterError
            When the parameters of the ranks differ at a checkpoint.
        StoreError
            When a checkpoint cannot be written or read.
        """
        check_parts(parts)
        for what, number in (("count", count), ("every", every)):
            if not isinstance(number, (int, Integral)):
                raise ArgumentError(f"[train] steps({what}={number!r}): give a whole number of steps")
        if self._begun or every < 1:
            raise ArgumentError(f"[train] steps(every={every}) is called once, with every from 1")
        self._begun = True
        self._begin(parts)
        return self._run_steps(range(self._position.step, count), every, parts)

    def average_gradients(self, model: torch.nn.Module) -> None:
        """Give every parameter of ``model`` the mean of its gradients in all ranks.

        A few MiB at a time, so that offloaded models stay in their budget. A gradient that no rank has stays
        None; one that some ranks lack counts as zero there. The mean is that of DistributedDataParallel.
        Raises ValueError for sparse gradients.
        """
        import torch
        import torch.distributed as dist

        trained = [one for one in model.parameters() if one.requires_grad]
        has = torch.tensor([one.grad is not None for one in trained], dtype=torch.int32, device=self.device)
        dist.all_reduce(has, dist.ReduceOp.MAX)
        gradients = [_gradient(one) for one, some in zip(trained, has.tolist(), strict=True) if some]
        for bucket in in_buckets(gradients, write=True):
            bucket.div_(self.count)
            dist.all_reduce(bucket)

    def note(self, **values: float) -> None:
        """Note numbers under their names; each name has a list, which goes on after a restart."""
        for name, value in values.items():
            self._position.notes.setdefault(name, []).append(float(value))

    def _begin(self, parts: dict[str, Any]) -> None:
        """Go to the last checkpoint, or to the parameters of rank 0."""
        checkpoint = self._train.get_checkpoint()
        if checkpoint is None:
            self._broadcast([*parameters_of(parts), *buffers_of(parts)])
            return
        folder = Path(checkpoint.path)
        check_ranks(folder, self.count)
        self._position = restore(folder, self.number, parts)

    def _run_steps(self, steps: Iterable[int], every: int, parts: dict[str, Any]) -> Iterator[int]:
        last = None
        for last in steps:
            yield last
            self._position.step = last + 1
            if self._position.step % every == 0:
                self._save(parts)
        if last is not None and self._position.step % every:
            self._save(parts)

    def _save(self, parts: dict[str, Any]) -> None:
        self._check_equal(parameters_of(parts))
        folder = folder_of(self._run, self._position.step)
        save(folder, self.number, self._position, parts)
        self._train.report(
            {"step": self._position.step},
            checkpoint=self._train.Checkpoint(str(folder)),
            checkpoint_dir_name=folder.name,
            checkpoint_upload_mode=self._train.CheckpointUploadMode.NO_UPLOAD,
        )

    def _broadcast(self, tensors: list[torch.Tensor]) -> None:
        """Give all ranks what rank 0 has."""
        import torch
        import torch.distributed as dist

        for bucket in in_buckets(tensors, write=True):
            dist.broadcast(bucket.view(torch.uint8), 0)

    def _check_equal(self, tensors: list[torch.Tensor]) -> None:
        """Raise ``ClusterError`` unless all ranks have the same bits in ``tensors``."""
        import torch.distributed as dist

        mine = _digest(tensors)
        digests: list[Any] = [None] * self.count
        dist.all_gather_object(digests, mine)
        others = [number for number, digest in enumerate(digests) if digest != digests[0]]
        if others:
            raise ClusterError(
                f"[train] after step {self._position.step} the parameters of ranks {others} are not those of"
                f" rank 0, which the checkpoint keeps for all: average the gradients before optimizer.step(),"
                f" as rank.average_gradients(model) or DistributedDataParallel does"
            )


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return the gradient of ``parameter``, zeros if it had none."""
    import torch

    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if parameter.grad.layout is not torch.strided:
        raise ArgumentError(
            f"[average_gradients] a gradient of shape {tuple(parameter.shape)} is sparse, and only dense ones"
            f" are averaged: make the embedding with sparse=False"
        )
    return parameter.grad


def _digest(tensors: list[torch.Tensor]) -> bytes:
    import torch

    digest = hashlib.blake2b(digest_size=16)
    for bucket in in_buckets(tensors):
        digest.update(bucket.view(torch.uint8).cpu().numpy().data)
    return digest.digest()
