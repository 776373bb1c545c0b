"""Products and reductions of stores, computed by the default engine within its budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from accelera._lazily import LazyModule
from accelera.errors import DTypeError, UnsupportedError

_ENGINE = LazyModule("accelera.engine")
_ENGINES = LazyModule("accelera.engine._internal")


@final
class RefusedByNumPy:
    """``__array_ufunc__`` of a class whose objects NumPy would load whole.

    NumPy looks it up on the class. Libraries that ask the object, such as dask, find that it has none: they
    take the parts that they read as sources of arrays, and not as arrays of another library.
    """

    def __get__(self, store: Any, owner: type) -> Callable[..., Any]:
        if store is not None:
            raise AttributeError("__array_ufunc__")
        return _of_numpy


def _of_numpy(store: Any, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """Return the array of a product, which the engine computes; refuse the other functions."""
    if function is np.matmul and method == "__call__" and not options:
        return np.asarray(_ENGINES.default_engine().matmul(*inputs))
    raise DTypeError(
        f"[{function.__name__}] {store.name} is a store, which NumPy would load whole: write the expression "
        "with accelera.lazy(store), or load it with np.asarray(store)"
    )


class StoreOperations:
    """Operators and methods of arrays that read a store part by part.

    Results are a ``Matrix``, or a Python number for a reduction over all axes. ``accelera.MatrixEngine`` has
    more operations, and takes a budget for each.
    """

    def __matmul__(self, other: Any) -> Any:
        return _ENGINES.default_engine().matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _ENGINES.default_engine().matmul(other, self)

    def sum(self, axis: Any = None, dtype: Any = None, out: None = None, *, keepdims: bool = False) -> Any:
        """Return the sum along ``axis``, an int or a tuple; over all axes by default."""
        return _reduced(_converted(self, dtype), "sum", axis, keepdims, out)

    def mean(self, axis: Any = None, dtype: Any = None, out: None = None, *, keepdims: bool = False) -> Any:
        """Return the mean along ``axis``."""
        return _reduced(_converted(self, dtype), "mean", axis, keepdims, out)

    def var(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        ddof: float = 0,
        *,
        keepdims: bool = False,
    ) -> Any:
        """Return the variance along ``axis``, divided by the count less ``ddof``."""
        return _reduced(_converted(self, dtype), "var", axis, keepdims, out, ddof=ddof)

    def std(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        ddof: float = 0,
        *,
        keepdims: bool = False,
    ) -> Any:
        """Return the standard deviation along ``axis``, the square root of ``var``."""
        return _reduced(_converted(self, dtype), "std", axis, keepdims, out, ddof=ddof)

    def min(self, axis: Any = None, out: None = None, *, keepdims: bool = False) -> Any:
        """Return the minimum along ``axis``, NaN if there is one."""
        return _reduced(_ENGINE.lazy(self), "min", axis, keepdims, out)

    def max(self, axis: Any = None, out: None = None, *, keepdims: bool = False) -> Any:
        """Return the maximum along ``axis``, NaN if there is one."""
        return _reduced(_ENGINE.lazy(self), "max", axis, keepdims, out)

    def prod(self, axis: Any = None, dtype: Any = None, out: None = None, *, keepdims: bool = False) -> Any:
        """Return the product along ``axis``."""
        return _reduced(_converted(self, dtype), "prod", axis, keepdims, out)

    def any(self, axis: Any = None, out: None = None, *, keepdims: bool = False) -> Any:
        """Return whether an element along ``axis`` is not zero."""
        return _reduced(_ENGINE.lazy(self), "any", axis, keepdims, out)

    def all(self, axis: Any = None, out: None = None, *, keepdims: bool = False) -> Any:
        """Return whether no element along ``axis`` is zero."""
        return _reduced(_ENGINE.lazy(self), "all", axis, keepdims, out)


def _converted(store: Any, dtype: Any) -> Any:
    """Return the expression of ``store``, converted to ``dtype`` unless that is None."""
    operand = _ENGINE.lazy(store)
    return operand if dtype is None else operand.astype(dtype)


def _reduced(operand: Any, name: str, axis: Any, keepdims: bool, out: None, **options: Any) -> Any:
    # NumPy's functions pass out=None: np.sum(store) calls this method.
    if out is not None:
        raise UnsupportedError(
            f"[{name}] out={type(out).__name__}: a store is reduced into a new matrix, expected None."
            f" Use MatrixEngine().{name}(store, out=path) for a result in a file."
        )
    return _ENGINES.default_engine().evaluate(getattr(operand, name)(axis, keepdims=keepdims, **options))
