"""Front doors that load a file when a name of it is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from accelera._extras import stand_in
from accelera.errors import BackendMissingError

if TYPE_CHECKING:
    from inspect import Signature


class LazyModule:
    """A module that is imported when an attribute of it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


def opened(package: str, file_of: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose public names lie in files of its own.

    ``file_of`` says which name is in which file, relative to ``package``. A name whose file needs a package
    that is not installed is a stand-in, which says so when it is used, and is looked for again each time.
    """

    def load(name: str) -> Any:
        if name not in file_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(importlib.import_module(f"{package}.{file_of[name]}"), name)
        except ModuleNotFoundError as error:
            return stand_in(name, error)
        except BackendMissingError as error:  # of a file that says it itself when it is imported alone
            if not isinstance(error.__cause__, ModuleNotFoundError):
                raise
            return stand_in(name, error.__cause__)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(sys.modules[package].__all__)


def make_callable(package: str, function: str) -> None:
    """Let a package that shares its name with its main ``function`` be called as that function is."""

    class CallablePackage(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(self, function)(*args, **kwargs)

        @property
        def __signature__(self) -> Signature:
            """Signature of the function, which help() and editors show."""
            import inspect

            return inspect.signature(getattr(self, function))

        def __reduce__(self) -> tuple[Any, ...]:
            """Travel by name, as other modules do, with functions that call it."""
            return importlib.import_module, (self.__name__,)

    sys.modules[package].__class__ = CallablePackage
