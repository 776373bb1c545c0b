"""Offloaded tensors: shapes whose bytes are blocks, made, viewed, copied and replaced."""

from __future__ import annotations

import copy
import math
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch._C._dynamo import eval_frame
from typing_extensions import ParamSpec, TypeIs

from accelera.errors import DeviceError, StateError
from accelera.offload.block_cache import BlockCache
from accelera.offload.block_layout import BlockLayout, row_parts
from accelera.offload.op_schema import PLAIN_TYPES
from accelera.units import format_bytes

if TYPE_CHECKING:
    import numpy as np

    from accelera.memory._internal import PoolBlock


_P = ParamSpec("_P")
_T = TypeVar("_T")

Rule = Callable[[Any, Any, Any], Any]
"""Carries out an operator on its arguments, at least one of which is offloaded."""

_RULES: dict[Any, Rule] = {}
_DEFAULT = "*"


def implements(*operators: Any) -> Callable[[Rule], Rule]:
    """Register a function as the rule for operators on offloaded tensors; ``dispatch`` has them.

    Operators are named by overload, by name, or by namespace; without any, the rule is for all others.
    """

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(operators or (_DEFAULT,), rule))
        return rule

    return register


@cache
def _rule_of(func: Any) -> Rule:
    """Return how ``func`` is carried out."""
    keys = (func.namespace, func, func.overloadpacket.__name__)
    return next((_RULES[key] for key in keys if key in _RULES), _RULES[_DEFAULT])


class BlockStorage:
    """Contiguous bytes of one tensor, whole in one block or cut along its rows.

    The blocks are freed when the last tensor that refers to them is.
    """

    __slots__ = (
        "__weakref__",
        "_mapped",
        "_mapped_version",
        "blocks",
        "cache",
        "dtype",
        "nbytes",
        "row_splits",
        "shape",
    )

    def __init__(
        self, cache: BlockCache, blocks: Sequence[PoolBlock], shape: Sequence[int], dtype: torch.dtype
    ) -> None:
        self.cache = cache
        self.blocks = tuple(blocks)
        self.shape = tuple(shape)
        """Shape of the contiguous tensor that the bytes are; rows are along its first dimension."""
        self.dtype = dtype
        self.nbytes = sum(block.nbytes for block in self.blocks)
        self.row_splits = self._splits()
        """First row of each block, then the number of rows."""
        self._mapped: weakref.ref[torch.Tensor] | None = None
        self._mapped_version: int | None = None

    def _splits(self) -> tuple[int, ...]:
        if len(self.blocks) < 2:
            return (0, self.shape[0] if self.shape else 1)
        row_bytes = self.nbytes // self.shape[0]
        splits = [0]
        for block in self.blocks:
            splits.append(splits[-1] + block.nbytes // row_bytes)
        return tuple(splits)

    def mapped(self, version: int | None = None) -> torch.Tensor:
        """Return the bytes as an ordinary flat uint8 tensor over a file or the host's memory.

        It takes no anonymous memory. As long as somebody holds it, the same one is given again, and these
        contents live. Another ``version``, which counts changes, is mapped again.
        """
        known = self._mapped() if self._mapped is not None else None
        if known is None or (version is not None and version != self._mapped_version):
            self._mapped_version = version
            one = len(self.blocks) == 1
            shown = self.cache.mapped(self.blocks[0]) if one else self.cache.joined(self.blocks)
            pages = shown.numpy()
            weakref.finalize(pages, _keep_alive, self).atexit = False
            known = torch.from_numpy(pages)
            self._mapped = weakref.ref(known)
        return known

    def __del__(self) -> None:
        for block in self.blocks:
            self.cache.free(block)


def _keep_alive(storage: BlockStorage) -> None:
    """Keep ``storage`` alive while its bytes are mapped; its backing store may be reused afterwards."""


class OffloadedTensor(torch.Tensor):
    """A tensor that knows its shape, and where its bytes are kept.

    It has no storage of its own. Operations on it go through ``dispatch``, which brings the bytes for as
    long as the operation takes. Views share their ``block_storage``.
    """

    block_storage: BlockStorage
    is_state = False
    """Whether it is a value of a ``state_dict``, for writers: with an address to read from."""
    _mapped_state: torch.Tensor | None = None
    """Mapped bytes behind the address of a ``state_dict`` value; kept as long as the value lives."""

    def __init_subclass__(cls) -> None:
        """Register a subclass as the class of tensors in several blocks."""
        super().__init_subclass__()
        _SEVERAL_BLOCKS.append(cls)

    @staticmethod
    def __new__(cls, *args: Any, **kwargs: Any) -> OffloadedTensor:
        """Make a view of a ``BlockStorage``, see ``_view_of``; of anything else an ordinary parameter.

        ``type(parameter)(data, requires_grad=...)`` is how other libraries make a parameter of the same type.
        """
        if args and isinstance(args[0], BlockStorage):
            return _view_of(*args, **kwargs)
        ordinary: Any = torch.nn.Parameter(*args, **kwargs)
        return ordinary  # type: ignore[no-any-return]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Carry out ``func``; another subclass among the operands goes first."""
        for kind in types:
            if not issubclass(kind, OffloadedTensor) and kind not in _ORDINARY:
                return NotImplemented
        return _rule_of(func)(func, args, kwargs or {})

    @property
    def cache(self) -> BlockCache:
        """The cache that holds the bytes."""
        return self.block_storage.cache

    @property
    def blocks(self) -> tuple[PoolBlock, ...]:
        """The blocks that hold the bytes."""
        return self.block_storage.blocks

    @property
    def row_splits(self) -> tuple[int, ...]:
        """First row of each block of the contents, then their number of rows."""
        return self.block_storage.row_splits

    def materialized(self) -> torch.Tensor:
        """Return an ordinary tensor on the same device with a copy of the values; without gradient."""
        return ordinary_copy(self)

    @property
    def data(self) -> torch.Tensor:
        """The tensor without its history, changes of which autograd does not see.

        Setting it takes over the values of a tensor, also one of another shape or type.
        """
        return without_history(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        replace_data(self, value)

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        """Return a read-only copy of the values as an array."""
        if self.requires_grad and not force:
            raise StateError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy()")
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
        """Return the tensor without its history; of a state, or for one, a state that can be written."""
        bare: Any = super().detach()
        if self.is_state or _is_writer(sys._getframe(1)):
            bare.is_state = True
        detached: OffloadedTensor = bare
        return detached

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
        """Return it with elements in order; of a state an ordinary tensor where they must be moved."""
        if self.is_state and not self.is_contiguous(memory_format=memory_format):
            return self._map_state().contiguous(memory_format=memory_format)
        return super().contiguous(memory_format=memory_format)

    def clone(self, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
        """Return a copy within the same cache; of a state, a state."""
        return self._propagate_state(super().clone(memory_format=memory_format or torch.preserve_format))

    def view(self, *shape: Any) -> torch.Tensor:
        """Return it in another shape or type; of a state, a state."""
        return self._propagate_state(super().view(*shape))

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Return a part; of a state, a state."""
        return self._propagate_state(super().__getitem__(index))

    def _propagate_state(self, part: torch.Tensor) -> torch.Tensor:
        if self.is_state and isinstance(part, OffloadedTensor):
            part.is_state = True
        return part

    def _map_state(self) -> torch.Tensor:
        """Return an ordinary tensor over the file of the bytes, and hold it; mapped again after changes."""
        self._mapped_state = self.block_storage.mapped(self._version)
        return as_mapped(self, self._version)

    def data_ptr(self) -> int:
        """Return where a value of a ``state_dict`` can be read as long as it lives; others have no address.

        Raises DeviceError for those: their bytes are in memory only while an operation uses them.
        """
        if self.is_state:
            return self._map_state().data_ptr()
        raise DeviceError(
            f"[data_ptr] {self} has no address: its bytes are in memory only while an operation uses them; "
            "take a copy with .materialized()"
        )

    def untyped_storage(self) -> Any:
        """Return what a value of a ``state_dict`` can be read from, as ``data_ptr``; raises as that does.

        Writers such as safetensors ask for it to find the bytes, and what shares them.
        """
        if self.is_state:
            return self._map_state().untyped_storage()
        raise DeviceError(
            f"[storage] {self} has no storage: its bytes are in memory only while an operation uses them; "
            "write values of model.state_dict(), or the model with accelera.offloaded(model).save(folder); "
            "load one with model.load_state_dict(...)"
        )

    def storage(self) -> Any:
        """Return the storage of a value of a ``state_dict``; raises DeviceError as ``untyped_storage``."""
        self.untyped_storage()
        stored: Any = self._map_state().storage()  # type: ignore[no-untyped-call]
        return stored

    def __dlpack__(self, **_: Any) -> Any:
        """Raise DeviceError: the bytes are in no memory that another library could hold."""
        raise DeviceError(
            f"[from_dlpack] {self} has no lasting bytes to share; take a copy with .materialized()"
        )

    def is_shared(self) -> bool:
        """Return False: the bytes are in no memory that another process could see."""
        return False

    def share_memory_(self) -> Any:
        """Raise DeviceError: the bytes are in no memory that could be shared."""
        raise DeviceError(
            f"[share_memory_] {self} cannot be shared between processes; take a copy with .materialized()"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> OffloadedTensor:
        """Copy the values within the same cache."""
        return deep_copy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as an ordinary tensor or parameter, read from the file where the bytes are."""
        return as_mapped(self).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        """Tell shape, type and place; the values are not read."""
        if not hasattr(self, "block_storage"):
            return f"OffloadedTensor(..., size={tuple(self.shape)})"
        name = self.block_storage.blocks[0].name
        size = format_bytes(self.numel() * self.element_size())
        needs = ", requires_grad=True" if self.requires_grad else ""
        return (
            f"OffloadedTensor({name!r}, size={tuple(self.shape)}, dtype={self.dtype}, {size} "
            f"offloaded from {self.device}{needs})"
        )


def _is_writer(caller: FrameType) -> bool:
    """Return whether ``caller`` writes values to a checkpoint, which it reads from their addresses."""
    if caller.f_code is torch.nn.Module._save_to_state_dict.__code__:
        return True
    return str(caller.f_globals.get("__name__")).startswith("torch.distributed.checkpoint.")


def _view_of(
    storage: BlockStorage,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | torch.SymInt = 0,
    dtype: torch.dtype | None = None,
) -> OffloadedTensor:
    """Return a view of ``storage``: sizes, strides and offset count elements of ``dtype``."""
    tensor: OffloadedTensor = torch.Tensor._make_wrapper_subclass(
        kind_of(storage),
        size,
        strides=stride,
        storage_offset=offset,
        dtype=dtype or storage.dtype,
        device=storage.cache.device,
    )
    tensor.block_storage = storage
    torch._C._set_throw_on_mutable_data_ptr(tensor)
    return tensor


def kind_of(storage: BlockStorage) -> type[OffloadedTensor]:
    """Return the class of tensors over ``storage``: several blocks need care with gradients."""
    return _SEVERAL_BLOCKS[-1] if len(storage.blocks) > 1 else OffloadedTensor


_SEVERAL_BLOCKS: list[type[OffloadedTensor]] = []
"""The class of tensors in several blocks, ``blockwise.autograd.PartitionedTensor``; it registers itself."""


_ORDINARY = (*PLAIN_TYPES, torch.nn.Parameter, torch.nn.Buffer)

_NEVER = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
eval_frame.set_code_exec_strategy(OffloadedTensor.__torch_dispatch__.__code__, _NEVER)
"""Keeps ``torch.compile`` from tracing into the dispatch of offloaded tensors."""


def not_compiled(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Keep ``torch.compile`` out of a function and of what it calls; return the function.

    As ``torch.compiler.disable`` does, which imports ``torch._dynamo``: seconds for programs that never
    compile.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    eval_frame.set_code_exec_strategy(function.__code__, _NEVER)
    return function


def is_offloaded(value: object) -> TypeIs[OffloadedTensor]:
    """Return whether ``value`` lives in the pool."""
    return isinstance(value, OffloadedTensor)


def layout_of(tensor: OffloadedTensor) -> BlockLayout:
    """Return where the elements of ``tensor`` lie in its blocks."""
    counts = [block.nbytes // tensor.element_size() for block in tensor.blocks]
    starts = (0, *accumulate(counts[:-1]))
    return BlockLayout(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), starts)


def in_several_blocks(value: object) -> bool:
    """Return whether ``value`` is an offloaded tensor that reaches into more than one block."""
    return is_offloaded(value) and len(value.blocks) > 1 and not layout_of(value).single


def like(cache: BlockCache, meta: torch.Tensor, name: str = "", role: str = "workspace") -> OffloadedTensor:
    """Return a new offloaded tensor, without contents, with the sizes, strides and type of ``meta``."""
    shape = tuple(meta.shape)
    in_order = meta.permute(memory_order(meta))
    sizes = shape if meta.is_contiguous() else tuple(in_order.shape)
    storage = new_storage(cache, sizes, meta.dtype, name=name, role=role)
    return OffloadedTensor(storage, shape, meta.stride())


def memory_order(tensor: torch.Tensor) -> list[int]:
    """Return the dimensions from the one with the largest stride to the one with the smallest."""
    pairs = zip(tensor.stride(), tensor.shape, range(tensor.dim()), strict=True)
    return [axis for _, _, axis in sorted(pairs, key=lambda pair: (-pair[0], -pair[1] if pair[1] > 1 else 0))]


def dense(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is non-overlapping and dense, in some order of its dimensions."""
    if tensor.layout is not torch.strided:
        return False
    expected = 1
    for axis in reversed(memory_order(tensor)):
        if tensor.shape[axis] != 1 and tensor.stride(axis) != expected:
            return tensor.numel() == 0
        expected *= tensor.shape[axis]
    return True


def empty(cache: BlockCache, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a new contiguous tensor, in the pool if it is bigger than a block."""
    if dtype.itemsize * math.prod(sizes) <= cache.block_bytes:
        return torch.empty(sizes, dtype=dtype, device=cache.device)
    return new_tensor(cache, sizes, dtype)


def new_tensor(
    cache: BlockCache,
    sizes: Sequence[int],
    dtype: torch.dtype,
    *,
    name: str = "",
    role: str = "workspace",
    cut: bool = True,
) -> OffloadedTensor:
    """Return a new contiguous tensor in the pool, without contents; ``cut``: in blocks of ``block_bytes``."""
    storage = new_storage(cache, sizes, dtype, name=name, role=role, cut=cut)
    return OffloadedTensor(storage, sizes, torch.empty(sizes, device="meta").stride())


def new_storage(
    cache: BlockCache, sizes: Sequence[int], dtype: torch.dtype, *, name: str, role: str, cut: bool = True
) -> BlockStorage:
    """Return new blocks of ``cache`` for a contiguous tensor; without ``cut`` a single one."""
    row_bytes = dtype.itemsize * math.prod(sizes[1:])
    whole = [slice(0, sizes[0] if sizes else 1)]
    parts = row_parts(sizes, dtype.itemsize, cache.block_bytes) if cut else whole
    blocks = [cache.create((part.stop - part.start) * row_bytes, name, role) for part in parts]
    return BlockStorage(cache, blocks, sizes, dtype)


def wrap(cache: BlockCache, tensor: torch.Tensor, name: str = "", role: str = "weight") -> OffloadedTensor:
    """Return an offloaded tensor with the values, sizes and strides of ``tensor``.

    What is not dense, such as an expanded tensor, gets the strides of a contiguous one. Raises DeviceError
    for a tensor that has no bytes to take over.
    """
    check(tensor, name)
    plain = tensor.detach().resolve_conj().resolve_neg()
    if not dense(plain):
        plain = plain.contiguous()
    in_order = plain if plain.is_contiguous() else plain.permute(memory_order(plain))
    storage = BlockStorage(cache, cache.adopt(in_order, name, role), in_order.shape, plain.dtype)
    return OffloadedTensor(storage, plain.shape, plain.stride())


def wrap_sharing(
    cache: BlockCache, tensors: list[torch.Tensor], name: str = "", role: str = "weight"
) -> list[OffloadedTensor]:
    """Return offloaded tensors that share their bytes as ``tensors`` share one storage."""
    first = tensors[0].detach()
    check(first, name)
    count = first.untyped_storage().nbytes() // first.element_size()
    flat = first.as_strided((count,), (1,), 0)
    storage = BlockStorage(cache, cache.adopt(flat, name, role), flat.shape, flat.dtype)
    return [
        OffloadedTensor(storage, one.shape, one.stride(), one.storage_offset(), one.dtype) for one in tensors
    ]


def can_be_offloaded(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` can be offloaded: strided, not quantized, and of no other subclass."""
    return type(tensor) in _ORDINARY and tensor.layout is torch.strided and not tensor.is_quantized


def check_values(tensor: torch.Tensor, name: str) -> None:
    """Raise DeviceError for a tensor on the meta device."""
    if tensor.device.type == "meta":
        raise DeviceError(
            f"[offload] {name or 'a tensor'} {tuple(tensor.shape)} is on the meta device: it has no values; "
            "load a checkpoint with accelera.offload_checkpoint, or build the model on the CPU"
        )


def check(tensor: torch.Tensor, name: str) -> None:
    """Raise DeviceError for a tensor without bytes, or of a kind that cannot be taken over."""
    check_values(tensor, name)
    if not can_be_offloaded(tensor):
        raise DeviceError(
            f"[offload] {name or 'the tensor'} is a {type(tensor).__name__} of layout {tensor.layout}: only "
            "dense tensors can be offloaded; keep it an ordinary one"
        )


_OWN_ATTRIBUTES = ("block_storage", "_is_param", "is_state", "_mapped_state")
"""Attributes that say what an offloaded tensor is; all others are the user's."""


def ordinary_copy(tensor: OffloadedTensor) -> torch.Tensor:
    """Return an ordinary tensor on the same device with the values of ``tensor``."""
    with torch.no_grad():
        strides = tensor.stride() if dense(tensor) else torch.empty(tensor.shape, device="meta").stride()
        result = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
        return result.copy_(tensor.detach())


def deep_copy(tensor: OffloadedTensor, memo: dict[int, Any]) -> OffloadedTensor:
    """Return a copy with contents of its own in the same cache; what shared contents still does.

    Raises RuntimeError for a tensor that is the result of a differentiable operation, as PyTorch does.
    """
    if id(tensor) in memo:
        known: OffloadedTensor = memo[id(tensor)]
        return known
    if not tensor.is_leaf:
        raise StateError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol"
        )
    storage = _copy_storage(tensor.block_storage, memo)
    made = OffloadedTensor(storage, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
    memo[id(tensor)] = made
    made.requires_grad_(tensor.requires_grad)
    if hasattr(tensor, "_is_param"):
        made._is_param = True
    if tensor.grad is not None:
        made.grad = copy.deepcopy(tensor.grad, memo)
    made.__dict__.update(copy.deepcopy(_attributes(tensor), memo))
    return made


def _copy_storage(storage: BlockStorage, memo: dict[int, Any]) -> BlockStorage:
    if id(storage) not in memo:
        whole = whole_of(storage)
        first = storage.blocks[0]
        memo[id(storage)] = like(storage.cache, whole, first.name, first.role)
        memo[id(storage)].copy_(whole)
    copied: BlockStorage = memo[id(storage)].block_storage
    return copied


def whole_of(storage: BlockStorage) -> OffloadedTensor:
    """Return all of ``storage`` as one contiguous tensor."""
    strides = torch.empty(storage.shape, device="meta").stride()
    return OffloadedTensor(storage, storage.shape, strides)


def as_mapped(tensor: OffloadedTensor, version: int | None = None) -> torch.Tensor:
    """Return an ordinary tensor or parameter over the file where the bytes are; it takes no anonymous memory.

    Tensors that share contents share its storage. Another ``version`` than before is mapped again.
    """
    return over(tensor.block_storage.mapped(version), tensor)


def over(flat: torch.Tensor, tensor: OffloadedTensor) -> torch.Tensor:
    """Return ``tensor`` as an ordinary tensor or parameter over the bytes of its contents in ``flat``."""
    typed = flat.view(tensor.dtype)
    plain = typed.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    if tensor.is_conj():
        plain = plain.conj()
    if tensor.is_neg():
        torch._C._set_neg(plain, True)
    if hasattr(tensor, "_is_param"):
        plain = torch.nn.Parameter(plain, requires_grad=tensor.requires_grad)
    elif tensor.requires_grad:
        plain.requires_grad_()
    plain.__dict__.update(_attributes(tensor))
    return plain


def _attributes(tensor: OffloadedTensor) -> dict[str, Any]:
    return {name: value for name, value in tensor.__dict__.items() if name not in _OWN_ATTRIBUTES}


def replace_data(tensor: OffloadedTensor, value: torch.Tensor) -> None:
    """Replace the contents, shape and type of ``tensor`` by those of ``value``: ``tensor.data = value``.

    Values of an ordinary tensor are taken over by the cache. Raises DeviceError when they are elsewhere than
    on the device that computes.
    """
    device = tensor.cache.device
    if value.device != device:
        raise DeviceError(
            f"[offload] {tensor} computes on {device} and cannot be moved to {value.device}; take the model "
            "back with offloaded(model).restore(), then move it"
        )
    first = tensor.blocks[0]
    if not isinstance(value, OffloadedTensor):
        value = wrap(tensor.cache, value, first.name, first.role)
    for block in value.blocks:
        block.name, block.role = (block.name, block.role) if block.name else (first.name, first.role)
    torch._C.TensorBase.data.__set__(tensor, value.detach())  # type: ignore[attr-defined]
    tensor.block_storage = value.block_storage


def without_history(tensor: OffloadedTensor) -> OffloadedTensor:
    """Return the same bytes without history and with a count of changes of its own: ``tensor.data``."""
    with torch._C._DisableTorchDispatch():
        bare = torch._C.TensorBase.data.__get__(tensor)  # type: ignore[attr-defined]
        made: OffloadedTensor = torch.Tensor._make_subclass(kind_of(tensor.block_storage), bare)
    made.block_storage = tensor.block_storage
    return made
