"""Tensors of the fake GPU: they report its device, lie in RAM, and pass every operation on them to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from accelera.testing.fake_streams import Fake

_SYNCHRONOUS = frozenset(
    ("_local_scalar_dense", "equal", "nonzero", "is_nonzero", "_unique2", "masked_select")
)
"""Operators whose results the host needs, so that it waits."""
_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot"))
"""Operators for which cuBLAS keeps a workspace on each stream."""

active_fakes: list[Fake] = []
"""The fakes that are entered; the last one stands in torch's place."""


@final
class DeviceTensor(torch.Tensor):
    """A tensor of a fake device. Its bytes are in RAM; Python code sees the fake device."""

    _place: torch.device

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` as on a device; on the plain tensors when no fake is entered any more."""
        with torch._C.DisableTorchFunctionSubclass():
            cuda = active_fakes[-1] if active_fakes else None
            special = None if cuda is None else _SPECIAL.get(_name_of(func))
            if special is not None:
                return special(cuda, *args, **(kwargs or {}))
            return run_operator(cuda, func, args, kwargs or {})


def run_operator(cuda: Fake | None, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call ``func`` on the plain tensors under device tensors; return its results as device tensors."""
    device_tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, DeviceTensor)]
    place = device_tensors[0]._place
    plain = {id(each): as_plain(each) for each in device_tensors}
    wrapped = {id(plain[id(each)]): each for each in device_tensors}
    args, kwargs = tree_map(lambda each: plain.get(id(each), each), (args, kwargs))
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "cpu"}
    if cuda is None or _is_attribute_read(func):
        result = func(*args, **kwargs)
    else:
        with _OperatorRecorder(cuda, place):
            result = func(*args, **kwargs)

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, DeviceTensor):
            return value
        return wrapped.get(id(value)) if id(value) in wrapped else on_device(value, place)

    return tree_map(wrap, result)


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in RAM that is under a device tensor; others as they are."""
    if not isinstance(tensor, DeviceTensor):
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def on_device(tensor: torch.Tensor, place: torch.device) -> DeviceTensor:
    """Return a plain tensor as one that is on ``place``; the memory is the same."""
    with torch._C.DisableTorchFunctionSubclass():
        found = tensor.as_subclass(DeviceTensor)
        found._place = place
        return found


class _OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells the fake what each operator reads and writes, and gives results device memory."""

    def __init__(self, cuda: Fake, place: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cuda, self._place = cuda, place

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from loading its compiler when the first operator is seen."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        reads, writes = _accessed(func, args, kwargs)
        if not writes and _only_views(func):
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if name == "copy_":
            return self._cuda.copied(*args, **kwargs)
        return self._cuda.computed(
            name,
            lambda: func(*args, **kwargs),
            (reads, writes),
            self._place,
            waits=name in _SYNCHRONOUS,
            is_product=name in _PRODUCTS,
        )


def _accessed(func: Any, args: Any, kwargs: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the tensors that an operator reads and those that it writes, by its schema."""
    reads: list[torch.Tensor] = []
    writes: list[torch.Tensor] = []
    arguments = func._schema.arguments
    for argument, value in [*zip(arguments, args, strict=False), *_named(arguments, kwargs)]:
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        found = [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]
        (writes if is_written else reads).extend(found)
    return reads, writes


def _named(arguments: Any, kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    for argument in arguments:
        if argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _only_views(func: Any) -> bool:
    """Return whether results are other views of the operands' memory, so that nothing is computed."""
    returns = func._schema.returns
    return bool(returns) and all(each.alias_info is not None for each in returns)


def _name_of(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", "")
    return f"{func.__self__.__name__}?" if name == "__get__" else name  # type: ignore[attr-defined]


def _is_attribute_read(func: Callable[..., Any]) -> bool:
    """Return whether nothing is computed: attributes, apart from those that make views."""
    name = _name_of(func)
    return name.endswith("?") and name not in ("real?", "imag?", "H?", "mH?")


def tensor_to(cuda: Fake, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Do what ``Tensor.to`` does, between the host and the devices too."""
    copy = kwargs.pop("copy", False)
    device, dtype, non_blocking, memory_format = to_arguments(args, kwargs)
    source_device = tensor._place if isinstance(tensor, DeviceTensor) else torch.device("cpu")
    target_device = source_device if device is None else cuda.placed(device)
    plain = as_plain(tensor)
    dtype = plain.dtype if dtype is None else dtype
    if target_device == source_device and dtype == plain.dtype and not copy and memory_format is None:
        return tensor
    target_format = torch.preserve_format if memory_format is None else memory_format
    like = torch.empty_like(plain, device="meta", memory_format=target_format)
    target: torch.Tensor = cuda.new(like.shape, like.stride(), dtype, target_device)
    cuda.copied(as_plain(target), plain.detach(), non_blocking)
    return target


def to_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any, bool, Any]:
    """Return what ``Tensor.to`` is asked for: device, element type, whether not to wait, order of axes."""
    like = [each for each in (*args, kwargs.get("other")) if isinstance(each, DeviceTensor)]
    if like:
        return like[0]._place, as_plain(like[0]).dtype, bool(kwargs.get("non_blocking")), None
    named = {name: each for name, each in kwargs.items() if each is not None and name != "copy"}
    found: tuple[Any, Any, bool, Any] = torch._C._nn._parse_to(*args, **named)
    return found


def _numpy(_cuda: Fake, tensor: DeviceTensor, *_: Any, **__: Any) -> Any:
    raise TypeError(
        f"can't convert {tensor._place} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
        f"host memory first."
    )


def _product_in_float32(
    cuda: Fake,
    start: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dtype: torch.dtype,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: DeviceTensor,
) -> torch.Tensor:
    """Do what torch has on CUDA alone: half types multiplied with sums in float32."""
    if (a.dtype, b.dtype, out.dtype) != (a.dtype, a.dtype, dtype) or dtype != torch.float32:
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
    first, left, right, result = map(as_plain, (start, a, b, out))

    def work() -> None:
        torch.addmm(first, left.float(), right.float(), beta=beta, alpha=alpha, out=result)

    accessed = ([left, right, first] if beta else [left, right]), [result]
    cuda.computed("addmm", work, accessed, out._place, is_product=True)
    return out


_SPECIAL: dict[str, Callable[..., Any]] = {
    "device?": lambda cuda, tensor: tensor._place,
    "is_cuda?": lambda cuda, tensor: tensor._place.type == "cuda",
    "is_cpu?": lambda cuda, tensor: False,
    "get_device": lambda cuda, tensor: tensor._place.index,
    "cpu": lambda cuda, tensor, **how: tensor_to(cuda, tensor, "cpu"),
    "numpy": _numpy,
    "__array__": _numpy,
    "tolist": lambda cuda, tensor: tensor_to(cuda, tensor, "cpu").tolist(),
    "__repr__": lambda cuda, tensor, **how: f"{tensor_to(cuda, tensor, 'cpu')!r} on {tensor._place}",
    "addmm.dtype_out": _product_in_float32,
    "is_pinned": lambda cuda, tensor: False,
}
"""Functions that do not simply run on the plain tensor; names of attributes end in a question mark."""
