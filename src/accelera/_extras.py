"""Optional dependencies: the extra that brings each, and the error that names it where one is absent."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

from accelera._distribution import install_command
from accelera.errors import BackendMissingError

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "torch": ("torch",),
    "trace": ("pandas", "pyarrow"),
    "zarr": ("zarr",),
    "hdf5": ("h5py",),
    "remote": ("fsspec", "aiohttp"),
    "ray": ("ray",),
    "jax": ("jax",),
    "onnx": ("onnx", "onnxruntime"),
    "learned": ("lightgbm",),
    "llm": ("transformers", "accelerate", "bitsandbytes"),
    "lightning": ("lightning",),
    "plot": ("matplotlib",),
    "metrics": ("opentelemetry", "prometheus_client", "pynvml"),
    "service": (
        "fastapi",
        "uvicorn",
        "orjson",
        "sqlalchemy",
        "alembic",
        "psycopg",
        "multipart",
        "limits",
        "sse_starlette",
    ),
    "ui": ("streamlit", "httpx"),
}
"""The modules that each extra of ``pyproject.toml`` brings, by the name they are imported by."""

_EXTRA_OF = {module: extra for extra, modules in EXTRAS.items() for module in modules}
_EXTRA_OF |= dict.fromkeys(("hypothesis", "pytest"), "dev")


@contextmanager
def needed_for(op: str, otherwise: str = "") -> Iterator[None]:
    """Context in which imports of optional packages may fail.

    Parameters
    ----------
    op
        The operation that needs them, for the message.
    otherwise
        What else to do than to install them, such as ``"or plot to a .html file"``.

    Raises
    ------
    BackendMissingError
        A package of an extra is absent: ``[op] needs torch; pip install
        'accelera-engine[torch]'``. Other import errors pass unchanged.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        found = backend_missing(op, error, otherwise)
        if found is None:
            raise
        raise found from error


def transformers_for(op: str, what: object) -> Any:
    """Return ``transformers``, with which ``op`` reads ``what``; raises BackendMissingError without it."""
    with needed_for(op, f"which reads {what}"):
        import transformers
    return transformers


def require(op: str, *modules: str, otherwise: str = "") -> None:
    """Raise BackendMissingError when one of ``modules`` is not installed; none of them is imported."""
    for module in modules:
        if not is_there(module):
            raise BackendMissingError(_remedy(op, module, otherwise))


def backend_missing(op: str, error: ModuleNotFoundError, otherwise: str = "") -> BackendMissingError | None:
    """Return the error that says what to install; None when the missing module is of no extra."""
    module = (error.name or "").partition(".")[0]
    return BackendMissingError(_remedy(op, module, otherwise)) if module in _EXTRA_OF else None


def is_installed(extra: str) -> bool:
    """Return whether every package of an extra is there; none of them is imported."""
    return all(map(is_there, EXTRAS[extra]))


def stand_in(name: str, error: ImportError) -> Any:
    """Return a placeholder for a public name whose package is not installed.

    It can be imported, listed and tested by ``isinstance``; calling it, or taking an attribute of it, raises
    BackendMissingError. Raises ``error`` itself when the missing module is of no extra.
    """
    missing = error if isinstance(error, BackendMissingError) else None
    if isinstance(error, ModuleNotFoundError):
        missing = backend_missing(name, error)
    if missing is None:
        raise error
    return _StandIn(name, (), {"__doc__": str(missing), "_message": str(missing)})


def is_stand_in(value: object) -> bool:
    """Return whether ``value`` is a placeholder of ``stand_in``."""
    return isinstance(value, _StandIn)


class _StandIn(type):
    """Class of the stand-ins, which are classes themselves: ``isinstance`` and annotations take them."""

    _message: str

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise BackendMissingError(cls._message)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise BackendMissingError(cls._message)

    def __repr__(cls) -> str:
        return f"<{cls._message}>"


def _remedy(op: str, module: str, otherwise: str) -> str:
    also = f", {otherwise}" if otherwise else ""
    return f"[{op}] needs {module}; {install_command(_EXTRA_OF[module])}{also}"


def is_loaded(module: str) -> bool:
    """Return whether a module has been imported by now."""
    return module in sys.modules


def loaded_module(name: str) -> Any:
    """Return a module that is imported; None without it and while a thread imports it.

    Functions of a module such as torch import its submodules. In another thread than the one that imports the
    module they would find it incomplete, and leave both imports failed.
    """
    module = sys.modules.get(name)
    is_importing = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_importing else module


def is_there(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
    except ValueError:  # a module without a spec, as tests put into sys.modules
        return True
