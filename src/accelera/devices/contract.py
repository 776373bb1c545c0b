"""Contract of a device: it holds tiles in its own memory, fills them from stores, and multiplies them.

Arrays on a device are opaque to the runner, which slices them, transposes them and passes them
back: NumPy arrays on the CPU and the simulated accelerator, torch tensors on a torch accelerator.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np

from accelera.devices.checks import FLOATING, INTEGERS
from accelera.errors import UnsupportedError

DeviceArray = Any


class Device(abc.ABC):
    """A place that computes and has a memory of its own."""

    name: str
    """``"cpu"``, ``"cuda:0"``, ``"sim"`` …"""
    host_memory: bool
    """True when tiles lie in host RAM, so that RAM operands are used in place (the CPU)."""

    lent_bytes = 0
    """Size of the memory that ``lend_host`` returns."""

    @abc.abstractmethod
    def total_bytes(self) -> int:
        """Return the capacity of the device's memory; on the host at most the cgroup limit."""

    @abc.abstractmethod
    def available_bytes(self) -> int:
        """Return the bytes that can be allocated now."""

    @abc.abstractmethod
    def allocate(self, nbytes: int) -> DeviceArray:
        """Return an uninitialised one-dimensional byte buffer, 4096-aligned in host memory.

        Raises DeviceMemoryError when the device cannot give it.
        """

    @abc.abstractmethod
    def release(self, buffer: DeviceArray) -> None:
        """Release a buffer of ``allocate``; the contents of its views are undefined from then on.

        Raises DeviceError when the buffer is not (or no longer) one of this device's.
        """

    @abc.abstractmethod
    def view(
        self, buffer: DeviceArray, shape: tuple[int, ...], dtype: np.dtype[Any], order: tuple[int, ...]
    ) -> DeviceArray:
        """Return the start of ``buffer`` as a dense array.

        ``order`` lists the axes from slowest to fastest in memory, so a tile of a transposed
        operand keeps the order in which it lies on disk.
        """

    @abc.abstractmethod
    def upload(self, host: np.ndarray[Any, Any], target: DeviceArray) -> None:
        """Copy host data into a device array of the same shape, converting the dtype if it differs.

        ``host`` may be reused on return; operations called later see the data.
        """

    @abc.abstractmethod
    def download(self, source: DeviceArray, host: np.ndarray[Any, Any]) -> None:
        """Copy a device array into host data of the same shape, converting the dtype if it differs.

        Waits for the work that writes ``source``; ``host`` is complete on return.
        """

    def lends(self, host: np.dtype[Any], held: np.dtype[Any]) -> bool:
        """Return whether ``lend_host`` saves a copy of ``host`` elements, held as ``held`` on the device."""
        return False

    def lend_host(self, *, wait: bool = True) -> np.ndarray[Any, Any] | None:
        """Return host memory, as bytes, for one piece, from which ``upload`` copies without staging.

        The piece is a dense array at its start, in any order of axes. The memory is lent to one thread until
        ``take_back``. None when all is lent and ``wait`` is false. Only where ``lends`` returns True.
        """
        raise UnsupportedError(f"[lend_host] {self.name} lends no memory")

    def take_back(self, memory: np.ndarray[Any, Any]) -> None:
        """Take back memory of ``lend_host``."""

    def begin_download(self, source: DeviceArray, host: np.ndarray[Any, Any]) -> Callable[[], None]:
        """Begin ``download``; return a function that waits until ``host`` is complete.

        Into lent memory the copy runs asynchronously; into other memory it is done on return.
        """
        self.download(source, host)
        return lambda: None

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """Copy between a view of a buffer and an array of another owner, both in this device's memory.

        Shapes are equal; elements are converted as by ``upload``. The owner of the array must have waited for
        earlier work on it, and may use it on return. Only for devices whose ``name`` is the tier of stores.
        """
        raise UnsupportedError(f"[copy] {self.name} holds no arrays of others")

    @abc.abstractmethod
    def gemm(
        self,
        a: DeviceArray,
        b: DeviceArray,
        c: DeviceArray,
        *,
        accumulate: bool,
        conjugate_a: bool = False,
    ) -> None:
        """``c = a @ b`` or ``c += a @ b`` for ``(…, m, k) @ (…, k, n) -> (…, m, n)``.

        All three have the same dtype (f32 f64 c64 c128 or an integer, which wraps around), or a and b a
        half type that the device ``multiplies`` and c float32; batch
        axes broadcast as in NumPy. Any row or column order is taken as it lies. ``conjugate_a``
        multiplies by the complex conjugate of ``a``, which a view cannot express. ``c`` must not
        overlap ``a`` or ``b``; without ``accumulate`` it is never read.

        Raises ShapeError, DTypeError, DeviceMemoryError, DeviceError.
        """

    def multiplies(self, dtype: np.dtype[Any]) -> bool:
        """Return whether ``gemm`` and ``gram`` take elements of ``dtype``; asked before a plan is made.

        For a half type: whether they take such factors and sum in float32, the type of the result.
        """
        return dtype in FLOATING or dtype in INTEGERS

    @abc.abstractmethod
    def gram(self, a: DeviceArray, c: DeviceArray, *, accumulate: bool) -> None:
        """``c = aᴴ @ a`` or ``c += aᴴ @ a`` for ``(…, k, n) -> (…, n, n)`` at about half the flops.

        Only the upper triangle, diagonal included, is computed: the elements below are undefined until
        ``symmetrize``. Types, orders and errors as for ``gemm``.
        """

    @abc.abstractmethod
    def symmetrize(self, c: DeviceArray) -> None:
        """Write the conjugate of the upper triangle of ``(…, n, n)`` into the lower, in place."""

    @abc.abstractmethod
    def workspace_bytes(self) -> int:
        """Return the most bytes that arithmetic takes besides the tiles, in the memory of the tiles.

        Holds for one computing thread at a time and for arrays that ``can_take`` accepts; each
        call on others takes up to ``packing_bytes`` more while it runs.
        """

    def packing_bytes(self) -> int:
        """Return the most bytes that one call takes for operands that ``can_take`` rejects."""
        return 0

    def staging_bytes(self) -> int:
        """Return the bytes of host RAM of all transfers together (pinned buffers of an accelerator)."""
        return 0

    def can_take(self, array: DeviceArray) -> bool:
        """Return whether arithmetic reads ``array`` without packing it block by block."""
        return array is not None

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until all work is done; raises its first error."""

    def empty_cache(self) -> None:
        """Return cached memory to the system where the device keeps any."""
