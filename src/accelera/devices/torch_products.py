"""Products of tensors in bounded memory.

Operands whose strides torch's libraries can read are multiplied whole; others are packed block by block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from accelera import _native
from accelera.devices.out_of_memory import is_out_of_memory
from accelera.devices.torch_types import signed

PACKING_BYTES = 64 << 20
"""The most that one product takes for blocks of operands that must be packed."""

_BLOCKS_AT_ONCE = 6
"""Packed blocks that may be alive together: left, right and result, and the next ones."""
_STRIPS = 16
_LEAST_STRIP = 128
_MIRROR_EDGE = 512


def library_bytes(device: torch.device) -> int:
    """Return the bytes that the product libraries keep for one stream of ``device``.

    torch gives cuBLAS and cuBLASLt a workspace each: 32 MiB from compute capability 9.0 on, 8.1 MiB before.
    """
    if device.type != "cuda":
        return 64 << 20
    major, _ = torch.cuda.get_device_capability(device)
    return 2 * ((32 << 20) if major >= 9 else (8 << 20) + (128 << 10))


def sums_halves(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether torch multiplies matrices of a half type there and sums in float32, found by trying.

    The sum that is tried is 2049, which neither half type can represent.
    """
    if device.type == "cpu" or not hasattr(torch.ops.aten.addmm, "dtype_out"):
        return False
    try:
        ones = torch.ones(16, 2048, dtype=dtype, device=device)
        total = torch.ones(16, 16, device=device)
        _add_product(total, ones, ones.mT, accumulate=True)
        return bool((total == 2049).all())
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return False


def is_takeable(x: torch.Tensor) -> bool:
    """Return whether one of the last two axes is dense and the other at least that far apart."""
    rows, columns = x.shape[-2:]
    down, across = x.stride()[-2:]
    return _is_dense(across, columns, down, rows) or _is_dense(down, rows, across, columns)


def gemm(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *, accumulate: bool, conjugate_a: bool) -> None:
    """Compute ``c (+)= a @ b`` for checked operands."""
    a, b, c = signed(a), signed(b), signed(c)
    if c.numel() == 0:
        return
    if a.shape[-1] == 0:
        if not accumulate:
            c.zero_()
        return
    batch = c.shape[:-2]
    _batched_product(
        a.expand(*batch, *a.shape[-2:]),
        b.expand(*batch, *b.shape[-2:]),
        c,
        accumulate,
        conjugate_a and c.is_complex(),
    )


def gram(a: torch.Tensor, c: torch.Tensor, *, accumulate: bool) -> None:
    """Compute the upper triangle of ``c (+)= aᴴ @ a`` strip by strip."""
    size = a.shape[-1]
    for rows in _spans(size, max(_LEAST_STRIP, math.ceil(size / _STRIPS))):
        rest = slice(rows.start, size)
        left = a[..., :, rows].mT
        gemm(left, a[..., :, rest], c[..., rows, rest], accumulate=accumulate, conjugate_a=True)


def symmetrize(c: torch.Tensor) -> None:
    """Write the conjugate of the upper triangle into the lower, one band of columns at a time."""
    c = signed(c)
    for index in np.ndindex(c.shape[:-2]):
        square = c[index]
        for rows in _spans(square.shape[0], _MIRROR_EDGE):
            corner = square[rows, rows]
            kept = torch.ones(corner.shape, dtype=torch.bool, device=c.device).triu()
            corner.copy_(torch.where(kept, corner, corner.mH))
            below = slice(rows.stop, square.shape[0])
            square[below, rows].copy_(square[rows, below].mH)


def _is_dense(fast: int, length: int, slow: int, others: int) -> bool:
    return (fast == 1 or length == 1) and (slow >= max(1, length) or others == 1)


def _batched_product(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, accumulate: bool, conjugate: bool
) -> None:
    alike = a.dtype == c.dtype and not _is_integer_on_cuda(c)
    if alike and not conjugate and c.ndim == 3 and _all_takeable(a, b, c):
        c.baddbmm_(a, b, beta=int(accumulate))
        return
    for index in np.ndindex(c.shape[:-2]):
        _matrix_product(a[index], b[index], c[index], accumulate, conjugate)


def _matrix_product(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, accumulate: bool, conjugate: bool
) -> None:
    if _is_integer_on_cuda(c):
        _integer_product(a, b, c, accumulate)
    elif not conjugate and _all_takeable(a, b, c):
        _add_product(c, a, b, accumulate)
    else:
        _blocked_product(a, b, c, accumulate, conjugate)


def _add_product(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, accumulate: bool) -> None:
    """``c (+)= a @ b`` of matrices as they lie; half types on tensor cores, summed in c's float32."""
    if a.dtype == c.dtype:
        c.addmm_(a, b, beta=int(accumulate))
    else:
        torch.ops.aten.addmm.dtype_out(c, a, b, c.dtype, beta=int(accumulate), out=c)


def _all_takeable(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> bool:
    return is_takeable(a) and is_takeable(b) and is_takeable(c)


def _is_integer_on_cuda(c: torch.Tensor) -> bool:
    return c.is_cuda and not c.is_floating_point() and not c.is_complex()


def _integer_product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, accumulate: bool) -> None:
    """Compute with our own kernel, which takes any strides, on the current stream."""
    (m, n), k = c.shape, a.shape[1]
    left, right, target = ((each.stride(0), each.stride(1)) for each in (a, b, c))
    stream = torch.cuda.current_stream(c.device).cuda_stream
    with torch.cuda.device(c.device):
        _native.igemm_cuda(
            a.data_ptr(),
            b.data_ptr(),
            c.data_ptr(),
            m,
            n,
            k,
            left,
            right,
            target,
            c.element_size(),
            accumulate,
            stream,
        )


def _blocked_product(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, accumulate: bool, conjugate: bool
) -> None:
    edge = math.isqrt(PACKING_BYTES // _BLOCKS_AT_ONCE // c.element_size())
    for rows in _spans(c.shape[0], edge):
        for columns in _spans(c.shape[1], edge):
            target = c[rows, columns]
            total = target.clone(memory_format=torch.contiguous_format)
            for depth in _spans(a.shape[1], edge):
                left = a[rows, depth]
                left = left.conj().resolve_conj() if conjugate else left
                right = b[depth, columns].contiguous()
                _add_product(total, left.contiguous(), right, accumulate or depth.start > 0)
            target.copy_(total)


def _spans(length: int, step: int) -> Iterator[slice]:
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))
