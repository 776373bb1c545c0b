"""The compiled kernels, one section per file of csrc/bindings."""

from typing import Any

import numpy as np

_Array = np.ndarray[Any, np.dtype[Any]]

# igemm
def igemm(a: _Array, b: _Array, c: _Array, accumulate: bool = False, threads: int = 0) -> None: ...
def igemm_workspace_bytes(itemsize: int, threads: int = 0) -> int: ...
def igemm_cuda(
    a: int,
    b: int,
    c: int,
    m: int,
    n: int,
    k: int,
    a_strides: tuple[int, int],
    b_strides: tuple[int, int],
    c_strides: tuple[int, int],
    itemsize: int,
    accumulate: bool = False,
    stream: int = 0,
) -> None: ...
def cuda_compiled() -> bool: ...

# tile_io
STAGING_BYTES_PER_THREAD: int

def read_region(
    file: int,
    offset: int,
    strides: list[int],
    out: _Array,
    direct_file: int = -1,
    prefer_cached: bool = False,
) -> tuple[int, int, int, int] | None: ...
def write_region(
    file: int,
    offset: int,
    strides: list[int],
    data: _Array,
    direct_file: int = -1,
    prefer_cached: bool = False,
) -> tuple[int, int, int, int] | None: ...
