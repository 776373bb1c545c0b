"""Backend over torch's C functions: for any torch that has them, for the operators they reach."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from accelera.devices.torch_shim import compiled_folder
from accelera.interceptor.hooks import python
from accelera.interceptor.hooks.dispatch import backend_keys, overload
from accelera.interceptor.hooks.shim import CompiledBackend, load, operators_in

NAMESPACE = "accelera_stable"


def fault() -> str | None:
    """Return why this way is not open, None when it is."""
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
        """Let torch warn of a replaced kernel now, silently: it does so once, and C++ cannot silence it."""
        self._python.register(["dot"])
        self._python.unregister()


def _torch_library() -> Path:
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{suffix}"


_MOST_ON_THEIR_WAY = 64

_on_their_way: dict[type[BaseException], None] = {}


def refusing(answer: Callable[..., Any], library: ctypes.CDLL) -> Callable[..., Any]:
    """Return ``answer`` made to note what it raises in ``library`` and to return a tensor in its place.

    The compiled kernel then has torch raise a class of which one tries to make an instance and gets the very
    exception that was meant.
    """

    def answered(*args: Any, **kwargs: Any) -> Any:
        try:
            return answer(*args, **kwargs)
        except BaseException as error:
            library.accelera_refuse(ctypes.py_object(_stand_in(error)))
            return kwargs.get("out", torch.empty(0))

    return answered


def _stand_in(error: BaseException) -> type[BaseException]:
    """Return a class that gives ``error`` when called; it is kept until then, unless many others follow."""

    def give(cls: type[BaseException], *_: object) -> BaseException:
        _on_their_way.pop(cls, None)
        return error

    kind = type(error)
    stand_in = type(kind.__name__, (kind,), {"__new__": give})
    _on_their_way[stand_in] = None
    for oldest in list(_on_their_way)[:-_MOST_ON_THEIR_WAY]:
        _on_their_way.pop(oldest, None)
    return stand_in
