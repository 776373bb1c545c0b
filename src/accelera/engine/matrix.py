"""The matrix a user holds: a torch tensor with a storage device and arithmetic.

Without torch it holds a NumPy array in RAM, by the same rules; only ``tensor`` and other devices need torch.

A Matrix wraps, it does not copy: arrays and tensors in RAM share their memory with it, and so do its
slices, its transpose, ``tensor()`` and ``numpy()``. Copies happen only where they must (another
dtype or device, a list, an array that torch cannot address) or are asked for (``clone``).

NumPy's functions take matrices: where an operator does the same they give what it gives, so that
``np.matmul(A, M)`` is ``A @ M``; others compute on the array that shares the memory, and an array that
comes back is a Matrix again. ``np.asarray`` and ``np.from_dlpack`` give arrays, ``torch.as_tensor`` a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np

from accelera._extras import require
from accelera._lazily import LazyModule
from accelera._result_html import result_html
from accelera.devices._internal import present_accelerator
from accelera.engine.operands import broadcast_shape
from accelera.engine.registry import default_product, register_wrapper
from accelera.errors import DeviceError, ShapeError
from accelera.units import format_bytes

if TYPE_CHECKING:
    from accelera.engine import tensors
    from accelera.engine.tensors import torch
else:
    # torch takes 190 MiB: an operation whose result is an array must not load it within its budget.
    tensors = LazyModule("accelera.engine.tensors")

Number = int | float | complex | bool


class _Float32:
    """``torch.float32`` as a default, which does not load torch."""

    def __eq__(self, other: object) -> bool:
        return other is self or other == tensors.torch.float32

    def __hash__(self) -> int:
        return hash(tensors.torch.float32)

    def __repr__(self) -> str:
        return "torch.float32"


FLOAT32 = _Float32()


@final
class Matrix:
    """An n-dimensional array for the engine.

    Parameters
    ----------
    data
        Tensor, NumPy array, (nested) list, another Matrix, or anything NumPy can turn into an array.
        Gradients are not followed: the data of a tensor that requires them is used.
    device
        Where it is stored, by torch's name; the CPU by default, whatever device ``data`` is on.
    dtype
        Element type, torch's or NumPy's; that of ``data`` by default (a list of floats is float32).
    """

    __slots__ = ("_array", "_storage_device", "_tensor")
    __hash__ = None  # type: ignore[assignment]

    _array: np.ndarray[Any, Any] | None
    """The elements of a result in RAM; torch is loaded when a tensor is first needed."""
    _tensor: torch.Tensor
    _storage_device: torch.device

    def __init__(self, data: Any, device: str | torch.device | None = None, dtype: Any = None) -> None:
        self._array = None
        self._storage_device = tensors.torch.device("cpu" if device is None else device)
        tensor = tensors.to_tensor(_raw(data), tensors.to_torch_dtype(dtype))
        self._tensor = _moved_to(tensor, self._storage_device)

    @classmethod
    def wrap(cls, tensor: torch.Tensor) -> Matrix:
        """Return a Matrix around ``tensor`` where it lies: its device is the storage device."""
        matrix = cls.__new__(cls)
        matrix._array = None
        matrix._tensor = tensor.detach() if tensor.requires_grad else tensor
        matrix._storage_device = tensor.device
        return matrix

    @classmethod
    def over(cls, array: np.ndarray[Any, Any]) -> Matrix:
        """Return a Matrix that shares an array's memory, without loading torch."""
        matrix = cls.__new__(cls)
        matrix._array = array
        return matrix

    def __getattr__(self, name: str) -> Any:
        # Reached for slots that have no value yet.
        if name == "_tensor":
            self._tensor = tensors.to_tensor(self._array)
            return self._tensor
        if name == "_storage_device":
            self._storage_device = tensors.torch.device("cpu")
            return self._storage_device
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @staticmethod
    def zeros(shape: Sequence[int], dtype: Any = FLOAT32, device: str = "cpu") -> Matrix:
        """Return a matrix of zeros, float32 by default."""
        return _create(tensors.torch.zeros, tuple(shape), dtype, device)

    @staticmethod
    def ones(shape: Sequence[int], dtype: Any = FLOAT32, device: str = "cpu") -> Matrix:
        """Return a matrix of ones, float32 by default."""
        return _create(tensors.torch.ones, tuple(shape), dtype, device)

    @staticmethod
    def eye(n: int, m: int | None = None, dtype: Any = FLOAT32, device: str = "cpu") -> Matrix:
        """Return ones on the diagonal of an ``n`` by ``m`` matrix (``m=n``, float32 by default)."""
        return _create(
            lambda shape, **options: tensors.torch.eye(*shape, **options),
            (n, n if m is None else m),
            dtype,
            device,
        )

    @staticmethod
    def random(shape: Sequence[int], dtype: Any = FLOAT32, device: str = "cpu") -> Matrix:
        """Return float32 numbers (or ``dtype``) spread evenly over [0, 1).

        ``torch.manual_seed`` repeats them, without torch ``numpy.random.seed``.
        """
        return _create(tensors.torch.rand, tuple(shape), dtype, device)

    @staticmethod
    def randn(shape: Sequence[int], dtype: Any = FLOAT32, device: str = "cpu") -> Matrix:
        """Return normally distributed numbers of mean 0 and deviation 1, float32 by default.

        ``torch.manual_seed`` repeats them, without torch ``numpy.random.seed``.
        """
        return _create(tensors.torch.randn, tuple(shape), dtype, device)

    @staticmethod
    def from_numpy(array: np.ndarray[Any, Any], device: str = "cpu") -> Matrix:
        """Return a Matrix that shares the array's memory when ``device`` is the CPU."""
        return Matrix(array, device)

    @staticmethod
    def from_tensor(tensor: torch.Tensor, device: str = "cpu") -> Matrix:
        """Return a Matrix that shares the tensor's memory when it is on ``device``."""
        return Matrix(tensor, device)

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis."""
        return tuple(self._tensor.shape if self._array is None else self._array.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._tensor.numel()

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self._tensor.dtype

    @property
    def device(self) -> torch.device:
        """Where it lies now."""
        return self._tensor.device

    @property
    def storage_device(self) -> torch.device:
        """Where it was put when it was made: the CPU unless another device was named."""
        return self._storage_device

    def memory_size(self) -> int:
        """Return the bytes of all elements."""
        return self._tensor.numel() * self._tensor.element_size()

    def to_gpu(self, device: str | torch.device | None = None) -> Matrix:
        """Move to an accelerator, the machine's own by default, and return self.

        A machine without accelerator computes on the CPU: there the default leaves it in RAM.
        Raises DeviceError for a named device that is not there.
        """
        target = _accelerator() if device is None else tensors.torch.device(device)
        self._tensor = _moved_to(self._tensor, target)
        self._array = None
        return self

    def to_cpu(self) -> Matrix:
        """Move to RAM and return self."""
        self._tensor = self._tensor.cpu()
        return self

    def tensor(self) -> torch.Tensor:
        """Return the tensor itself, sharing memory; raises BackendMissingError without torch."""
        require("Matrix.tensor", "torch", otherwise="or call numpy()")
        return self._tensor

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a NumPy array, sharing memory when it lies in RAM; bfloat16 is ml_dtypes' type."""
        return tensors.to_numpy(self._tensor) if self._array is None else self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        outs = options.get("out", ())
        if not all(map(_is_known, (*inputs, *outs))):
            return NotImplemented
        if method == "__call__" and not options and ufunc in _OPERATORS:
            found = _apply_operator(ufunc, *inputs)
            if found is not NotImplemented:
                return found
        if outs:
            options["out"] = tuple(map(_as_array, outs))
        found = getattr(ufunc, method)(*map(_as_array, inputs), **options)
        return (outs[0] if len(outs) == 1 else outs) if outs else self._wrap_result(found)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        found = function(*_as_array(list(args)), **_as_array(dict(kwargs)))
        return kwargs["out"] if kwargs.get("out") is not None else self._wrap_result(found)

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.resolve_conj().resolve_neg().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()

    def clone(self) -> Matrix:
        """Return a copy with memory of its own, on the same device."""
        return self._like(self._tensor.clone())

    def transpose(self, dim0: int = -2, dim1: int = -1) -> Matrix:
        """Return a view with two axes exchanged."""
        return self._like(self._tensor.transpose(dim0, dim1))

    def reshape(self, *shape: int | Sequence[int]) -> Matrix:
        """Return it in another shape, a view where it can be; one length may be -1.

        Raises ShapeError when the number of elements differs.
        """
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        try:
            return self._like(self._tensor.reshape(tuple(sizes)))  # type: ignore[arg-type]
        except (RuntimeError, TypeError, ValueError) as error:
            raise ShapeError(
                f"[reshape] shape {self.shape}, {self.size} elements, to {tuple(sizes)!r}: {error}"
            ) from error

    def astype(self, dtype: Any) -> Matrix:
        """Return it in another element type, torch's or NumPy's; itself when it has that type."""
        return self._like(self._tensor.to(tensors.to_torch_dtype(dtype)))

    def conj(self) -> Matrix:
        """Return the complex conjugate."""
        return self._like(self._tensor.conj().resolve_conj())

    @property
    def T(self) -> Matrix:  # noqa: N802
        """The transpose of the last two axes, a view."""
        return self.transpose()

    def sum(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        """Return the sum along ``dim``; without ``dim`` that of all elements, as a Python number."""
        return self._reduced(tensors.torch.sum, self._tensor, dim, keepdim)

    def mean(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        """Return the mean along ``dim``, of integers in float64; without ``dim`` as a Python number."""
        exact = tensors.torch.is_floating_point(self._tensor) or tensors.torch.is_complex(self._tensor)
        return self._reduced(
            tensors.torch.mean, self._tensor if exact else self._tensor.double(), dim, keepdim
        )

    def max(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        """Return the largest along ``dim``; without ``dim`` of all elements, as a Python number."""
        return self._reduced(tensors.torch.amax, self._tensor, dim, keepdim)

    def min(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        """Return the smallest along ``dim``; without ``dim`` of all elements, as a Python number."""
        return self._reduced(tensors.torch.amin, self._tensor, dim, keepdim)

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return where the first largest lies along ``dim``; without ``dim`` in the flattened matrix."""
        return self._arg_reduction(np.argmax, dim, keepdim)

    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return where the first smallest lies along ``dim``; without ``dim`` in the flattened matrix."""
        return self._arg_reduction(np.argmin, dim, keepdim)

    def __matmul__(self, other: Any) -> Matrix:
        return _product(self, other) if _is_array(other) else NotImplemented

    def __rmatmul__(self, other: Any) -> Matrix:
        return _product(other, self) if _is_array(other) else NotImplemented

    def __add__(self, other: Any) -> Matrix:
        return self._combined(tensors.torch.add, other)

    def __radd__(self, other: Any) -> Matrix:
        return self._combined(tensors.torch.add, other, swapped=True)

    def __sub__(self, other: Any) -> Matrix:
        return self._combined(tensors.torch.sub, other)

    def __rsub__(self, other: Any) -> Matrix:
        return self._combined(tensors.torch.sub, other, swapped=True)

    def __mul__(self, other: Any) -> Matrix:
        return self._combined(tensors.torch.mul, other)

    def __rmul__(self, other: Any) -> Matrix:
        return self._combined(tensors.torch.mul, other, swapped=True)

    def __truediv__(self, other: Any) -> Matrix:
        return self._combined(tensors.torch.true_divide, other)

    def __rtruediv__(self, other: Any) -> Matrix:
        return self._combined(tensors.torch.true_divide, other, swapped=True)

    def __pow__(self, other: Any) -> Matrix:
        return self._combined(tensors.torch.pow, other)

    def __rpow__(self, other: Any) -> Matrix:
        return self._combined(tensors.torch.pow, other, swapped=True)

    def __neg__(self) -> Matrix:
        return self._like(-self._tensor)

    def __abs__(self) -> Matrix:
        return self._like(self._tensor.abs())

    def __eq__(self, other: object) -> Matrix:  # type: ignore[override]
        return self._combined(tensors.torch.eq, other)

    def __ne__(self, other: object) -> Matrix:  # type: ignore[override]
        return self._combined(tensors.torch.ne, other)

    def __lt__(self, other: Any) -> Matrix:
        return self._combined(tensors.torch.lt, other)

    def __le__(self, other: Any) -> Matrix:
        return self._combined(tensors.torch.le, other)

    def __gt__(self, other: Any) -> Matrix:
        return self._combined(tensors.torch.gt, other)

    def __ge__(self, other: Any) -> Matrix:
        return self._combined(tensors.torch.ge, other)

    def __bool__(self) -> bool:
        return bool(self._tensor)

    def __len__(self) -> int:
        return len(self._tensor)

    def __getitem__(self, key: Any) -> Matrix:
        return self._like(self._tensor[_raw(key)])

    if TYPE_CHECKING:  # Python iterates by __getitem__, which type checkers do not follow.

        def __iter__(self) -> Iterator[Matrix]: ...

    def __setitem__(self, key: Any, value: Any) -> None:
        self._tensor[_raw(key)] = _raw(value)

    def __repr__(self) -> str:
        return f"Matrix(shape={self.shape}, dtype={self.dtype}, device={self.device})"

    def _repr_html_(self) -> str:
        return result_html(repr(self), f"{format_bytes(self.memory_size())} on {self.device}")

    def _like(self, tensor: torch.Tensor) -> Matrix:
        matrix = Matrix.wrap(tensor)
        matrix._storage_device = self._storage_device
        return matrix

    def _combined(
        self, function: Callable[..., torch.Tensor], other: object, swapped: bool = False
    ) -> Matrix:
        """Apply a function of two operands that broadcast; scalars keep the matrix's dtype as in torch."""
        other = other.item() if isinstance(other, np.generic) else other
        if isinstance(other, Number):
            operand = tensors.torch.as_tensor(other) if swapped else other
        elif _is_array(other):
            operand = _moved_to(tensors.to_tensor(_raw(other)), self.device)
            broadcast_shape(function.__name__, self.shape, operand.shape)
        else:
            return cast(Matrix, NotImplemented)
        return self._like(function(operand, self._tensor) if swapped else function(self._tensor, operand))

    def _wrap_result(self, found: Any) -> Any:
        """Return NumPy's result with arrays as matrices on this one's device; numbers stay as they are."""
        if isinstance(found, np.ndarray):
            return self._like(tensors.to_tensor(found).to(self.device))
        if isinstance(found, (tuple, list)):
            parts = [self._wrap_result(each) for each in found]
            return type(found)(*parts) if hasattr(found, "_fields") else type(found)(parts)
        return found

    def _arg_reduction(self, function: Callable[..., Any], dim: int | None, keepdim: bool) -> Any:
        # NumPy promises the first of equal ones, torch any of them.
        found = function(self.numpy(), axis=dim, keepdims=keepdim)
        return int(found) if dim is None and not keepdim else self._wrap_result(np.asarray(found))

    def _reduced(self, function: Any, tensor: torch.Tensor, dim: Any, keepdim: bool) -> Any:
        if dim is None and not keepdim:
            return function(tensor).item()
        axes = tuple(range(tensor.ndim)) if dim is None else dim
        return self._like(function(tensor, dim=axes, keepdim=keepdim))


_OPERATORS: dict[Any, tuple[str, ...]] = {
    np.add: ("__add__", "__radd__"),
    np.subtract: ("__sub__", "__rsub__"),
    np.multiply: ("__mul__", "__rmul__"),
    np.true_divide: ("__truediv__", "__rtruediv__"),
    np.power: ("__pow__", "__rpow__"),
    np.matmul: ("__matmul__", "__rmatmul__"),
    np.equal: ("__eq__", "__eq__"),
    np.not_equal: ("__ne__", "__ne__"),
    np.less: ("__lt__", "__gt__"),
    np.less_equal: ("__le__", "__ge__"),
    np.greater: ("__gt__", "__lt__"),
    np.greater_equal: ("__ge__", "__le__"),
    np.negative: ("__neg__",),
    np.absolute: ("__abs__",),
    np.conjugate: ("conj",),
}
"""Method equivalent to a function of NumPy: of the first operand, and of the second."""


def _apply_operator(ufunc: np.ufunc, *inputs: Any) -> Any:
    """Apply the operator that is equivalent to ``ufunc``; may return NotImplemented."""
    names = _OPERATORS[ufunc]
    side = next(index for index, each in enumerate(inputs) if isinstance(each, Matrix))
    others = [each for index, each in enumerate(inputs) if index != side]
    return getattr(inputs[side], names[side])(*others)


def _is_known(value: object) -> bool:
    """Return whether an operand may be computed with here: no other type with ``__array_ufunc__``."""
    return isinstance(value, (Matrix, np.ndarray, np.generic)) or not hasattr(value, "__array_ufunc__")


def _as_array(value: Any) -> Any:
    """Return ``value`` with matrices as arrays, also inside lists, tuples and dicts."""
    if isinstance(value, Matrix):
        return value.numpy()
    if isinstance(value, dict):
        return {name: _as_array(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_as_array, value))
    return value


def _wrapped_array(matrix: Matrix) -> Any:
    """Return the tensor that a matrix wraps, or without torch its NumPy array."""
    if matrix._array is not None:
        return matrix._array
    return getattr(matrix._tensor, "array", matrix._tensor)  # numpy_tensors.Tensor has it, torch's has not


register_wrapper(Matrix, _wrapped_array)


def _create(function: Callable[..., torch.Tensor], shape: tuple[int, ...], dtype: Any, device: str) -> Matrix:
    element_type = tensors.torch.float32 if dtype is FLOAT32 else tensors.to_torch_dtype(dtype)
    place = _checked_device(tensors.torch.device(device))
    return Matrix.wrap(function(shape, dtype=element_type, device=place))


def _product(a: Any, b: Any) -> Matrix:
    return cast(Matrix, default_product(a, b))


def _raw(value: Any) -> Any:
    return value._tensor if isinstance(value, Matrix) else value


def _is_array(value: object) -> bool:
    return isinstance(value, Matrix | tensors.torch.Tensor | np.ndarray | list)


def _moved_to(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor if tensor.device == device else tensor.to(_checked_device(device))


def _checked_device(device: torch.device) -> torch.device:
    """Return ``device``; raises DeviceError when this machine has no such device."""
    if device.type not in ("cpu", "meta"):
        found = present_accelerator()
        if (
            found is None
            or found.type != device.type
            or (device.index or 0) >= tensors.torch.accelerator.device_count()
        ):
            raise DeviceError(
                f"[Matrix] device {str(device)!r} is not on this machine, which has {_devices()}; "
                "leave the device out to use what there is"
            )
    return device


def _devices() -> str:
    found = present_accelerator()
    return (
        "a CPU and no accelerator"
        if found is None
        else f"{tensors.torch.accelerator.device_count()} {found.type} device(s)"
    )


def _accelerator() -> torch.device:
    return present_accelerator() or tensors.torch.device("cpu")
