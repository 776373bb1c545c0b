"""Backend over torch's C functions: for any torch that has them, for the operators they reach."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from accelera.devices._internal import compiled_folder
from accelera.interceptor.hooks import python
from accelera.interceptor.hooks.dispatch import backend_keys, overload
from accelera.interceptor.hooks.shim import CompiledBackend, load, operators_in

NAMESPACE = "accelera_stable"


def fault() -> str | None:
    """Return why this backend cannot be used here; None when it can."""
    path = stable_path()
    if not path.exists():
        return "the kernels over torch's C functions were not built"
    try:
        unbound = load(path).accelera_bind(str(_torch_library()).encode())
    except (OSError, AttributeError) as error:
        return f"the kernels over torch's C functions cannot be loaded: {error}"
    if unbound is not None:
        return f"the kernels over torch's C functions cannot be used: {unbound.decode()}"
    return python.fault()


def operators() -> frozenset[str]:
    """Return the operators whose small calls are answered in C++; kernels in Python answer the others."""
    return operators_in(stable_path())


def stable_path() -> Path:
    """Return where the library must lie: beside the other compiled code."""
    return compiled_folder() / "_stable.so"


class StableBackend(CompiledBackend):
    """Kernels in C++ on the CPU where torch's C functions reach an operator, in Python for the others."""

    name = "stable"

    def __init__(self) -> None:
        super().__init__(stable_path())
        self._operators = operators()
        self._python = python.PythonBackend()
        self._routes: list[Any] = []
        self._answers: dict[str, Callable[..., Any]] = {}
        self._have_torch_warn_once()

    def register(self, names: Sequence[str]) -> None:
        """Put our kernels before torch's; raises DeviceError when torch refuses."""
        ours = [name for name in names if name in self._operators]
        self._python.register([name for name in names if name not in self._operators])
        self._python.register_at(ours, backend_keys()[1:])
        self._open_routes(ours)
        self._register(ours)

    def unregister(self) -> None:
        """Put torch's kernels back."""
        super().unregister()
        self._python.unregister()

    def _open_routes(self, names: Sequence[str]) -> None:
        """Define ``accelera_stable::<name>``, which answers as the kernel in Python does; it stays."""
        make: Any = torch.library.Library
        self._routes[:] = self._routes or [make(NAMESPACE, "FRAGMENT")]
        for name in names:
            if name not in self._answers:
                self._routes[0].define(str(overload(name)._schema).removeprefix("aten::"))
                self._routes[0].impl(
                    name, refusing(self._route(name), self._library), "CompositeExplicitAutograd"
                )
            self._answers[name] = self._python.kernel(name, "CPU")

    def _route(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._answers[name](*args, **kwargs)

    def _have_torch_warn_once(self) -> None:
        """Trigger torch's one warning about a replaced kernel now, suppressed: C++ could not suppress it."""
        self._python.register(["dot"])
        self._python.unregister()


def _torch_library() -> Path:
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{suffix}"


_MOST_PENDING_ERRORS = 64

_pending_errors: dict[type[BaseException], None] = {}


def refusing(answer: Callable[..., Any], library: ctypes.CDLL) -> Callable[..., Any]:
    """Return ``answer`` wrapped: an exception is handed to ``library``, and a dummy tensor is returned.

    The compiled kernel then lets torch raise a class from ``_error_factory``; instantiating that class gives
    the original exception.
    """

    def answered(*args: Any, **kwargs: Any) -> Any:
        try:
            return answer(*args, **kwargs)
        except BaseException as error:
            library.accelera_refuse(ctypes.py_object(_error_factory(error)))
            return kwargs.get("out", torch.empty(0))

    return answered


def _error_factory(error: BaseException) -> type[BaseException]:
    """Return a class whose call returns ``error``; of classes not called yet only the latest are kept."""

    def give(cls: type[BaseException], *_: object) -> BaseException:
        _pending_errors.pop(cls, None)
        return error

    kind = type(error)
    stand_in = type(kind.__name__, (kind,), {"__new__": give})
    _pending_errors[stand_in] = None
    for oldest in list(_pending_errors)[:-_MOST_PENDING_ERRORS]:
        _pending_errors.pop(oldest, None)
    return stand_in
