"""torch tensors: on the CPU an array that shares their memory, on an accelerator copies of regions."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch

from accelera.errors import DTypeError, ShapeError, StoreError
from accelera.stores.array import ArrayOutput, ArrayStore
from accelera.stores.contract import Layout, OutputStore, Store
from accelera.stores.dtypes import BFLOAT16, as_bytes_of, parse_dtype
from accelera.stores.mapped import open_mapped
from accelera.stores.regions import Region, check_transfer


def open_tensor(tensor: torch.Tensor, direct: bool | None = None, *, writable: bool = False) -> Store:
    """Return a store that shares the tensor's memory, or reads the file that the memory maps.

    Raises DTypeError for elements no store holds, StoreError for tensors without plain memory.
    """
    plain = _plain(tensor)
    if plain.device.type != "cpu":
        return TorchStore(plain)
    array = share(plain)
    return open_mapped(array, direct, writable=writable) or ArrayStore(array, name="tensor")


def open_tensor_result(tensor: torch.Tensor) -> Store:
    """Return a store that writes into ``tensor`` itself.

    Raises StoreError for tensors that require a gradient, which no result flows through, and for those
    whose memory does not hold their values as they read.
    """
    if tensor.requires_grad:
        raise StoreError(
            "[out] a tensor that requires a gradient, which would not be followed; give .detach()"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise StoreError("[out] a tensor that is conjugated or negated as it is read; give .clone()")
    return open_tensor(tensor, writable=True)


def fill_tensor(tensor: torch.Tensor, shape: tuple[int, ...], dtype: np.dtype[Any]) -> OutputStore:
    """Return an output that writes into ``tensor``.

    Raises ShapeError or DTypeError when it is not of ``shape`` and ``dtype``.
    """
    plain = _plain(tensor)
    open_tensor_result(tensor)
    return (
        ArrayOutput(share(plain), shape, dtype)
        if plain.device.type == "cpu"
        else TorchOutput(plain, shape, dtype)
    )


def share(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a NumPy view of a CPU tensor, bfloat16 included; it must not outlive the storage's size.

    ``Tensor.numpy`` would forbid for ever that the tensor's storage is resized, as FSDP does with weights.
    """
    if type(tensor) is torch.Tensor:
        dtype = parse_dtype(tensor.dtype)
        return (
            np.asarray(_TensorMemory(tensor)).view(dtype) if tensor.numel() else np.empty(tensor.shape, dtype)
        )
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(BFLOAT16)
    return tensor.numpy()


@final
class _TensorMemory:
    """Memory of a tensor as NumPy's array interface describes it; arrays over it keep the tensor alive."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        kind = "c" if tensor.is_complex() else "i"
        self.__array_interface__ = {
            "version": 3,
            "typestr": np.dtype(f"{kind}{tensor.itemsize}").str,
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * tensor.itemsize for stride in tensor.stride()),
            "data": (tensor.data_ptr(), False),
        }


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    parse_dtype(tensor.dtype, op="open_store")
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise StoreError(
            f"[open_store] a {tensor.layout} tensor on {tensor.device}: no plain memory; give a dense one"
        )
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and hasattr(tensor, "__tensor_flatten__"):
        raise StoreError(
            f"[open_store] a {type(tensor).__name__} is a tensor without memory of its own; give a plain one"
        )
    return tensor.detach().resolve_conj().resolve_neg()


@final
class TorchStore(Store):
    """A tensor on an accelerator; regions are copied to and from host memory.

    torch takes a temporary of the region's size on the device for regions that are not contiguous.
    """

    name = "tensor"

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = parse_dtype(tensor.dtype)
        self.tier = str(tensor.device)
        self._tensor: torch.Tensor | None = tensor

    def tensor(self, op: str = "tensor") -> torch.Tensor:
        """Return the tensor itself."""
        if self._tensor is None:
            raise StoreError(f"[{op}] {self.name} on {self.tier} is closed; open it again")
        return self._tensor

    def held(self) -> torch.Tensor:
        """Return the tensor itself."""
        return self.tensor("held")

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Copy ``region`` from the device into ``out``; return its bytes."""
        source = self.tensor("read")
        check_transfer("read", self.shape, self.dtype, region, out)
        _copy(out, source[region], into_host=True)
        return out.nbytes

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Copy ``data`` to ``region`` on the device; return its bytes."""
        target = self.tensor("write")
        check_transfer("write", self.shape, self.dtype, region, data)
        _copy(data, target[region], into_host=False)
        return data.nbytes

    @property
    def layout(self) -> Layout:
        """The tensor's strides."""
        strides = [stride * self.dtype.itemsize for stride in self.tensor("layout").stride()]
        return Layout.of_strides(self.shape, strides, self.dtype.itemsize)

    def close(self) -> None:
        """Let go of the tensor."""
        self._tensor = None


@final
class TorchOutput(OutputStore):
    """A result written into a tensor on an accelerator; there is nothing to publish."""

    def __init__(self, tensor: torch.Tensor, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._store = TorchStore(tensor)
        if self._store.shape != shape:
            raise ShapeError(f"[create_store] a tensor of shape {self._store.shape} for a result of {shape}")
        if self._store.dtype != dtype:
            raise DTypeError(f"[create_store] a tensor of {self._store.dtype} for a result of {dtype}")
        self.shape, self.dtype = shape, dtype
        self.tier, self.name = self._store.tier, self._store.name

    def tensor(self) -> torch.Tensor:
        """Return the tensor itself."""
        return self._store.tensor()

    def held(self) -> torch.Tensor:
        """Return the tensor itself."""
        return self._store.held()

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Copy ``region`` from the device into ``out``; return its bytes."""
        return self._store.read(region, out)

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Copy ``data`` to ``region`` on the device; return its bytes."""
        return self._store.write(region, data)

    @property
    def layout(self) -> Layout:
        """The tensor's strides."""
        return self._store.layout

    def commit(self) -> None:
        """Do nothing: the tensor is the result."""

    def abort(self, *, keep_partial: bool = False) -> None:
        """Let go of the tensor."""
        self._store.close()

    def close(self) -> None:
        """Let go of the tensor."""
        self._store.close()


def _copy(host: np.ndarray[Any, Any], device: torch.Tensor, *, into_host: bool) -> None:
    """Copy between host memory and a region on a device; torch knows no negative strides."""
    backwards = [axis for axis, stride in enumerate(host.strides) if stride < 0]
    if backwards:
        for i in range(host.shape[backwards[0]]):
            at: Any = (slice(None),) * backwards[0] + (i, ...)
            _copy(host[at], device[at], into_host=into_host)
    elif into_host:
        _wrap(host).copy_(device)
    else:
        device.copy_(_wrap(host))


def _wrap(host: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a tensor over host memory, bfloat16 included; torch only reads it when it is read-only."""
    plain = as_bytes_of(host) if host.dtype == BFLOAT16 else host
    if not plain.flags.writeable:
        plain = np.asarray(_Writeable(plain))
    wrapped = torch.from_numpy(plain)
    return wrapped.view(torch.bfloat16) if host.dtype == BFLOAT16 else wrapped


class _Writeable:
    """The memory of a read-only array, said to be writeable: torch warns about any other."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
        self._owner = array
