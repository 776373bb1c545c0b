"""Replacements of torch's functions while a fake device is entered."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, final

import torch

from accelera.devices import names, torch_device
from accelera.testing.device_tensor import DeviceTensor, as_plain, on_device, tensor_to, to_arguments
from accelera.testing.fake_streams import Fake, FakeEvent

_MAKERS = (
    "empty",
    "empty_strided",
    "zeros",
    "ones",
    "full",
    "tensor",
    "as_tensor",
    "arange",
    "eye",
    "linspace",
)
_RANDOM = ("rand", "randn", "randint", "randperm")
_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")


@final
class StandIns:
    """Replaces torch's functions by a fake's, and restores them."""

    def __init__(self, cuda: Fake) -> None:
        self._cuda = cuda
        self._module = _device_module(cuda)
        self._originals: dict[tuple[int, str], Any] = {}
        self._undo: contextlib.ExitStack | None = None

    def original(self, owner: Any, name: str) -> Any:
        """Return what ``owner`` calls ``name`` without the fake."""
        return self._originals.get((id(owner), name)) or getattr(owner, name)

    def install(self) -> None:
        """Let torch find the fake's devices, and ``get_device`` make new ones."""
        self._undo = contextlib.ExitStack()
        self._forget_devices()
        self._replace(torch, Stream=_stream_type(self._cuda), Event=_event_type(self._cuda))
        self._replace(torch, get_device_module=self._module_of)
        self._replace(torch.accelerator, **_accelerator_functions(self._cuda))
        self._replace(torch_device, _multiplies_integers=lambda kind: kind == "cpu")
        if self._cuda.kind == "cuda":
            self._replace(torch.cuda, **vars(self._module))
        self._replace(torch, **{name: self._maker(name) for name in (*_MAKERS, *_RANDOM, *_LIKE)})
        self._replace(torch.Tensor, to=self._to(), cuda=self._to("cuda"), pin_memory=self._pinning())
        self._replace(torch.Tensor, record_stream=self._recording())

    def uninstall(self) -> None:
        """Restore torch's own functions."""
        if self._undo is not None:
            self._undo.close()
        self._originals.clear()
        self._forget_devices()

    def _forget_devices(self) -> None:
        names._of_torch.cache_clear()

    def _replace(self, owner: Any, **functions: Any) -> None:
        assert self._undo is not None
        for name, function in functions.items():
            self._originals[id(owner), name] = getattr(owner, name, None)
            if name in vars(owner):
                self._undo.callback(setattr, owner, name, vars(owner)[name])
            else:
                self._undo.callback(delattr, owner, name)
            setattr(owner, name, function)

    def _module_of(self, device: Any = None) -> Any:
        kind = torch.device(device).type if device is not None else self._cuda.kind
        if kind == self._cuda.kind:
            return self._module
        return self._originals[id(torch), "get_device_module"](device)

    def _recording(self) -> Callable[..., None]:
        cuda = self._cuda

        def record_stream(tensor: torch.Tensor, stream: Any) -> None:
            cuda.record_stream(as_plain(tensor), stream)

        return record_stream

    def _pinning(self) -> Callable[..., torch.Tensor]:
        cuda = self._cuda

        def pin_memory(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
            found = tensor.clone()
            cuda.pin(found)
            return found

        return pin_memory

    def _maker(self, name: str) -> Callable[..., Any]:
        make, cuda = getattr(torch, name), self._cuda

        @functools.wraps(make)
        def make_on_device(*args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any) -> Any:
            if device is None and any(isinstance(each, DeviceTensor) for each in args):
                return make(*args, **kwargs)
            place = torch.get_default_device() if device is None else cuda.placed(device)
            if place.type != cuda.kind:
                found = make(*args, device=device, **kwargs)
                if pin_memory:
                    cuda.pin(found)
                return found
            plain = make(*args, device="cpu", **kwargs)
            place, is_empty = cuda.placed(place), name.startswith("empty")
            cuda.hold(plain, place, defined=not is_empty)
            if not is_empty:
                cuda.computed(name, lambda: None, ([], [plain]), place)
            return on_device(plain, place)

        return make_on_device

    def _to(self, kind: str | None = None) -> Callable[..., Any]:
        original, cuda = getattr(torch.Tensor, "to" if kind is None else kind), self._cuda

        @functools.wraps(original)
        def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if kind is not None and not args:
                args = (kwargs.pop("device", None) or kind,)
            device = to_arguments(args, kwargs)[0]
            if isinstance(tensor, DeviceTensor) or (device is not None and device.type == cuda.kind):
                return tensor_to(cuda, tensor, *args, **kwargs)
            found: torch.Tensor = original(tensor, *args, **kwargs)
            return found

        return to


def _stream_type(cuda: Fake) -> type:
    """Return a class that makes streams; other code of torch derives classes from ``torch.Stream``."""

    class StreamStandIn:
        def __new__(cls, device: Any = None, *, priority: int = 0) -> Any:
            return cuda.new_stream(device, priority=priority)

    return StreamStandIn


def _event_type(cuda: Fake) -> type:
    class Event:
        def __new__(cls, device: Any = None, **_: Any) -> Any:
            return FakeEvent(cuda)

    return Event


def _accelerator_functions(cuda: Fake) -> dict[str, Any]:
    """Return the functions of ``torch.accelerator``."""
    return {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device(cuda.kind),
        "device_count": lambda: len(cuda.memories),
        "current_stream": cuda.current_stream,
        "set_stream": cuda.set_stream,
        "synchronize": cuda.synchronize,
        "current_device_index": lambda: cuda.device,
        "set_device_index": cuda.use_device,
    }


def _device_module(cuda: Fake) -> SimpleNamespace:
    """Return the module that torch has for such devices."""
    module = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: bool(cuda.contexts),
        device_count=lambda: len(cuda.memories),
        current_device=lambda: cuda.device,
        synchronize=cuda.synchronize,
        empty_cache=cuda.empty_cache,
    )
    if cuda.kind == "mps":
        module.recommended_max_memory = lambda: cuda.memories[0].capacity_bytes
        module.current_allocated_memory = lambda: cuda.memory_of(0).allocated.current
        return module
    vars(module).update(_functions_of_streams(cuda))
    vars(module).update(_functions_of_memory(cuda))
    return module


def _functions_of_streams(cuda: Fake) -> dict[str, Any]:
    @contextlib.contextmanager
    def device(wanted: Any) -> Iterator[None]:
        before = cuda.device
        cuda.use_device(cuda.index_of(wanted))
        try:
            yield
        finally:
            cuda.use_device(before, makes_context=False)

    runtime = SimpleNamespace(cudaHostRegister=cuda.register, cudaHostUnregister=cuda.unregister)
    return {
        "device": device,
        "set_device": lambda wanted: cuda.use_device(cuda.index_of(wanted)),
        "current_stream": cuda.current_stream,
        "default_stream": cuda.default_stream,
        "set_stream": cuda.set_stream,
        "stream": lambda stream: contextlib.nullcontext() if stream is None else stream,
        "Stream": _stream_type(cuda),
        "cudart": lambda: runtime,
        "_sleep": lambda cycles: None,
        "is_current_stream_capturing": lambda: cuda.capturing,
        "get_device_capability": lambda index=None: (9, 0),
        "get_device_properties": lambda index=None: SimpleNamespace(
            name="Fake", total_memory=cuda.memories[cuda.index_of(index)].capacity_bytes, major=9, minor=0
        ),
    }


def _functions_of_memory(cuda: Fake) -> dict[str, Any]:
    def mem_get_info(device: Any = None) -> tuple[int, int]:
        with cuda.at_work():
            cuda.contexts.add(cuda.index_of(device))
            memory = cuda.memory_of(device)
            return memory.free_bytes, memory.capacity_bytes

    def nested(device: Any = None) -> dict[str, Any]:
        memory = cuda.memory_of(device)
        counts = {"allocated": memory.allocated, "requested": memory.requested, "reserved": memory.reserved}
        said: dict[str, Any] = {
            f"{name}_bytes": {"all": {"current": each.current, "peak": each.peak}}
            for name, each in counts.items()
        }
        return {**said, "num_alloc_retries": memory.retries, "num_ooms": memory.refusals}

    return {
        "mem_get_info": mem_get_info,
        "memory_allocated": lambda device=None: cuda.memory_of(device).allocated.current,
        "max_memory_allocated": lambda device=None: cuda.memory_of(device).allocated.peak,
        "memory_reserved": lambda device=None: cuda.memory_of(device).reserved.current,
        "max_memory_reserved": lambda device=None: cuda.memory_of(device).reserved.peak,
        "reset_peak_memory_stats": lambda device=None: cuda.memory_of(device).reset_peaks(),
        "memory_stats_as_nested_dict": nested,
    }
