"""Libraries of kernels in C++, found in the package and loaded when they fit the torch that is there."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from accelera.errors import DeviceError
from accelera.interceptor.mechanism.keys import backend_keys
from accelera.interceptor.mechanism.passing import follow
from accelera.interceptor.mechanism.routes import open_routes


class CompiledTier:
    """Kernels of a library with the C interface of ``csrc/torch/shim.cpp``."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._library = load(path)
        self.operators = operators_in(path)
        follow(self._library.accelera_set_level)

    def set_thresholds(self, least_bytes: int, least_size: int) -> None:
        """Hand over calls from so many bytes and so long a dimension on."""
        self._library.accelera_set_thresholds(least_bytes, least_size)

    def register(self, names: Sequence[str]) -> None:
        """Put our kernels before torch's; raises DeviceError with torch's words when it refuses."""
        open_routes(names)
        encoded = (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
        accelerator = backend_keys()[1:] or ("",)
        fault = self._library.accelera_register(encoded, len(names), accelerator[0].encode())
        if fault is not None:
            raise DeviceError(f"[interception] torch takes no kernel before its own: {fault.decode()}")

    def unregister(self) -> None:
        """Put torch's kernels back."""
        self._library.accelera_unregister()


def operators_in(path: Path) -> frozenset[str]:
    """Return the operators that a library has kernels for."""
    return frozenset(load(path).accelera_operators().decode().split())


@cache
def load(path: Path) -> ctypes.CDLL:
    """Load a library once; raises OSError when a symbol that it needs is not there."""
    library = ctypes.CDLL(str(path))
    library.accelera_operators.restype = ctypes.c_char_p
    library.accelera_set_thresholds.argtypes = [ctypes.c_int64, ctypes.c_int64]
    # Too short to let other Python threads run meanwhile.
    quick = ctypes.PyDLL(str(path), handle=library._handle).accelera_set_level
    vars(library)["accelera_set_level"] = quick
    library.accelera_set_level.argtypes = [ctypes.c_int]
    library.accelera_set_level.restype = None
    library.accelera_register.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_char_p]
    library.accelera_register.restype = ctypes.c_char_p
    if hasattr(library, "accelera_bind"):
        library.accelera_bind.restype = ctypes.c_char_p
        library.accelera_refuse.argtypes = [ctypes.py_object]
        library.accelera_refuse.restype = None
    return library
