"""New tensors: from numbers and foreign arrays, filled with one value, ranges, parts of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import dtypes
from accelera.tensora.core import DType, Tensor, native
from accelera.tensora.inspection import check_device, placed
from accelera.tensora.typing import Device, DTypeLike, Scalar, SupportsDLPack, TensorLike

Shape = int | Sequence[int]


def _shape(shape: Any) -> tuple[int, ...]:
    if isinstance(shape, tuple):
        return shape
    return (int(shape),) if hasattr(shape, "__index__") else tuple(shape)


def _device(device: Device | None) -> str:
    return "cpu" if device is None else str(device)


def _float(dtype: DTypeLike | None) -> DType:
    return dtypes.default_dtype() if dtype is None else dtypes.as_dtype(dtype)


# --- from data --------------------------------------------------------------------------------------------


def _from_foreign_array(obj: Any) -> Tensor | None:
    """Return a tensor over the memory of another library's array; None if `obj` is no array."""
    if type(obj) in (bool, int, float, complex, list, tuple):
        return None
    if isinstance(obj, (list, tuple)):
        return None
    if hasattr(obj, "__dlpack__") and not hasattr(obj, "__array_interface__"):
        return native.from_dlpack(obj)
    try:
        return native.from_buffer(obj)
    except (TypeError, BufferError):
        if not hasattr(obj, "__array__"):
            return None
    return native.from_buffer(obj.__array__())


def asarray(
    obj: TensorLike,
    /,
    *,
    dtype: DTypeLike | None = None,
    device: Device | None = None,
    copy: bool | None = None,
) -> Tensor:
    """Tensor from numbers, nested lists of them, or an array.

    Parameters
    ----------
    obj
        Number, nested sequence, tensor, or object with DLPack, the buffer protocol or ``__array__``.
    dtype
        Element type. By default that of `obj`; Python integers become int64, floats and complex numbers the
        default floating-point type and its complex one.
    device
        "cpu", or "cuda" or "cuda:1" where there is one; by default the one of `obj`, or the CPU.
    copy
        True: always copy. False: never. None: share memory where that is possible.

    Raises
    ------
    ValueError
        If ``copy=False`` and only a copy would do, nested lists have unequal lengths, or an integer does not
        fit the type.
    TypeError
        If no tensor is made of `obj`.

    """
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    found = obj if isinstance(obj, Tensor) else _from_foreign_array(obj)
    if found is None:
        if copy is False:
            raise ArgumentError(
                f"[asarray] a {type(obj).__name__} shares no memory with a tensor; leave copy=False out"
            )
        items = list(obj) if isinstance(obj, Sequence) and not isinstance(obj, (str, list, tuple)) else obj
        return placed(native.asarray(items, wanted), device)
    moved = placed(found, device)
    made = moved if wanted is None else native.cast(moved, wanted)
    if made is not found and copy is False:
        raise ArgumentError(
            f"[asarray] {found.dtype} on {found.device} becomes {made.dtype} on {made.device} only in a "
            "copy; leave copy=False out"
        )
    return native.copy(found) if copy and made is found else made


def tensor(
    data: TensorLike,
    *,
    dtype: DTypeLike | None = None,
    device: Device | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Tensor with a copy of `data`, a leaf of any graph; see `asarray` for what `data` may be."""
    copy = True if _is_array_like(data) else None
    made = asarray(data, dtype=dtype, device=device, copy=copy)
    made = made.detach()
    if requires_grad:
        made.requires_grad = True
    return made


def _is_array_like(data: Any) -> bool:
    return not isinstance(data, (int, float, complex, list, tuple))


def from_dlpack(x: SupportsDLPack, /, *, device: Device | None = None, copy: bool | None = None) -> Tensor:
    """Tensor over the memory of an object with ``__dlpack__``; a copy if ``copy=True``.

    Raises
    ------
    TypeError
        If the object has no DLPack, or elements of a type that is not known here.
    ValueError
        If its memory is neither the CPU's nor a CUDA device's, or ``copy=False`` and only a copy would do.

    """
    check_device(device)
    made = native.from_dlpack(x, copy)
    if copy is False and placed(made, device) is not made:
        raise ArgumentError(f"[from_dlpack] memory on {made.device} comes to {device} only in a copy")
    return placed(made, device)


# --- filled -----------------------------------------------------------------------------------------------


def empty(shape: Shape, *, dtype: DTypeLike | None = None, device: Device | None = None) -> Tensor:
    """Tensor whose elements are anything."""
    return native.empty(_shape(shape), _float(dtype), _device(device))


def full(
    shape: Shape, fill_value: Tensor | Scalar, *, dtype: DTypeLike | None = None, device: Device | None = None
) -> Tensor:
    """Tensor filled with one number (or 0-d tensor), of whose type it is by default."""
    value = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
    if dtype is None:
        dtype = fill_value.dtype if isinstance(fill_value, Tensor) else dtypes.result_type(value)
    return native.full(_shape(shape), value, dtypes.as_dtype(dtype), _device(device))


def zeros(shape: Shape, *, dtype: DTypeLike | None = None, device: Device | None = None) -> Tensor:
    """Tensor of zeros."""
    return native.full(_shape(shape), 0, _float(dtype), _device(device))


def ones(shape: Shape, *, dtype: DTypeLike | None = None, device: Device | None = None) -> Tensor:
    """Tensor of ones."""
    return native.full(_shape(shape), 1, _float(dtype), _device(device))


def empty_like(x: Tensor, /, *, dtype: DTypeLike | None = None, device: Device | None = None) -> Tensor:
    """Tensor of the shape of `x` whose elements are anything."""
    return empty(x.shape, dtype=x.dtype if dtype is None else dtype, device=device or x.device)


def full_like(
    x: Tensor, /, fill_value: Tensor | Scalar, *, dtype: DTypeLike | None = None, device: Device | None = None
) -> Tensor:
    """Tensor of the shape of `x` filled with one number."""
    return full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=device or x.device)


def zeros_like(x: Tensor, /, *, dtype: DTypeLike | None = None, device: Device | None = None) -> Tensor:
    """Tensor of zeros of the shape of `x`."""
    return zeros(x.shape, dtype=x.dtype if dtype is None else dtype, device=device or x.device)


def ones_like(x: Tensor, /, *, dtype: DTypeLike | None = None, device: Device | None = None) -> Tensor:
    """Tensor of ones of the shape of `x`."""
    return ones(x.shape, dtype=x.dtype if dtype is None else dtype, device=device or x.device)


# --- ranges -----------------------------------------------------------------------------------------------


def _signed(value: int) -> int:
    """The int64 with the same bits as an integer of up to 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DTypeLike | None = None,
    device: Device | None = None,
) -> Tensor:
    """Vector of numbers from `start` (inclusive) to `stop` (exclusive), each `step` after the last.

    Raises
    ------
    ValueError
        If `step` is zero.

    """
    check_device(device)
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ArgumentError("[arange] a step of 0; give another")
    if dtype is None:
        dtype = dtypes.result_type(start, stop, step)
    wanted = dtypes.as_dtype(dtype)
    if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
        found = native.arange(len(range(start, stop, step)))
        if step != 1:
            found = found * _signed(step)
        return placed(native.cast(found + _signed(start) if start else found, wanted), device)
    n = max(math.ceil((stop - start) / step), 0)
    found = native.cast(native.arange(n), dtypes.float64) * float(step) + float(start)
    return placed(native.cast(found, wanted), device)


def linspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    *,
    dtype: DTypeLike | None = None,
    device: Device | None = None,
    endpoint: bool = True,
) -> Tensor:
    """Vector of `num` numbers at equal distances from `start` to `stop`, the latter included by default.

    Raises
    ------
    ValueError
        If `num` is negative.

    """
    check_device(device)
    if num < 0:
        raise ArgumentError(f"[linspace] num={num}; give 0 or more")
    parts = isinstance(start, complex) or isinstance(stop, complex)
    if dtype is None:
        dtype = dtypes.result_type(1j if parts else 1.0)
    wide = dtypes.complex128 if parts else dtypes.float64
    n_steps = num - 1 if endpoint else num
    at = native.cast(native.arange(num), wide)
    step = (stop - start) / n_steps if n_steps > 0 else 0.0
    found = at * step + start
    if endpoint and num > 1:
        found[-1] = stop
    return placed(native.cast(found, dtypes.as_dtype(dtype)), device)


# --- matrices ---------------------------------------------------------------------------------------------


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DTypeLike | None = None,
    device: Device | None = None,
) -> Tensor:
    """Matrix with ones on the `k`-th diagonal (above the main one if positive) and zeros elsewhere."""
    check_device(device)
    n_cols = n_rows if n_cols is None else n_cols
    difference = native.arange(n_cols) - native.reshape(native.arange(n_rows), (n_rows, 1))
    return placed(native.cast(difference == max(-n_rows, min(k, n_cols)), _float(dtype)), device)


def _column_minus_row(x: Tensor, name: str) -> Tensor:
    """Column minus row of each element of a stack of matrices."""
    if x.ndim < 2:
        raise ShapeError(f"[{name}] a tensor of shape {tuple(x.shape)}; give a matrix or a stack of them")
    rows, columns = x.shape[-2:]
    return placed(native.arange(columns) - native.reshape(native.arange(rows), (rows, 1)), x.device)


def _limited_diagonal(k: int) -> int:
    """Return the number of a diagonal, limited to int64; no matrix reaches further diagonals."""
    return max(-(2**63), min(k, 2**63 - 1))


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Lower triangle of each matrix, up to the `k`-th diagonal; zeros elsewhere."""
    return native.where(_column_minus_row(x, "tril") <= _limited_diagonal(k), x, native.full((), 0, x.dtype))


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Upper triangle of each matrix, from the `k`-th diagonal on; zeros elsewhere."""
    return native.where(_column_minus_row(x, "triu") >= _limited_diagonal(k), x, native.full((), 0, x.dtype))


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Any]:
    """Coordinates of a grid: one tensor of the grid's shape for each vector, a view of it.

    Parameters
    ----------
    *arrays
        Vectors, one for each axis of the grid.
    indexing
        "ij": axes in the order of the vectors; "xy": the first two exchanged.

    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"[meshgrid] indexing={indexing!r}; give 'xy' or 'ij'")
    n = len(arrays)
    order = [1, 0, *range(2, n)] if indexing == "xy" and n > 1 else list(range(n))
    grid = tuple(arrays[i].size for i in order)
    result = []
    for i, each in enumerate(arrays):
        shape = tuple(each.size if k == i else 1 for k in order)
        result.append(native.expand(native.reshape(each, shape), grid))
    return result


def logspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    base: float = 10.0,
    *,
    dtype: DTypeLike | None = None,
    device: Device | None = None,
) -> Tensor:
    """Vector of powers of `base`, whose `num` exponents have equal distances from `start` to `stop`."""
    wanted = _float(dtype)
    exponents = linspace(start, stop, num, dtype=dtypes.float64, device=device)
    return native.cast(native.pow(float(base), exponents), wanted)


def tril_indices(n_rows: int, n_cols: int, /, *, offset: int = 0) -> Tensor:
    """Rows and columns of a lower triangle, up to the diagonal `offset`: int64, of shape ``(2, n)``."""
    return _triangle_indices(n_rows, n_cols, lambda distance: distance <= offset)


def triu_indices(n_rows: int, n_cols: int, /, *, offset: int = 0) -> Tensor:
    """Rows and columns of an upper triangle, from the diagonal `offset` on: int64, of shape ``(2, n)``."""
    return _triangle_indices(n_rows, n_cols, lambda distance: distance >= offset)


def _triangle_indices(n_rows: int, n_cols: int, within: Any) -> Any:
    distance = native.arange(n_cols) - native.reshape(native.arange(n_rows), (n_rows, 1))
    found = native.nonzero(within(distance))
    return native.concat([native.reshape(each, (1, each.size)) for each in found], 0)


# --- diagonals --------------------------------------------------------------------------------------------


def diag_embed(x: Tensor, /, *, offset: int = 0, axis1: int = -2, axis2: int = -1) -> Tensor:
    """Matrices of zeros with the last axis of a tensor on a diagonal; they lie on two axes of the result."""
    n = x.shape[-1] + abs(offset)
    rows = native.arange(x.shape[-1]) + max(-offset, 0)
    places = rows * n + (native.arange(x.shape[-1]) + max(offset, 0))
    flat = native.take_add(x, places, (*x.shape[:-1], n * n), x.ndim - 1)
    found = native.reshape(flat, (*x.shape[:-1], n, n))
    first, second = axis1 % found.ndim, axis2 % found.ndim
    if first == second:
        raise ShapeError(f"[diag_embed] axes {axis1} and {axis2} are one")
    order = list(range(found.ndim - 2))
    for place, axis in sorted(((first, found.ndim - 2), (second, found.ndim - 1))):
        order.insert(place, axis)
    return native.permute(found, tuple(order))


def diagflat(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """Matrix of zeros with all elements of a tensor on a diagonal."""
    return diag_embed(native.reshape(x, (x.size,)), offset=offset)


def diag(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Matrix with a vector on its diagonal `k`, or the diagonal `k` of a matrix as a vector."""
    if x.ndim == 1:
        return diag_embed(x, offset=k)
    if x.ndim != 2:
        raise ShapeError(f"[diag] shape {tuple(x.shape)}; give a vector or a matrix")
    return diagonal(x, offset=k)


def diagonal(x: Tensor, /, *, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Elements of a diagonal of each matrix on two axes; they lie on a new last axis."""
    if x.ndim < 2 or axis1 % x.ndim == axis2 % x.ndim:
        raise ShapeError(
            f"[diagonal] axes {axis1} and {axis2} of shape {tuple(x.shape)}; give two of its axes"
        )
    places = _diagonal_places(x, offset, axis1 % x.ndim, axis2 % x.ndim)
    return native.reshape(native.take(native.reshape(x, (x.size,)), places, 0), tuple(places.shape))


def _diagonal_places(x: Tensor, offset: int, axis1: int, axis2: int) -> Any:
    """Indices of a diagonal's elements in the flattened tensor."""
    flat = native.reshape(native.arange(x.size), tuple(x.shape))
    order = (*(i for i in range(x.ndim) if i not in (axis1, axis2)), axis1, axis2)
    n_rows, n_cols = x.shape[axis1], x.shape[axis2]
    n = max(0, min(n_rows + min(offset, 0), n_cols - max(offset, 0)))
    rows, columns = (native.arange(n) + max(start, 0) for start in (-offset, offset))
    return native.permute(flat, order)[..., rows, columns]


# --- parts replaced ---------------------------------------------------------------------------------------


def diagonal_scatter(
    x: Tensor, values: Tensor, /, *, offset: int = 0, axis1: int = 0, axis2: int = 1
) -> Tensor:
    """Copy of a tensor with the elements that `diagonal` takes replaced."""
    places = _diagonal_places(x, offset, axis1 % x.ndim, axis2 % x.ndim)
    flat, given = native.reshape(x, (x.size,)), native.reshape(values, (values.size,))
    return native.reshape(native.put(flat, native.reshape(places, (places.size,)), given, 0), tuple(x.shape))


def select_scatter(x: Tensor, values: Tensor, /, *, axis: int, index: int) -> Tensor:
    """Copy of a tensor with the slice at one index of an axis replaced."""
    made = native.copy(x)
    made[(slice(None),) * (axis % x.ndim) + (index,)] = values
    return made


def slice_scatter(
    x: Tensor,
    values: Tensor,
    /,
    *,
    axis: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """Copy of a tensor with the elements ``start:end:step`` of an axis replaced."""
    made = native.copy(x)
    made[(slice(None),) * (axis % x.ndim) + (slice(start, end, step),)] = values
    return made
