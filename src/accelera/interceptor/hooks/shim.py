"""Backend of kernels compiled for one version of torch: a small call costs nanoseconds more."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from accelera.devices._internal import SHIM_PREFIX, built_folder, compiled_folder, shim_for, shim_sources
from accelera.errors import BackendMissingError, DeviceError
from accelera.interceptor.hooks.dispatch import backend_keys, follow, handle, overload
from accelera.interceptor.hooks.operators import is_above_autograd
from accelera.interceptor.hooks.shim_build import compile_shim

REMEDY = "`accelera build-shim` builds it"
_COMPILERS = ("c++", "g++", "clang++")


def fault() -> str | None:
    """Return why no shim can be used here, None when one can."""
    path = shim_path()
    if path.exists():
        return _loading_fault(path)
    files = [
        file for folder in {path.parent, compiled_folder()} for file in folder.glob(f"{SHIM_PREFIX}*.so")
    ]
    found = {file.stem.removeprefix(SHIM_PREFIX) for file in files} - {torch.__version__}
    if not found:
        return f"no shim was built for torch {torch.__version__}; {REMEDY}"
    others = " and ".join(sorted(found))
    return f"the shim was built for torch {others}, this is torch {torch.__version__}; {REMEDY}"


def make() -> ShimBackend:
    """Load the shim of this torch."""
    return ShimBackend("shim", shim_path())


def shim_path() -> Path:
    """Return where the shim for the torch that is loaded lies, or would be built."""
    return shim_for(torch.__version__)


def build(compiler: str | None = None) -> Path:
    """Compile the shim for the torch that is loaded, into the cache folder; return the library.

    Takes some 20 seconds. ``compiler``: a name or path, by default what there is of GCC and Clang. Raises
    BackendMissingError when there is none, or the shim does not compile against this torch.
    """
    compiler = compiler or next(filter(shutil.which, _COMPILERS), None)
    if compiler is None or shutil.which(compiler) is None:
        raise BackendMissingError(
            f"[build-shim] there is no C++ compiler {compiler or ' or '.join(_COMPILERS)}; install g++, or"
            " name one with --compiler"
        )
    target = built_folder() / shim_path().name
    target.parent.mkdir(parents=True, exist_ok=True)
    folder, abi = Path(torch.__file__).parent, torch.compiled_with_cxx11_abi()
    compiler_output = compile_shim(compiler, folder, shim_sources(), target, abi)
    if compiler_output is not None:
        raise BackendMissingError(
            f"[build-shim] {compiler} does not compile the shim against torch {torch.__version__}; calls are"
            f" caught another way. It says: {compiler_output.strip()[-2000:]}"
        )
    return target


def _loading_fault(path: Path) -> str | None:
    try:
        load(path)
    except OSError as error:
        return f"the shim cannot be loaded: {error}"
    return None


class CompiledBackend:
    """Kernels of a library with the C interface of ``csrc/torch/shim.cpp``, put before torch's own."""

    def __init__(self, path: Path) -> None:
        self._library = load(path)
        follow(self._library.accelera_set_level)

    def set_thresholds(self, least_bytes: int, least_size: int) -> None:
        """Hand over calls of at least ``least_bytes`` bytes with a dimension of at least ``least_size``."""
        self._library.accelera_set_thresholds(least_bytes, least_size)

    def unregister(self) -> None:
        """Put torch's kernels back."""
        self._library.accelera_unregister()

    def _register(self, names: Sequence[str], accelerator: str = "") -> None:
        """Register the kernels of the CPU, and of ``accelerator`` if one is named; raises DeviceError."""
        encoded = (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
        fault = self._library.accelera_register(encoded, len(names), accelerator.encode())
        if fault is not None:
            raise DeviceError(f"[interception] torch takes no kernel before its own: {fault.decode()}")


class ShimBackend(CompiledBackend):
    """Kernels in C++ for all operators, compiled for the torch that is loaded."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(path)
        self.name = name
        self.operators = operators_in(path)

    def register(self, names: Sequence[str]) -> None:
        """Put our kernels before torch's; raises DeviceError with torch's words when it refuses."""
        open_routes(names)
        self._register(names, next(iter(backend_keys()[1:]), ""))


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


NAMESPACE = "accelera_route"

_library: list[Any] = []
_open: set[str] = set()


def open_routes(names: Iterable[str]) -> None:
    """Define ``accelera_route::<name>`` with the schema of ``aten::<name>``; once opened they stay."""
    if not _library:
        _library.append(torch.library.Library(NAMESPACE, "DEF"))  # type: ignore[no-untyped-call]
    for name in names:
        if name not in _open:
            _open.add(name)
            _library[0].define(str(overload(name)._schema).removeprefix("aten::"))
            _library[0].impl(name, _route(name), _key(name))


def _route(name: str) -> Callable[..., Any]:
    def routed(*args: Any, **kwargs: Any) -> Any:
        return handle(name, args, kwargs)

    return routed


def _key(name: str) -> str:
    return "CompositeImplicitAutograd" if is_above_autograd(name) else "CompositeExplicitAutograd"
