"""Dispatch of ATen operators on offloaded tensors: views, whole operands, lists, ``out=``, collectives."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from accelera.errors import BudgetExceededError, DeviceError
from accelera.offload import blockwise
from accelera.offload.blockwise.run import is_on_lists
from accelera.offload.op_schema import OpSchema, each_tensor, infer_meta, is_composite, out_form, schema_of
from accelera.offload.operands import PinnedOperands
from accelera.offload.tensor import (
    OffloadedTensor,
    Rule,
    dense,
    implements,
    in_several_blocks,
    kind_of,
    like,
    replace_data,
)

if TYPE_CHECKING:
    from accelera.offload.block_cache import BlockCache


_NOT_INFERABLE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry out ``func``, some operand of which is offloaded, and return its result.

    The result is offloaded when all operands are (numbers aside) and it is not small.
    """
    offloaded, ordinary = _split_operands(args, kwargs)
    for one in offloaded:
        if len(one.block_storage.blocks) > 1 and in_several_blocks(one):
            return blockwise.run(func, args, kwargs, one.block_storage.cache)
    schema = schema_of(func)
    if not (ordinary or schema.written) and schema.gives_tensors:
        result = _compute_into_pool(func, args, kwargs, offloaded[0].cache)
        if result is not NotImplemented:
            return result
    with _operands(func, offloaded, args, kwargs) as operands:
        given = [operands.bring(value) for value in args]
        named = {name: operands.bring(value) for name, value in kwargs.items()}
        result = func(*given, **named)
        if not schema.written:
            return operands.kept(result)
    return _returned_arguments(schema, args, kwargs, result)


def _compute_into_pool(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> Any:
    """Carry out ``func`` with its result in the pool; NotImplemented when the result is to be ordinary.

    All tensor operands are offloaded, each within one block, or have no dimension.
    """
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != cache.device.type:
        return NotImplemented
    meta = _meta_results(func, args, kwargs)
    if meta is None or not any(one.nbytes >= cache.least_bytes for one in meta):
        return NotImplemented
    if any(one.nbytes > cache.block_bytes for one in meta):
        return blockwise.run(func, args, kwargs, cache)
    form = out_form(func)
    if form is None:
        return NotImplemented
    form, names = form
    outs: list[Any] = [like(cache, one) for one in meta]
    if str(func._schema.returns[0].type) == "List[Tensor]":
        outs = [outs]
    named = {name: value for name, value in kwargs.items() if name in schema_of(form).names}
    compute(form, args, {**named, **dict(zip(names, outs, strict=True))})
    return outs[0] if len(outs) == 1 else tuple(outs)


def _meta_results(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor] | None:
    """Return tensors without memory such as ``func`` would return; None when they depend on values."""
    if any(tag in func.tags for tag in _NOT_INFERABLE) or func._schema.name in _NO_META_KERNEL:
        return None
    try:
        meta = infer_meta(func, args, kwargs)
    except RuntimeError:
        _NO_META_KERNEL.add(func._schema.name)
        return None
    results = list(meta) if isinstance(meta, (list, tuple)) else [meta]
    if not all(isinstance(one, torch.Tensor) and dense(one) for one in results):
        return None
    return results


_NO_META_KERNEL: set[str] = set()
"""Operations that cannot be carried out without memory."""


def _split_operands(args: Any, kwargs: Any) -> tuple[list[OffloadedTensor], bool]:
    """Return the offloaded operands, and whether there are ordinary ones of one dimension or more."""
    offloaded: list[OffloadedTensor] = []
    ordinary = False
    for one in each_tensor(args, kwargs):
        if isinstance(one, OffloadedTensor):
            offloaded.append(one)
        elif one.dim():
            ordinary = True
    return offloaded, ordinary


def _operands(func: Any, offloaded: list[OffloadedTensor], args: Any, kwargs: Any) -> PinnedOperands:
    schema = schema_of(func)
    incoming_bytes = output_bytes(func, args, kwargs) if offloaded[0].cache.watched else 0
    if not schema.written:
        return PinnedOperands(schema.op, offloaded, output_bytes=incoming_bytes)
    changed = {id(one) for one in each_tensor(schema.changed(args, kwargs), {})}
    read_too = len({id(one) for one in offloaded}) < len(offloaded)
    overwrites = schema.overwrites and not read_too
    return PinnedOperands(schema.op, offloaded, changed, overwrites=overwrites, output_bytes=incoming_bytes)


def _returned_arguments(schema: OpSchema, args: Any, kwargs: Any, result: Any) -> Any:
    """Return the results of an operation in place: the arguments themselves."""
    if len(schema.returned) == 0:
        return None
    if len(schema.returned) == 1:
        name = schema.returned[0]
        return result if name is None else schema.argument(name, args, kwargs)
    return tuple(
        each if name is None else schema.argument(name, args, kwargs)
        for name, each in zip(schema.returned, result, strict=True)
    )


_MOST_RESULT_BYTES = 1 << 14

_RESULT_BYTES: dict[Any, int] = {}
"""Bytes of results by operation and operands."""


def output_bytes(func: Any, args: Any, kwargs: Any) -> int:
    """Return the bytes of the ordinary tensors that ``func`` makes or fills; 0 when they depend on values."""
    schema = schema_of(func)
    if schema.written:
        filled = each_tensor(schema.changed(args, kwargs), {}) if schema.overwrites else ()
        return sum(_bytes(one) for one in filled if not isinstance(one, OffloadedTensor))
    if not schema.gives_tensors or (func.tags and torch.Tag.data_dependent_output in func.tags):
        return 0
    try:
        key = (func, _shapes(args), _shapes(kwargs.values()), tuple(kwargs))
        known = _RESULT_BYTES.get(key)
    except TypeError:
        return 0
    if known is None:
        if len(_RESULT_BYTES) >= _MOST_RESULT_BYTES:
            _RESULT_BYTES.clear()
        known = _RESULT_BYTES[key] = _result_bytes(func, args, kwargs)
    return known


def _shapes(values: Any) -> tuple[Any, ...]:
    return tuple(
        (each.shape, each.dtype)
        if isinstance(each, torch.Tensor)
        else _shapes(each)
        if isinstance(each, (list, tuple))
        else each
        for each in values
    )


def _result_bytes(func: Any, args: Any, kwargs: Any) -> int:
    try:
        results = infer_meta(func, args, kwargs)
    except (RuntimeError, TypeError):
        return 0
    return sum(_bytes(each) for each in each_tensor((results,), {}))


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def view(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the view, or the views, that ``func`` gives of its first argument."""
    base = args[0]
    kind = kind_of(base.block_storage)
    with torch._C._DisableTorchDispatch():
        shown = func(*args, **kwargs)
        if isinstance(shown, torch.Tensor):
            return _alias(kind, base, shown)
        return [_alias(kind, base, each) for each in shown]


RESHAPING = ("squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_")
"""In-place changes of sizes and strides that keep the same bytes."""


@implements(*RESHAPING)
def reshape_in_place(func: Any, args: Any, kwargs: Any) -> Any:
    """Give the first argument other sizes and strides, as ``func`` does; return it."""
    with torch._C._DisableTorchDispatch():
        func(*args, **kwargs)
    return args[0]


def _alias(kind: Any, base: Any, shown: torch.Tensor) -> Any:
    made: Any = torch.Tensor._make_subclass(kind, shown)
    made.block_storage = base.block_storage
    return made


@implements(torch.ops.aten.set_.source_Tensor)
def set_tensor(_: Any, args: Any, __: Any) -> OffloadedTensor:
    """Make the first argument what the second is: ``tensor.set_(other)``.

    Raises DeviceError for an ordinary one, before anything changes.
    """
    if not isinstance(args[0], OffloadedTensor):
        raise DeviceError(
            f"[set_] an ordinary tensor {tuple(args[0].shape)} cannot share the storage of {args[1]!r:.200}, "
            "which has none: set it to a copy, value.materialized()"
        )
    replace_data(*args)
    changed: OffloadedTensor = args[0]
    return changed


def compute_out(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry out ``func``, which writes into given tensors.

    Ordinary ones get the result's shape, as PyTorch gives it. Raises DeviceError when an offloaded one is of
    another shape, or when the shape is not known before.
    """
    outs = list(each_tensor(schema_of(func).changed(args, kwargs), {}))
    meta = _meta_of(func, args, kwargs, outs)
    for out, one in zip(outs, meta, strict=False):
        if out.shape == one.shape:
            continue
        if isinstance(out, OffloadedTensor):
            raise _refusal(func, out, f"of shape {tuple(one.shape)}")
        out.resize_(one.shape)
    return compute(func, args, kwargs)


def _meta_of(func: Any, args: Any, kwargs: Any, outs: list[torch.Tensor]) -> list[torch.Tensor]:
    try:
        return [one for one in tree_leaves(infer_meta(func, args, kwargs)) if isinstance(one, torch.Tensor)]
    except NotImplementedError as error:
        for out in outs:
            if isinstance(out, OffloadedTensor):
                raise _refusal(func, out, "of a shape that the values tell") from error
        return []


def _refusal(func: Any, out: OffloadedTensor, shape: str) -> DeviceError:
    return DeviceError(
        f"[{func.overloadpacket.__name__}] the result is {shape} and {out}, given as out=, cannot become so; "
        "leave out= away, or give one of the result's shape"
    )


def foreach(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry out ``func`` for each element of its lists; results are joined to lists again."""
    lists = [value for value in (*args, *kwargs.values()) if _is_list(value)]
    count = max((len(value) for value in lists), default=0)
    results = [
        _compute_element(
            func,
            _element_arguments(args, place),
            {name: _element_arguments([value], place)[0] for name, value in kwargs.items()},
        )
        for place in range(count)
    ]
    return [one for result in results for one in result] if func._schema.returns else None


def _compute_element(func: Any, args: Any, kwargs: Any) -> Any:
    if any(isinstance(one, OffloadedTensor) for one in each_tensor(args, kwargs)):
        return compute(func, args, kwargs)
    return func(*args, **kwargs)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0


def _element_arguments(values: Any, place: int) -> list[Any]:
    return [[value[place]] if _is_list(value) else value for value in values]


NAMESPACE = "c10d"
"""Where PyTorch has them."""

_POINT_TO_POINT = ("send", "recv_", "recv_any_source_")
"""Point-to-point messages: waiting for one could deadlock, as the other process may wait as well."""


@implements(NAMESPACE)
def collective(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry out ``func`` to its end with its operands whole in the pool.

    Its schema does not say what it changes, so all of them count as changed. Raises BudgetExceededError when
    they do not fit, DeviceError for a message from one process to another.
    """
    name = func.overloadpacket.__name__
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, OffloadedTensor)]
    if name in _POINT_TO_POINT:
        raise DeviceError(f"[{name}] {leaves[0]} is offloaded, and has no lasting address; give a copy of it")
    copies = blockwise.gathered(str(func), leaves, leaves[0].cache)
    wholes = [copies.get(id(leaf), leaf) for leaf in leaves]
    with PinnedOperands(str(func), wholes, {id(one) for one in wholes}) as operands:
        shown = {id(leaf): operands.bring(one) for leaf, one in zip(leaves, wholes, strict=True)}
        given, named = tree_map_only(OffloadedTensor, lambda leaf: shown[id(leaf)], (args, kwargs))
        result = func(*given, **named)
        _wait(result)
    for leaf in leaves:
        if id(leaf) in copies:
            leaf.copy_(copies[id(leaf)])
    back = {id(shown[id(leaf)]): leaf for leaf in leaves}
    return tree_map_only(torch.Tensor, lambda one: back.get(id(one), one), result)


def _wait(result: Any) -> None:
    works: list[Any] = [one for one in tree_leaves(result) if isinstance(one, torch.ScriptObject)]
    for work in works:
        work.wait()


@implements("is_pinned")
def is_pinned(*_: Any) -> bool:
    """Return False: offloaded bytes have no lasting memory."""
    return False


@implements("is_set_to")
def is_set_to(_: Any, args: Any, __: Any) -> bool:
    """Return whether both tensors see the same elements in the same order."""
    if not all(isinstance(tensor, OffloadedTensor) for tensor in args):
        return False
    one, other = args
    places = [(each.shape, each.stride(), each.storage_offset()) for each in args]
    return one.block_storage is other.block_storage and places[0] == places[1]


REFUSED = {
    "set_": "give it another storage",
    "resize_": "change its size in place",
    "resize_as_": "change its size in place",
    "as_strided_": "change its shape in place",
}
"""In-place changes of size or storage for which a tensor's bytes may not be enough."""


_COMPUTED_WHOLE = ("gru",)
"""Composite operations that PyTorch carries out with other last bits for tensors of a subclass.

In inference mode they get all their weights at once, if these fit the pool together.
"""

_VIEWS = torch._C.DispatchKey.ADInplaceOrView


@implements()
def by_schema(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry out an operator by the rule that its schema selects."""
    return _schema_rule(func)(func, args, kwargs)


@cache
def _schema_rule(func: Any) -> Rule:
    if is_on_lists(func.overloadpacket.__name__):
        return foreach
    if is_composite(func):
        return _decompose
    schema = schema_of(func)
    if schema.writes_given:
        return compute_out
    return view if schema.is_view else compute


def _decompose(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry out the parts of ``func``: composite ones get here in inference mode only.

    Views made on the way are to know that their base requires a gradient, as for ordinary tensors: products
    choose their form by that.
    """
    if func.overloadpacket.__name__ in _COMPUTED_WHOLE:
        with suppress(BudgetExceededError):
            return compute(func, args, kwargs)
    if func.has_kernel_for_dispatch_key(_VIEWS):
        return func.decompose(*args, **kwargs)
    with torch._C._SetExcludeDispatchKeyGuard(_VIEWS, False):
        return func.decompose(*args, **kwargs)


@implements(*REFUSED)
def refuse(func: Any, args: Any, _: Any) -> Any:
    """Raise DeviceError: PyTorch cannot do this to a tensor without a storage."""
    name = func.overloadpacket.__name__
    raise DeviceError(
        f"[{name}] {args[0]} is offloaded: PyTorch cannot {REFUSED[name]}; use the form without the "
        "underscore, or offloaded(model).restore() first"
    )
