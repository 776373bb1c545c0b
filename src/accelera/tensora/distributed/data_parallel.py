"""Modules whose gradients are averaged over the ranks of a group while the backward pass goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from accelera.errors import ArgumentError, StateError
from accelera.tensora import autograd
from accelera.tensora.core import Tensor, native
from accelera.tensora.distributed.buckets import BUCKET_BYTES, Bucket, in_buckets, share
from accelera.tensora.distributed.group import CollectiveWork, ProcessGroup
from accelera.tensora.nn.module import Module


class DistributedDataParallel(Module):
    """Module of which each rank has a copy, with the mean of all ranks' gradients after each backward pass.

    At the beginning all ranks get the parameters and buffers of rank 0. Gradients are copied to buckets, in
    the reverse order of the parameters, and a bucket is reduced as soon as it is full, while the backward
    pass goes on. When ``backward()`` returns, ``grad`` of each parameter is the mean over the ranks. A
    parameter without a gradient in all ranks has none afterwards; where some ranks lack one, it counts as
    zero there.

    The loss is to be a mean over the rank's samples, and all ranks are to have as many of them: then the
    steps are those of one process with all samples.

    Parameters
    ----------
    module
        Of the same shapes in all ranks. Checkpoints and optimizers are given this one.
    process_group
        The ranks.
    bucket_bytes
        Bytes that are reduced at once.
    broadcast_buffers
        Before each forward pass that trains, give all ranks the buffers of rank 0, such as running means.

    Raises
    ------
    ValueError
        If the parameters or buffers of the ranks have other names, shapes or types, or there is nothing to
        train.

    """

    def __init__(
        self,
        module: Module,
        process_group: ProcessGroup,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        broadcast_buffers: bool = True,
    ) -> None:
        super().__init__()
        self.module = module
        self.process_group = process_group
        self._broadcast_buffers = broadcast_buffers
        self._synchronizes = True
        check_alike(process_group, module)
        trained = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
        if not trained:
            raise ArgumentError(
                "[DistributedDataParallel] no parameter requires gradients; use the module as it is"
            )
        share(process_group, [*module.parameters(), *module.buffers()])
        self._reducer = _GradientReducer(process_group, trained[::-1], bucket_bytes)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; its gradients will be averaged over the ranks."""
        if not autograd.is_grad_enabled():
            return self.module(*args, **kwargs)
        if self._broadcast_buffers and self._synchronizes and self.training:
            share(self.process_group, list(self.module.buffers()))
        self._reducer.check_done()
        return self._reducer.tied(self.module(*args, **kwargs), self._synchronizes)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context of forward passes whose gradients are added up in this rank and not averaged.

        The next pass outside of the context averages all that was added up.
        """
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before


def check_alike(group: ProcessGroup, module: Module) -> None:
    """Raise ValueError, in all ranks, unless all have the same names, shapes and types as rank 0."""
    named = [*module.named_parameters(), *module.named_buffers()]
    mine = [(name, tuple(each.shape), each.dtype.name, bool(each.requires_grad)) for name, each in named]
    found = group.all_gather_object(mine)
    faults = [
        f"rank {rank} {_difference(found[0], each)}" for rank, each in enumerate(found) if each != found[0]
    ]
    if faults:
        raise ArgumentError(
            f"[DistributedDataParallel] the ranks have different parameters: {'; '.join(faults)}. Make the"
            " module in the same way in all ranks"
        )


def _difference(first: list[Any], other: list[Any]) -> str:
    """Return, as text, the first difference between the parameters of a rank and those of rank 0."""
    for wanted, found in zip(first, other, strict=False):
        if wanted != found:
            return f"has {_describe(found)} where rank 0 has {_describe(wanted)}"
    return f"has {len(other)} parameters and buffers, rank 0 has {len(first)}"


def _describe(described: tuple[str, tuple[int, ...], str, bool]) -> str:
    name, shape, dtype, trained = described
    return f"{name!r} of shape {shape} and type {dtype}{'' if trained else ', not trained'}"


class _GradientReducer:
    """Buckets of gradients, each averaged over the ranks as soon as it is full.

    Buckets are reduced in a fixed order, the same in all ranks, whichever gradient is ready first. At the end
    of a backward pass the ranks exchange which parameters have gradients.

    A backward pass visits operations in reverse order. So outputs of the module are tied to a sentinel, a
    tensor as old as the reducer: once its gradient is ready, those of all parameters are. Only if the graph
    was made before the end of another backward pass, gradients of parameters may be ready later.
    """

    def __init__(self, group: ProcessGroup, named: list[tuple[str, Any]], bucket_bytes: int) -> None:
        self._group = group
        self._names = [name for name, _ in named]
        self._params = [each for _, each in named]
        self._members = in_buckets(self._params, bucket_bytes)
        self._buckets = [Bucket([self._params[i] for i in numbers]) for numbers in self._members]
        self._bucket_of = {i: b for b, numbers in enumerate(self._members) for i in numbers}
        self._mode = "idle"
        self._late = False
        self._passes_ended = 0
        self._arrived: set[int] = set()
        self._missing: list[int] = []
        self._works: list[CollectiveWork] = []
        itself = weakref.ref(self)  # hooks belong to parameters, which the reducer keeps
        self._sentinel = _sentinel_tensor(itself)
        for each in self._params:
            autograd.grad(native.sum(each), each)  # drop uses from before the sentinel was made
        hooks = [
            each.register_post_accumulate_grad_hook(functools.partial(_on_gradient, itself, i))
            for i, each in enumerate(self._params)
        ]
        weakref.finalize(self, _remove_all, hooks).atexit = False

    def check_done(self) -> None:
        """Raise RuntimeError if gradients of the last backward pass were left unreduced."""
        if self._mode == "reduce":
            absent = [name for i, name in enumerate(self._names) if i not in self._arrived]
            raise StateError(
                "[DistributedDataParallel] the last backward pass averaged no gradients, as those of"
                f" {', '.join(absent[:3])} did not come: the pass broke off, or its graph was older than the"
                " pass before; call backward() before the next forward pass, and restart after an error"
            )

    def tied(self, output: Any, synchronizes: bool) -> Any:
        """Return the output of a forward pass, with its tensors tied to this reducer."""
        found: list[Any] = []
        _map_tensors(output, found.append)
        if not found:
            return output
        begin = functools.partial(self._begin, synchronizes, self._passes_ended)
        made = native.attach("DistributedDataParallel", begin, [*found, self._sentinel], found)
        following = iter(made)
        return _map_tensors(output, lambda _: next(following))

    def _begin(self, synchronizes: bool, ends: int, *grads: Any) -> tuple[Any, ...]:
        """Begin the part of a backward pass that belongs to one forward pass."""
        if synchronizes and self._mode != "reduce":
            self._arrived.clear()
            self._missing = [len(numbers) for numbers in self._members]
            self._works = []
        if self._mode != "reduce":
            self._mode = "reduce" if synchronizes else "add"
            self._late = False
        self._late = self._late or ends != self._passes_ended
        return (*grads, native.full((), 0, native.to_dtype("float32")))

    def arrive(self, i: int) -> None:
        """Note that a parameter's gradient is ready, and begin to reduce the buckets that are full."""
        if self._mode == "add":
            return
        if self._mode == "idle" or i in self._arrived:
            raise StateError(
                f"[DistributedDataParallel] a gradient of {self._names[i]!r} came without a forward pass,"
                " or after those of the pass were averaged: call the DistributedDataParallel, not the module"
                " in it"
            )
        self._arrived.add(i)
        self._missing[self._bucket_of[i]] -= 1
        self._reduce_full_buckets()
        if len(self._arrived) == len(self._params):
            self._finish()

    def end(self) -> None:
        """Finish a backward pass in which not all parameters had a gradient."""
        self._passes_ended += 1
        if self._late:
            return
        if self._mode == "reduce":
            self._finish()
        self._mode = "idle"

    def _finish(self) -> None:
        """Reduce the remaining buckets, and write the means to the parameters' gradients."""
        with autograd.no_grad():
            self._missing = [0] * len(self._members)
            self._reduce_full_buckets()
            has = [int(each.grad is not None) for each in self._params]
            anywhere = native.asarray(has, native.to_dtype("int32"))
            self._group.all_reduce(anywhere, "max").wait()
            wanted = anywhere.tolist()
            for bucket, numbers, work in zip(self._buckets, self._members, self._works, strict=True):
                work.wait()
                for place, i in enumerate(numbers):
                    if wanted[i]:
                        self._write_mean(i, bucket, place)
        self._mode = "idle"

    def _reduce_full_buckets(self) -> None:
        while len(self._works) < len(self._buckets) and not self._missing[len(self._works)]:
            self._works.append(self._reduce(len(self._works)))

    def _reduce(self, b: int) -> CollectiveWork:
        """Begin to average the gradients of a bucket."""
        bucket = self._buckets[b]
        with autograd.no_grad():
            for place, i in enumerate(self._members[b]):
                if i in self._arrived and self._params[i].grad is None:
                    raise StateError(
                        f"[DistributedDataParallel] the gradient of {self._names[i]!r} was let go before it"
                        " was averaged, as budget(optimizer=...) does; leave optimizer= out"
                    )
                bucket.put(place, self._params[i].grad)
            bucket.flat /= self._group.size
        return self._group.all_reduce(bucket.flat)

    def _write_mean(self, i: int, bucket: Bucket, place: int) -> None:
        param = self._params[i]
        if param.grad is None:
            param.grad = native.full(tuple(param.shape), 0, param.dtype, param.device)
        bucket.take(place, param.grad)


def _sentinel_tensor(reducer: weakref.ref[_GradientReducer]) -> Any:
    """Return a tensor whose gradient is computed after those of all operations that follow it."""
    source = native.full((), 0, native.to_dtype("float32"))
    source.requires_grad = True
    with autograd.enable_grad():
        made = native.reshape(source, (1,))
        made = native.reshape(made, ())

    def end(_grad: Any) -> None:
        alive = reducer()
        if alive is not None:
            alive.end()

    made.register_hook(end)
    return made


def _on_gradient(reducer: weakref.ref[_GradientReducer], i: int, _param: Any) -> None:
    alive = reducer()
    if alive is not None:
        alive.arrive(i)


def _remove_all(hooks: list[autograd.Hook]) -> None:
    for hook in hooks:
        hook.remove()


def _map_tensors(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a structure with a function applied to each tensor in it that requires a gradient."""
    if isinstance(value, Tensor):
        return function(value) if value.requires_grad else value
    if isinstance(value, tuple | list):
        items = [_map_tensors(each, function) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _map_tensors(each, function) for key, each in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(
            value, **{each: _map_tensors(getattr(value, each), function) for each in names}
        )
    return value
