"""Fake GPU in the place of torch's: real numbers, CUDA's rules of memory, streams and errors."""

from __future__ import annotations

import collections
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, final

import torch
from torch.utils._pytree import tree_leaves

from accelera.testing.caching_allocator import CachingAllocator, MemoryBlock
from accelera.testing.device_errors import accelerator_error, out_of_memory
from accelera.testing.device_tensor import active_fakes, on_device
from accelera.testing.fake_streams import USUAL, FakeStream
from accelera.testing.happens_before import HOST, HappensBefore, Span
from accelera.testing.torch_stand_ins import StandIns
from accelera.units import parse_limit

_UNDEFINED_BYTE = 0xFF
"""Byte that fills new memory: every float is NaN, so that a read of undefined contents is seen."""
_MIXED_DEVICE_OPERATORS = frozenset(("index", "index_put_", "_index_put_impl_"))
"""Operators that take indices from the host, too."""


class _StorageBlock(NamedTuple):
    """Device memory under a tensor."""

    device: int
    block: MemoryBlock


class Registered(NamedTuple):
    """Host memory that ``cudaHostRegister`` pinned."""

    nbytes: int
    flags: int
    device: int
    """The device that was current."""


@final
class FakeCuda:
    """GPUs without a GPU: ``torch`` finds them while the context is entered.

    Tensors on them are ``DeviceTensor``: torch's functions take them, and every operation is a launch on the
    current stream of its thread. Leaving the context raises DataRaceError when two launches touched the same
    bytes and nothing ordered them. Modules and gradients are not moved: give tensors to what is tested.

    Parameters
    ----------
    memory
        Of each device, such as ``"8GiB"``; it is counted and not taken.
    devices
        How many there are.
    kind
        Torch's name for such devices; ``"mps"`` has no streams, and its copies go on unless they are waited
        for.
    library_bytes
        What a product keeps on each stream: 32 MiB of cuBLAS's workspace on an H100 or H200.
    dies_at
        Number of the launch, from 1, that kills the process's use of the devices. As with CUDA, the launch
        itself returns, and everything after it raises the same error.

    >>> import torch
    >>> with FakeCuda("1GiB") as cuda:
    ...     a = torch.ones(2, 2, device="cuda")
    ...     (a @ a).cpu().tolist(), torch.cuda.memory_allocated()
    ([[2.0, 2.0], [2.0, 2.0]], 512)
    """

    def __init__(
        self,
        memory: int | str = "8GiB",
        *,
        devices: int = 1,
        kind: str = "cuda",
        library_bytes: int = 0,
        dies_at: int | None = None,
    ) -> None:
        self.kind = kind
        self.order = HappensBefore()
        """Checker of the order of all launches."""
        self.memories = [
            CachingAllocator(
                parse_limit("FakeCuda", memory),
                out_of_memory,
                recorded=lambda stream, index=index: self.order.record((index, stream)),  # type: ignore[misc]
                is_done=self.order.is_known_done,
            )
            for index in range(devices)
        ]
        """The memory of each device."""
        self.contexts: set[int] = set()
        """Devices on which the process has a context, which takes memory there."""
        self.streams: list[FakeStream] = []
        """Those that were made, without the default ones."""
        self.launches = 0
        """Kernels and copies so far."""
        self.capturing = False
        """Result of ``torch.cuda.is_current_stream_capturing``."""
        self.registered: dict[int, Registered] = {}
        """Host memory that is pinned by ``cudaHostRegister``, by address."""
        self.refuses_to_pin = 0
        """The code with which ``cudaHostRegister`` refuses, which the next launch raises; 0: it does not."""
        self.library_bytes = library_bytes
        self.dies_at = dies_at
        """The launch that kills the devices; may be changed."""
        self._sticky_error: str | None = None
        self._memory_of_storage: dict[int, _StorageBlock] = {}
        self._dead_storages: collections.deque[tuple[int, _StorageBlock]] = collections.deque()
        self._pinned: dict[int, int] = {}
        self._library_streams: set[tuple[int, int]] = set()
        self._thread_state = threading.local()
        self._default_streams = [
            FakeStream(self, torch.device(kind, index), number=USUAL) for index in range(devices)
        ]
        self._stand_ins = StandIns(self)
        self._lock = threading.RLock()

    def __enter__(self) -> FakeCuda:
        active_fakes.append(self)
        self._stand_ins.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stand_ins.uninstall()
        active_fakes.remove(self)
        if error is None:
            self.check()

    def check(self) -> None:
        """Raise DataRaceError when two launches so far touched the same bytes and nothing orders them."""
        self.order.check()

    def die(self, what: str = "an illegal memory access was encountered") -> None:
        """Let everything from now on raise ``torch.AcceleratorError``, as after an error that is sticky."""
        self._sticky_error = what

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Context in which no other thread uses the devices; raises the sticky error when they are dead."""
        with self._lock:
            if self._sticky_error is not None:
                raise accelerator_error(self._sticky_error)
            yield

    # Devices and streams, as the calling thread sees them

    @property
    def device(self) -> int:
        """Number of the thread's current device."""
        return getattr(self._thread_state, "device", 0)

    def use_device(self, index: int, *, makes_context: bool = True) -> None:
        """Make a device the thread's current one; with CUDA 12 and newer that makes a context there."""
        if not 0 <= index < len(self.memories):
            raise accelerator_error("invalid device ordinal")
        if makes_context:
            self.contexts.add(index)
        self._thread_state.device = index

    def placed(self, device: Any) -> torch.device:
        """Return a device with its index: the current one where none is given."""
        named = torch.device(self.kind, device) if isinstance(device, int) else torch.device(device)
        if named.type != self.kind or named.index is not None:
            return named
        return torch.device(self.kind, self.device)

    def index_of(self, device: Any) -> int:
        """Return the number of a device; None is the current one."""
        return self.device if device is None else int(self.placed(device).index)

    def new_stream(self, device: Any = None, *, priority: int = 0) -> FakeStream:
        """Return a new stream; raises where such devices have none."""
        if self.kind == "mps":
            raise RuntimeError("Backend doesn't support create a new Stream.")
        stream = FakeStream(self, torch.device(self.kind, self.index_of(device)), priority)
        self.contexts.add(stream.device_index)
        self.streams.append(stream)
        return stream

    def current_stream(self, device: Any = None) -> FakeStream:
        """Return the stream to which the thread gives work: the default one unless it set another."""
        index = self.index_of(device)
        streams: dict[int, FakeStream] = self._thread_state.__dict__.setdefault("streams", {})
        return streams.get(index, self._default_streams[index])

    def default_stream(self, device: Any = None) -> FakeStream:
        """Return a device's default stream."""
        return self._default_streams[self.index_of(device)]

    def set_stream(self, stream: FakeStream) -> None:
        """Let the thread give its work to ``stream``, whose device becomes the current one."""
        self.use_device(stream.device_index)
        self._thread_state.__dict__.setdefault("streams", {})[stream.device_index] = stream

    def synchronize(self, device: Any = None) -> None:
        """Wait for all work on a device."""
        index = self.index_of(device)
        for stream in (self._default_streams[index], *self.streams):
            if stream.device_index == index:
                stream.synchronize()

    # Memory

    def new(
        self, shape: Iterable[int], strides: Iterable[int], dtype: torch.dtype, place: torch.device
    ) -> torch.Tensor:
        """Return a tensor of undefined contents; raises torch.OutOfMemoryError."""
        make = self._stand_ins.original(torch, "empty_strided")
        plain: torch.Tensor = make(tuple(shape), tuple(strides), dtype=dtype)
        if place.type == "cpu":
            return plain
        self.hold(plain, place)
        return on_device(plain, place)

    def hold(self, plain: torch.Tensor, place: torch.device, *, defined: bool = False) -> None:
        """Count the memory of a plain tensor as the device's, until its storage is deleted."""
        storage = plain.untyped_storage()
        if not storage.nbytes() or self._place_of(plain) is not None:
            return
        with self.at_work():
            index = self.index_of(place)
            block = self._allocate(index, storage.nbytes(), self.current_stream(place).stream_id)
            held = self._memory_of_storage[storage.data_ptr()] = _StorageBlock(index, block)
            weakref.finalize(storage, self._dead_storages.append, (storage.data_ptr(), held)).atexit = False
        if not defined:
            with torch.inference_mode():
                plain.new_empty(0, dtype=torch.uint8).set_(storage).fill_(_UNDEFINED_BYTE)

    def memory_of(self, device: Any = None) -> CachingAllocator:
        """Return a device's memory, after freeing that of deleted tensors."""
        with self._lock:
            self._free_dead()
            return self.memories[self.index_of(device)]

    def empty_cache(self) -> None:
        """Give cached memory back, which waits for the devices."""
        with self.at_work():
            self._free_dead()
            for index, memory in enumerate(self.memories):
                if index in self.contexts:
                    self.synchronize(index)
                for segment in memory.empty_cache():
                    self.order.forget((index, segment))

    def pin(self, plain: torch.Tensor) -> None:
        """Take note that a host tensor lies in pinned memory."""
        storage = plain.untyped_storage()
        self._pinned[storage.data_ptr()] = storage.nbytes()
        weakref.finalize(storage, self._pinned.pop, storage.data_ptr(), None).atexit = False

    def register(self, address: int, nbytes: int, flags: int) -> int:
        """Do as ``cudaHostRegister`` does: return 0, or the code of the refusal."""
        self.contexts.add(self.device)
        if self.refuses_to_pin or address in self.registered:
            code = self.refuses_to_pin or 712
            self._thread_state.last_error = (
                f"{code}: part or all of the requested memory range is already mapped"
            )
            return code
        self.registered[address] = Registered(nbytes, flags, self.device)
        return 0

    def unregister(self, address: int) -> int:
        """Do as ``cudaHostUnregister`` does."""
        if address in self.registered:
            del self.registered[address]
            return 0
        self._thread_state.last_error = "713: pointer does not correspond to a registered memory region"
        return 713

    def record_stream(self, plain: torch.Tensor, stream: FakeStream) -> None:
        """Keep a tensor's memory, once it is freed, until ``stream`` has done the work that it then has."""
        held = self._memory_of_storage.get(plain.untyped_storage().data_ptr())
        if held is not None:
            self.memories[held.device].record_stream(held.block, stream.stream_id)

    # Work

    def computed(
        self,
        name: str,
        work: Callable[[], Any],
        accessed: tuple[list[torch.Tensor], list[torch.Tensor]],
        place: torch.device,
        *,
        waits: bool = False,
        is_product: bool = False,
    ) -> Any:
        """Return what ``work`` does, as a kernel on the current stream; ``waits``: the host waits for it."""
        reads, writes = accessed
        with self.at_work():
            stream = self.current_stream(place)
            self._launching(stream)
            self._check_places(name, [*reads, *writes], place)
            if is_product and self.library_bytes and stream.key not in self._library_streams:
                self._library_streams.add(stream.key)
                self._allocate(stream.device_index, self.library_bytes, stream.stream_id)
            stream.carry_out()
            result = work()
            new = self._hold_results(result, [*reads, *writes], place)
            wrote = writes if name.startswith(("empty", "new_empty")) else [*writes, *new]
            self.order.launch(stream.key, name, self._spans(reads), self._spans(wrote))
            if waits:
                self.order.wait(HOST, self.order.record(stream.key))
            return result

    def copied(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """Copy between plain tensors, of which at least one is a device's; return ``target``."""
        there, here = self._place_of(target), self._place_of(source)
        place = here if there is None else there
        if place is None:
            return target.copy_(source)
        hosts = [each for each, at in ((target, there), (source, here)) if at is None]
        goes_on = all(non_blocking and (self.kind == "mps" or self._is_pinned(host)) for host in hosts)
        with self.at_work():
            source.expand(target.shape)  # raises when they do not fit
            stream = self.current_stream(place)
            self._launching(stream)
            name = "copy to the host" if there is None else "copy to the device" if hosts else "copy_"
            self.order.launch(stream.key, name, self._spans([source]), self._spans([target]))
            stream.give(lambda: _copy(target, source))
            if not goes_on:
                stream.carry_out()
                self.order.wait(HOST, self.order.record(stream.key))
        return target

    def _launching(self, stream: FakeStream) -> None:
        """Raise the error that an earlier call left on this thread, as CUDA does; count a launch."""
        last, self._thread_state.last_error = getattr(self._thread_state, "last_error", None), None
        if last is not None:
            raise accelerator_error(last)
        self.contexts.add(stream.device_index)
        self.launches += 1
        if self.launches == self.dies_at:
            self.die()

    def _check_places(self, name: str, tensors: Iterable[torch.Tensor], place: torch.device) -> None:
        if name in _MIXED_DEVICE_OPERATORS:
            return
        for each in tensors:
            if each.dim() and each.numel() and self._place_of(each) is None:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found at least two devices, {place} "
                    f"and cpu! (in {name})"
                )

    def _hold_results(
        self, result: Any, given: list[torch.Tensor], place: torch.device
    ) -> list[torch.Tensor]:
        """Give results memory of the device; return those that have none of an operand's."""
        known = {each.untyped_storage().data_ptr() for each in given}
        new = [
            each
            for each in tree_leaves(result)
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() not in known
        ]
        for each in new:
            self.hold(each, place, defined=True)
        return new

    def _allocate(self, index: int, nbytes: int, stream: int) -> MemoryBlock:
        self._free_dead()
        self.contexts.add(index)
        return self.memories[index].allocate(nbytes, stream)

    def _free_dead(self) -> None:
        """Free the device memory of deleted tensors."""
        while self._dead_storages:
            address, held = self._dead_storages.popleft()
            if self._memory_of_storage.get(address) is held:
                del self._memory_of_storage[address]
            self.memories[held.device].free(held.block)

    def _place_of(self, plain: torch.Tensor) -> torch.device | None:
        with self._lock:
            self._free_dead()
            held = self._memory_of_storage.get(plain.untyped_storage().data_ptr())
        return None if held is None else torch.device(self.kind, held.device)

    def _is_pinned(self, host: torch.Tensor) -> bool:
        start, stop = host.data_ptr(), host.data_ptr() + 1
        ranges = [*self._pinned.items(), *((at, each.nbytes) for at, each in self.registered.items())]
        return any(at <= start and stop <= at + nbytes for at, nbytes in ranges)

    def _spans(self, tensors: Iterable[torch.Tensor]) -> list[Span]:
        """Return the bytes of tensors on devices."""
        spans = []
        for each in tensors:
            held = self._memory_of_storage.get(each.untyped_storage().data_ptr())
            if held is None or not each.numel():
                continue
            last = sum(
                (int(size) - 1) * int(step) for size, step in zip(each.shape, each.stride(), strict=True)
            )
            start = held.block.start + int(each.storage_offset()) * each.element_size()
            stop = start + (last + 1) * each.element_size()
            spans.append(Span((held.device, held.block.segment), start, stop))
        return spans


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch.inference_mode():
        target.copy_(source)
