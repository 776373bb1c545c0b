"""A tensor whose bytes are in the pool only while an operation uses them."""

from __future__ import annotations

import sys
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
    is_state = False
    """Whether it is a value of a ``state_dict``, for writers: with an address to read from."""
    _shown: torch.Tensor | None = None
    """The bytes that a state shows at its address, kept until the state is gone."""

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

    def detach(self) -> OffloadedTensor:
        """Return the tensor without its history; for a module's ``state_dict``, one that can be written."""
        bare: Any = super().detach()
        if sys._getframe(1).f_code is torch.nn.Module._save_to_state_dict.__code__:
            bare.is_state = True
        detached: OffloadedTensor = bare
        return detached

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
        """Return it with elements in order; of a state an ordinary tensor where they must be moved."""
        if self.is_state and not self.is_contiguous(memory_format=memory_format):
            return self._as_shown().contiguous(memory_format=memory_format)
        return super().contiguous(memory_format=memory_format)

    def clone(self, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
        """Return a copy within the same keeper; of a state, a state."""
        return self._handed_on(super().clone(memory_format=memory_format or torch.preserve_format))

    def view(self, *shape: Any) -> torch.Tensor:
        """Return it in another shape or type; of a state, a state."""
        return self._handed_on(super().view(*shape))

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Return a part; of a state, a state."""
        return self._handed_on(super().__getitem__(index))

    def _handed_on(self, part: torch.Tensor) -> torch.Tensor:
        if self.is_state and isinstance(part, OffloadedTensor):
            part.is_state = True
        return part

    def _as_shown(self) -> torch.Tensor:
        """Return an ordinary tensor over the file where the bytes are, and hold it; anew when they change."""
        self._shown = self.contents.mapped(self._version)
        shown: torch.Tensor = way("as_mapped")(self, self._version)
        return shown

    def data_ptr(self) -> int:
        """Return where a value of a ``state_dict`` can be read as long as it lives; others have no address.

        Raises DeviceError for those: their bytes are in memory only while an operation uses them.
        """
        if self.is_state:
            return self._as_shown().data_ptr()
        raise DeviceError(
            f"[data_ptr] {self} has no address: its bytes are in memory only while an operation uses them; "
            "take a copy with .materialized()"
        )

    def untyped_storage(self) -> Any:
        """Return what a value of a ``state_dict`` can be read from, as ``data_ptr``; raises as that does.

        Writers such as safetensors ask for it to find the bytes, and what shares them.
        """
        if self.is_state:
            return self._as_shown().untyped_storage()
        raise DeviceError(
            f"[storage] {self} has no storage: its bytes are in memory only while an operation uses them; "
            "write values of model.state_dict(), or the model with accelera.offloaded(model).save(folder); "
            "load one with model.load_state_dict(...)"
        )

    def storage(self) -> Any:
        """Return the storage of a value of a ``state_dict``; raises DeviceError as ``untyped_storage``."""
        self.untyped_storage()
        stored: Any = self._as_shown().storage()  # type: ignore[no-untyped-call]
        return stored

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
