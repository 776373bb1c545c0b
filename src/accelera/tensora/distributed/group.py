"""Groups of ranks with collective operations on tensors: gloo of torch.distributed on the CPU, NCCL on GPUs.

Torch is loaded when a group is made, and NCCL when a group is given the first tensor on a GPU.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Literal, TypeVar

from accelera._distribution import install_command
from accelera._extras import needed_for
from accelera.errors import ArgumentError, BackendMissingError, ShapeError, StateError
from accelera.tensora.core import Tensor, native
from accelera.tensora.distributed.nccl import NcclCommunicator
from accelera.tensora.typing import Device

Result = TypeVar("Result")
Reduction = Literal["sum", "max"]

TIMEOUT_S = 600.0
"""Default time that a rank waits for the others, in seconds."""


class CollectiveWork:
    """Collective operation that is under way; its tensor is not touched until `wait` has returned."""

    def __init__(self, wait: Callable[[], Any]) -> None:
        self._wait = wait

    def wait(self) -> None:
        """Wait until the tensor has its result.

        Raises
        ------
        RuntimeError
            If another rank is gone, or did not come in time.

        """
        self._wait()


class ProcessGroup:
    """Ranks that train together, each a process or, as `run_on_devices` makes them, a thread.

    All ranks call the same operations in the same order. Made by `init_process_group` or `run_on_devices`.
    """

    def __init__(self, gloo: Any, device: str, on_close: Callable[[], None] | None = None) -> None:
        self._gloo = gloo
        self._on_close = on_close
        self._communicators: dict[str, NcclCommunicator] = {}
        self.rank: int = gloo.rank()
        """Number of this rank, from 0."""
        self.size: int = gloo.size()
        """Number of ranks."""
        self.device = device
        """Device for this rank's module: "cpu", or for example "cuda:1"."""

    def __repr__(self) -> str:
        """Rank, size and device."""
        return f"ProcessGroup(rank={self.rank}, size={self.size}, device={self.device!r})"

    def all_reduce(self, tensor: Tensor, op: Reduction = "sum") -> CollectiveWork:
        """Replace a tensor, in all ranks, by the sum or the largest of the ranks' elements.

        The result has the same bits in all ranks, and in each run with as many ranks and elements.
        """
        self._check(tensor, "all_reduce")
        if not str(tensor.device).startswith("cpu"):
            return CollectiveWork(self._communicator(tensor).all_reduce(tensor, op))
        torch, dist = _torch()
        options = dist.AllreduceOptions()
        options.reduceOp = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[op]
        lent = torch.from_dlpack(tensor.detach())
        if lent.is_complex():
            lent = torch.view_as_real(lent)
        return CollectiveWork(self._open("all_reduce").allreduce([lent], options).wait)

    def broadcast(self, tensor: Tensor, source: int = 0) -> CollectiveWork:
        """Replace a tensor, in all ranks, by that of one rank, bit by bit."""
        self._check(tensor, "broadcast")
        if not str(tensor.device).startswith("cpu"):
            return CollectiveWork(self._communicator(tensor).broadcast(tensor, source))
        torch, dist = _torch()
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        lent = torch.from_dlpack(tensor.detach()).reshape(-1).view(torch.uint8)
        return CollectiveWork(self._open("broadcast").broadcast([lent], options).wait)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order of ranks. They are pickled: ranks trust one another."""
        torch, _ = _torch()
        packed = bytearray(pickle.dumps(value))
        lengths = [int(each) for each in self._gathered(torch.tensor([len(packed)]))]
        mine = torch.zeros(max(lengths), dtype=torch.uint8)
        mine[: len(packed)] = torch.frombuffer(packed, dtype=torch.uint8)
        found = self._gathered(mine)
        return [
            pickle.loads(each[:length].numpy().tobytes()) for each, length in zip(found, lengths, strict=True)
        ]

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        self.all_gather_object(None)

    def close(self) -> None:
        """Leave the group; ranks that still wait for this one fail."""
        for communicator in self._communicators.values():
            communicator.close()
        self._communicators.clear()
        was_open, self._gloo = self._gloo is not None, None
        if was_open and self._on_close is not None:
            self._on_close()

    def _gathered(self, tensor: Any) -> list[Any]:
        torch, _ = _torch()
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        self._open("all_gather_object").allgather([found], [tensor]).wait()
        return found

    def _open(self, op: str) -> Any:
        if self._gloo is None:
            raise StateError(f"[{op}] the group was closed; make another with init_process_group")
        return self._gloo

    def _check(self, tensor: Any, op: str) -> None:
        self._open(op)
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"[{op}] a {type(tensor).__name__}; give a tensor of Tensora")
        if not tensor.is_contiguous():
            raise ShapeError(
                f"[{op}] a tensor of shape {tuple(tensor.shape)} whose elements do not lie in a row; "
                "give tensor.contiguous()"
            )

    def _communicator(self, tensor: Any) -> NcclCommunicator:
        """NCCL's view of the group for the tensor's device; the ranks make it together."""
        device = native.device_named(str(tensor.device))
        if device not in self._communicators:
            mark = NcclCommunicator.new_mark(device) if self.rank == 0 else None
            mark = self.all_gather_object(mark)[0]
            self._communicators[device] = NcclCommunicator(device, mark, self.rank, self.size)
        return self._communicators[device]


def init_process_group(
    *,
    init_method: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    device: Device = "cpu",
    timeout: float = TIMEOUT_S,
) -> ProcessGroup:
    """Make this process a rank of a group; all its processes call this.

    Inside the function of ``RayCluster.train``, or wherever else torch.distributed is set up, the ranks are
    those that are there. Otherwise they are given by the arguments or, without them, by the variables RANK,
    WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as ``torchrun`` sets them.

    Parameters
    ----------
    init_method
        Where the processes meet: ``"tcp://HOST:PORT"``, or ``"file:///PATH"`` of a file that is not there.
    rank
        Which process this is, from 0.
    world_size
        How many there are.
    device
        Where this rank's module is meant to be.
    timeout
        Seconds that a rank waits for the others.

    Raises
    ------
    BackendMissingError
        If there is no torch, or one without torch.distributed.
    ValueError
        If ranks are described while torch.distributed is set up already.

    """
    _, dist = _torch()
    described = [each is not None for each in (init_method, rank, world_size)]
    makes = not dist.is_initialized()
    if any(described) and not makes:
        raise ArgumentError(
            f"[init_process_group] init_method={init_method!r}, rank={rank}, world_size={world_size}, but"
            f" torch.distributed is set up already, as rank {dist.get_rank()} of {dist.get_world_size()};"
            " leave them out to be one of its ranks"
        )
    patience = timedelta(seconds=timeout)
    if makes:
        dist.init_process_group(
            "gloo",
            init_method=init_method,
            rank=-1 if rank is None else rank,
            world_size=-1 if world_size is None else world_size,
            timeout=patience,
        )
    is_gloo = dist.get_backend() == "gloo"  # Ray Train joins ranks that have GPUs by NCCL alone
    found = dist.group.WORLD if is_gloo else dist.new_group(backend="gloo", timeout=patience)
    return ProcessGroup(found, str(device), dist.destroy_process_group if makes else None)


def run_on_devices(
    function: Callable[[ProcessGroup], Result], devices: Sequence[Any], *, timeout: float = TIMEOUT_S
) -> list[Result]:
    """Call a function in one thread for each device of this machine, with a group of these threads.

    The function is the one that would run in processes. Threads share what a process has once, such as
    `random.default_generator`: give each rank a generator of its own.

    Parameters
    ----------
    function
        Called with the `ProcessGroup`, whose `device` is the thread's.
    devices
        As ``["cuda:0", "cuda:1"]``; "cpu" may be there several times.
    timeout
        Seconds that a rank waits for the others.

    Returns
    -------
    list
        What the calls returned, by rank.

    Raises
    ------
    BackendMissingError
        If there is no torch, or one without torch.distributed.
    ValueError
        If there is no device.
    Exception
        What the first rank that failed raised.

    """
    if not devices:
        raise ArgumentError("[run_on_devices] no devices; give at least one")
    _, dist = _torch()
    store = dist.HashStore()
    failures: list[BaseException] = []
    lock = threading.Lock()

    def run(rank: int) -> Result | None:
        group: ProcessGroup | None = None
        try:
            gloo = _local_gloo(dist, store, rank, len(devices), timeout)
            group = ProcessGroup(gloo, str(devices[rank]))
            del gloo  # the group alone keeps it, so that its end is noticed by the others
            return function(group)
        except BaseException as error:
            with lock:
                failures.append(error)
            return None
        finally:
            if group is not None:
                group.close()

    with ThreadPoolExecutor(len(devices), thread_name_prefix="accelera-rank") as pool:
        results = list(pool.map(run, range(len(devices))))
    if failures:
        raise failures[0]
    return results  # type: ignore[return-value]  # None only after a failure, which was raised


def _local_gloo(dist: Any, store: Any, rank: int, size: int, timeout: float) -> Any:
    """Return a Gloo group between threads of this process, over the loopback address."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=timeout)
    return dist.ProcessGroupGloo(store, rank, size, options)


def _torch() -> tuple[Any, Any]:
    """The modules torch and torch.distributed."""
    with needed_for("distributed"):
        import torch
        import torch.distributed as dist
    if not dist.is_available():
        raise BackendMissingError(
            f"[distributed] torch {torch.__version__} was built without torch.distributed; "
            f"{install_command('torch')}"
        )
    return torch, dist
