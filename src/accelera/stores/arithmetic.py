"""Products and reductions of stores, computed by the default engine within its budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from accelera._lazily import LazyModule
from accelera.errors import DTypeError

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

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Return the sum along ``axis``, an int or a tuple; over all axes by default."""
        return _reduced(self, "sum", axis, keepdims)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Return the mean along ``axis``."""
        return _reduced(self, "mean", axis, keepdims)

    def var(self, axis: Any = None, *, keepdims: bool = False, ddof: float = 0) -> Any:
        """Return the variance along ``axis``, divided by the count less ``ddof``."""
        return _reduced(self, "var", axis, keepdims, ddof=ddof)

    def std(self, axis: Any = None, *, keepdims: bool = False, ddof: float = 0) -> Any:
        """Return the standard deviation along ``axis``, the square root of ``var``."""
        return _reduced(self, "std", axis, keepdims, ddof=ddof)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Return the minimum along ``axis``, NaN if there is one."""
        return _reduced(self, "min", axis, keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Return the maximum along ``axis``, NaN if there is one."""
        return _reduced(self, "max", axis, keepdims)

    def prod(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Return the product along ``axis``."""
        return _reduced(self, "prod", axis, keepdims)

    def any(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Return whether an element along ``axis`` is not zero."""
        return _reduced(self, "any", axis, keepdims)

    def all(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Return whether no element along ``axis`` is zero."""
        return _reduced(self, "all", axis, keepdims)


def _reduced(store: Any, name: str, axis: Any, keepdims: bool, **options: Any) -> Any:
    expression = getattr(_ENGINE.lazy(store), name)(axis, keepdims=keepdims, **options)
    return _ENGINES.default_engine().evaluate(expression)
