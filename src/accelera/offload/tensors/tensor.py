"""A tensor whose bytes are in the pool only while an operation uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._C._dynamo import eval_frame

from accelera.errors import DeviceError
from accelera.offload.keeping.plain import PLAIN_TYPES
from accelera.offload.tensors.contents import Contents
from accelera.offload.tensors.ways import way
from accelera.units import format_bytes

if TYPE_CHECKING:
    import numpy as np

    from accelera.memory import Block
    from accelera.offload.keeping.keeper import Keeper


class OffloadedTensor(torch.Tensor):
    """A tensor that knows its shape, and where its bytes are kept.

    It has no storage of its own. Operations on it go through ``dispatching``, which brings the bytes for as
    long as the operation takes. Views share their ``contents``.
    """

    contents: Contents

    @staticmethod
    def __new__(
        cls,
        contents: Contents,
        size: Sequence[int],
        stride: Sequence[int],
        offset: int | torch.SymInt = 0,
        dtype: torch.dtype | None = None,
    ) -> OffloadedTensor:
        """Make a view of ``contents``: sizes, strides and offset count elements of ``dtype``."""
        tensor: OffloadedTensor = torch.Tensor._make_wrapper_subclass(
            kind_of(contents),
            size,
            strides=stride,
            storage_offset=offset,
            dtype=dtype or contents.dtype,
            device=contents.keeper.device,
        )
        tensor.contents = contents
        torch._C._set_throw_on_mutable_data_ptr(tensor)
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Carry out ``func``; another subclass among the operands goes first."""
        for kind in types:
            if not issubclass(kind, OffloadedTensor) and kind not in _ORDINARY:
                return NotImplemented
        return way("dispatch")(func, args, kwargs or {})

    @property
    def keeper(self) -> Keeper:
        """What keeps the bytes."""
        return self.contents.keeper

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that hold the bytes."""
        return self.contents.blocks

    @property
    def row_splits(self) -> tuple[int, ...]:
        """First row of each block of the contents, then their number of rows."""
        return self.contents.row_splits

    def materialized(self) -> torch.Tensor:
        """Return an ordinary tensor on the same device with a copy of the values; without gradient."""
        copy: torch.Tensor = way("ordinary_copy")(self)
        return copy

    @property
    def data(self) -> torch.Tensor:
        """The tensor without its history, changes of which autograd does not see.

        Setting it takes over the values of a tensor, also one of another shape or type.
        """
        bare: torch.Tensor = way("without_history")(self)
        return bare

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        way("replace_data")(self, value)

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        """Return a read-only copy of the values as an array."""
        if self.requires_grad and not force:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy()")
        array: np.ndarray[Any, Any] = self.materialized().cpu().resolve_conj().resolve_neg().numpy()
        array.flags.writeable = False
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return the values as an array for NumPy; read-only unless NumPy converts or copies it."""
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def tolist(self) -> Any:
        """Return the values as nested lists."""
        return self.materialized().tolist()

    def data_ptr(self) -> int:
        """Raise DeviceError: the bytes have no lasting address."""
        raise DeviceError(
            f"[data_ptr] {self} has no address: its bytes are in memory only while an operation uses them; "
            "take a copy with .materialized()"
        )

    def storage(self) -> Any:
        """Raise DeviceError: writers such as safetensors ask for it to find the bytes, and to hold them."""
        raise DeviceError(
            f"[storage] {self} has no storage: its bytes are in memory only while an operation uses them; "
            "write the model with accelera.offloaded(model).save(folder), or give the writer "
            "state_dict=accelera.offloaded(model).state_dict(); load one with model.load_state_dict(...)"
        )

    def __dlpack__(self, **_: Any) -> Any:
        """Raise DeviceError: the bytes are in no memory that another library could hold."""
        raise DeviceError(
            f"[from_dlpack] {self} has no lasting bytes to share; take a copy with .materialized()"
        )

    def share_memory_(self) -> Any:
        """Raise DeviceError: the bytes are in no memory that could be shared."""
        raise DeviceError(
            f"[share_memory_] {self} cannot be shared between processes; take a copy with .materialized()"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> OffloadedTensor:
        """Copy the values within the same keeper."""
        copy: OffloadedTensor = way("deep_copy")(self, memo)
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as an ordinary tensor or parameter, read from the file where the bytes are."""
        return way("as_mapped")(self).__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        """Tell shape, type and place; the values are not read."""
        if not hasattr(self, "contents"):
            return f"OffloadedTensor(..., size={tuple(self.shape)})"
        name = self.contents.blocks[0].name
        size = format_bytes(self.numel() * self.element_size())
        needs = ", requires_grad=True" if self.requires_grad else ""
        return (
            f"OffloadedTensor({name!r}, size={tuple(self.shape)}, dtype={self.dtype}, {size} "
            f"offloaded from {self.device}{needs})"
        )


def kind_of(contents: Contents) -> type[OffloadedTensor]:
    """Return the class of tensors over ``contents``: several blocks need care with gradients."""
    parted: Any = way("parted")
    kind: type[OffloadedTensor] = parted if len(contents.blocks) > 1 else OffloadedTensor
    return kind


_ORDINARY = (*PLAIN_TYPES, torch.nn.Parameter, torch.nn.Buffer)

_NEVER = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
eval_frame.set_code_exec_strategy(OffloadedTensor.__torch_dispatch__.__code__, _NEVER)
"""``torch.compile`` traces nothing of what an operation does with its operands."""
