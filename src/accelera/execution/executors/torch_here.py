"""A torch device from inside: what its memory holds, and a stream that is this thread's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, final

import torch

from accelera.devices.torch_streams import on_stream


@final
class TorchHere:
    """Makes a device the one where tensors are made, on a stream beside everybody else's.

    Streams are used again when nobody is at work on them: torch keeps what it frees, and cuBLAS its workspace
    of 32 MiB on the largest cards, for each of them apart.

    Parameters
    ----------
    name
        torch's name for it, such as ``"cuda:0"``; on ``"cpu"`` and MPS there are neither streams nor counts.
    """

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self._module: Any = torch.get_device_module(self.device)
        self._has_streams = self.device.type not in ("cpu", "mps")
        self.counts_memory = hasattr(self._module, "reset_peak_memory_stats")
        """Whether torch tells how much memory its tensors take there."""
        self._idle: list[Any] = []

    def allocated_bytes(self) -> int:
        """Return what tensors take now; 0 where nobody counts."""
        return int(self._module.memory_allocated(self.device)) if self.counts_memory else 0

    @contextlib.contextmanager
    def counting(self, told: Callable[[int], None]) -> Iterator[None]:
        """Tell the most bytes that tensors took meanwhile on top of those before, unless an error ends it."""
        before = self.allocated_bytes()
        self._module.reset_peak_memory_stats(self.device)
        yield
        told(int(self._module.max_memory_allocated(self.device)) - before)

    @contextlib.contextmanager
    def working(self) -> Iterator[Callable[[torch.Tensor], None]]:
        """Run what follows on a stream of its own, and wait for it: errors of kernels are raised here.

        It is waited for when it fails, too: whoever has the tasks may let go of their memory then. Yields
        what must be called with every tensor that is handed out, so that its memory is not used again while
        the stream that was current before still works on it.
        """
        if not self._has_streams:
            with self.device:
                yield lambda tensor: None
            return
        before = torch.accelerator.current_stream(self.device)
        stream = self._idle.pop() if self._idle else torch.Stream(self.device)
        try:
            stream.wait_stream(before)
            with self.device, on_stream(stream, self.device):
                yield lambda tensor: tensor.record_stream(before)
                stream.synchronize()
        except BaseException:
            with contextlib.suppress(RuntimeError):
                stream.synchronize()
            raise
        finally:
            self._idle.append(stream)

    def empty_cache(self) -> None:
        """Make torch return the memory that it keeps for reuse."""
        if hasattr(self._module, "empty_cache"):
            self._module.empty_cache()
