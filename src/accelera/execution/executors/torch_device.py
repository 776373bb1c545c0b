"""Executor on an accelerator of torch; functions with a batched form get many tasks at once."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, final, get_args

from accelera._extras import require
from accelera.devices import Device, get_device
from accelera.errors import ArgumentError, DeviceError, UnknownNameError
from accelera.execution.faults.batch_size import MemoryModel
from accelera.execution.kernel import FUNCTIONS_KEPT, GpuBatch, LruDict, name_of
from accelera.execution.strategy.memory_limit import bytes_of
from accelera.execution.tasks.run import CatchingFunction
from accelera.units import parse_limit

if TYPE_CHECKING:
    import torch


@final
class TorchDeviceContext:
    """Makes a device the one where tensors are made, on a stream beside everybody else's.

    Streams are used again when nobody is at work on them: torch keeps what it frees, and cuBLAS its workspace
    of 32 MiB on the largest cards, for each of them apart.

    Parameters
    ----------
    name
        torch's name for it, such as ``"cuda:0"``; on ``"cpu"`` and MPS there are neither streams nor counts.
    """

    def __init__(self, name: str) -> None:
        import torch

        self._torch = torch
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
    def counting(self, measured: Callable[[int], None]) -> Iterator[None]:
        """Report the peak of tensors' bytes on top of those before, unless an error ends it."""
        before = self.allocated_bytes()
        self._module.reset_peak_memory_stats(self.device)
        yield
        measured(int(self._module.max_memory_allocated(self.device)) - before)

    @contextlib.contextmanager
    def working(self) -> Iterator[Callable[[torch.Tensor], None]]:
        """Run what follows on a stream of its own, and wait for it: errors of kernels are raised here.

        It is waited for when it fails, too: the caller may free the tasks' memory then. Yields
        what must be called with every tensor that is handed out, so that its memory is not used again while
        the stream that was current before still works on it.
        """
        if not self._has_streams:
            with self.device:
                yield lambda tensor: None
            return
        from accelera.devices._internal import on_stream

        before = self._torch.accelerator.current_stream(self.device)
        stream = self._idle.pop() if self._idle else self._torch.Stream(self.device)
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


OutputsTo = Literal["device", "cpu"]

_KINDS: Final = ("cpu", "cuda", "mps", "xpu")


@final
class TorchDeviceExecutor:
    """A ``GpuExecutor`` on CUDA, ROCm, XPU or MPS through torch.

    A ``Kernel`` with a batched form gets a whole micro-batch at once; other functions are called task by
    task. Both run inside ``torch.device(device)``, so that new tensors are made there, on a stream of their
    own, which is waited for: what fails on the device is raised here. Nothing is loaded before it is used.

    Parameters
    ----------
    device
        torch's name for it: ``"cuda:0"``, ``"cuda"``, ``"xpu"``, ``"mps"``; ``"cpu"`` runs the same without
        streams and without counting memory.
    budget
        The most memory that tasks and the outputs that stay may take there, such as ``"2GiB"``; what lay
        there before the first task does not count. None: what is free.
    outputs_to
        ``"device"`` leaves outputs where they are; ``"cpu"`` brings their tensors to the host, also those in
        lists, tuples and dicts.

    Raises
    ------
    UnknownNameError
        When there is no such kind of device, or no such place for outputs.
    ValueError
        When the budget is no size.
    """

    def __init__(
        self,
        device: str = "cuda:0",
        *,
        budget: int | str | None = None,
        outputs_to: OutputsTo = "device",
    ) -> None:
        require("TorchDeviceExecutor", "torch")
        kind = device.partition(":")[0]
        for what, word, words in (("device", kind, _KINDS), ("outputs_to", outputs_to, get_args(OutputsTo))):
            if word not in words:
                raise UnknownNameError.among(what, word, words)
        self.name = "torch-cpu" if kind == "cpu" else device
        """As results and logs call it; the host is not taken for the CPU's own side."""
        self.outputs_to = outputs_to
        self._device_name = device
        self._budget_bytes = None if budget is None else parse_limit(self.name, budget)
        self._held_before_bytes = 0
        self._memory_models: LruDict[tuple[str, int], MemoryModel] = LruDict(FUNCTIONS_KEPT)
        self._latest: LruDict[str, MemoryModel] = LruDict(FUNCTIONS_KEPT)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"TorchDeviceExecutor({self._device_name!r})"

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> Sequence[Any]:
        """Return the outputs of all tasks, in their order, when the device has computed them.

        Raises what the function raises, ``ValueError`` when its batched form returns too few or too many
        outputs, and ``DeviceError`` when there is no such device.
        """
        if len(tasks) == 0:
            return []
        here, fit = self._context, self._memory_model(process_fn, tasks[0])
        if not here.counts_memory or not fit.wants(len(tasks)):
            return self._run(here, tasks, process_fn)
        with here.counting(lambda peak_bytes: fit.measured(len(tasks), peak_bytes)):
            return self._run(here, tasks, process_fn)

    def is_available(self) -> bool:
        """Return whether torch has this device here."""
        try:
            return bool(self._device.name)
        except DeviceError:
            return False

    def memory_available(self) -> int:
        """Return the free bytes of device memory, with what torch keeps for reuse, within the budget."""
        free_bytes = max(0, self._device.available_bytes())
        if self._budget_bytes is None:
            return free_bytes
        taken_bytes = max(0, self._context.allocated_bytes() - self._held_before_bytes)
        return max(0, min(free_bytes, self._budget_bytes - taken_bytes))

    def memory_total(self) -> int:
        """Return the bytes of device memory, free or not, within the budget."""
        total_bytes = self._device.total_bytes()
        return total_bytes if self._budget_bytes is None else min(total_bytes, self._budget_bytes)

    def fitting(self, function: Callable[..., Any]) -> int | None:
        """Return how many tasks like the latest of ``function`` should fit at once; None: not known yet."""
        fit = self._latest.get(name_of(_unwrap(function)))
        return None if fit is None else fit.fitting(self.memory_available())

    def empty_cache(self) -> None:
        """Make torch return the device memory that it keeps for reuse."""
        self._context.empty_cache()

    @functools.cached_property
    def _device(self) -> Device:
        return get_device(self._device_name)

    @functools.cached_property
    def _context(self) -> TorchDeviceContext:

        here = TorchDeviceContext(self._device.name)
        self._held_before_bytes = here.allocated_bytes()
        return here

    def _memory_model(self, function: Callable[..., Any], task: Any) -> MemoryModel:
        """Return what is known of the function's tasks of about this size."""
        name = name_of(_unwrap(function))
        with self._lock:
            fit = self._memory_models.get_or_make((name, bytes_of(task).bit_length()), MemoryModel)
            self._latest.put(name, fit)
            return fit

    def _run(
        self, here: TorchDeviceContext, tasks: Sequence[Any], function: Callable[..., Any]
    ) -> Sequence[Any]:
        batch: GpuBatch | None = getattr(function, "batch", None)
        with here.working() as hand_out:
            if batch is None:
                outputs: Sequence[Any] = [function(task) for task in tasks]
            else:
                outputs = _check_output_count(batch(tasks, str(here.device)), len(tasks), self.name)
            if self.outputs_to == "cpu":
                return [_on_host(output) for output in outputs]
            for tensor in _tensors_in(outputs):
                if tensor.device == here.device:
                    hand_out(tensor)
            return outputs


def _unwrap(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.function if isinstance(function, CatchingFunction) else function


def _check_output_count(outputs: Any, count: int, device: str) -> Sequence[Any]:
    """Return the outputs of a batched form one by one; there must be as many as tasks."""
    try:
        found = list(outputs)
    except TypeError:
        raise ArgumentError(
            f"[{device}] the batched form got {count} tasks and returned {type(outputs).__name__}: it must"
            f" return one output for each, in their order, as a list or along a tensor's first axis"
        ) from None
    if len(found) != count:
        raise ArgumentError(
            f"[{device}] the batched form got {count} tasks and returned {len(found)} outputs: it must return"
            f" one for each, in their order"
        )
    return found


def _tensors_in(output: Any) -> Iterator[Any]:
    if hasattr(output, "record_stream"):
        yield output
    elif type(output) is dict:
        yield from _tensors_in(list(output.values()))
    elif isinstance(output, (list, tuple)):
        for part in output:
            yield from _tensors_in(part)


def _on_host(output: Any) -> Any:
    """Return ``output`` with every tensor in it on the host."""
    if hasattr(output, "record_stream"):
        return output.to("cpu")
    if type(output) is dict:
        return {key: _on_host(value) for key, value in output.items()}
    if type(output) in (list, tuple):
        return type(output)(map(_on_host, output))
    if isinstance(output, tuple) and hasattr(output, "_make"):
        return output._make(map(_on_host, output))
    return output
