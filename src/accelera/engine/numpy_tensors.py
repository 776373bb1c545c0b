"""The part of torch that ``Matrix`` and direct products need, over NumPy: for where torch is not installed.

Names and rules are torch's: element types promote as ``torch.result_type`` says, Python numbers keep the type
of the tensor, lists of floats are float32, division of integers is float32, integer sums are int64. Tensors
lie in RAM.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import ml_dtypes
import numpy as np

from accelera._extras import require
from accelera.errors import DTypeError

Array = np.ndarray[Any, Any]
DType = np.dtype[Any]
dtype: Final = np.dtype

BOOL: Final = np.dtype(np.bool_)
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
int8, int16, int32, int64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
bfloat16: Final = np.dtype(ml_dtypes.bfloat16)
float16, float32, float64 = (np.dtype(f"float{bits}") for bits in (16, 32, 64))
complex64, complex128 = np.dtype(np.complex64), np.dtype(np.complex128)

_RANKS: Final[tuple[frozenset[DType], ...]] = (
    frozenset({BOOL}),
    frozenset({uint8, uint16, uint32, uint64, int8, int16, int32, int64}),
    frozenset({bfloat16, float16, float32, float64}),
    frozenset({complex64, complex128}),
)
"""Categories of element types; of two operands the higher one's decides."""
_INTEGER, _FLOAT, _COMPLEX = 1, 2, 3
_WIDE: Final[dict[DType, DType]] = {
    **dict.fromkeys((bfloat16, float16, float32), float64),
    complex64: complex128,
}
"""What sums and means are computed in, where not in their own type."""
HALVES: Final = frozenset({bfloat16, float16})
SLOW_ON_CPU: Final = _RANKS[0] | _RANKS[1] | HALVES
"""Types that BLAS does not multiply."""
NOT_ON_CPU: Final = frozenset[DType]()
"""Types that NumPy does not multiply."""


@final
class device:  # noqa: N801 - torch's name
    """The CPU, the only device without torch."""

    __slots__ = ()
    type = "cpu"
    index = None

    def __init__(self, name: Any = "cpu") -> None:
        if str(name).partition(":")[0] != "cpu":
            require("Matrix", "torch", otherwise=f"which has devices such as {str(name)!r}")
            raise AssertionError("this module stands for torch only where it is not installed")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device)

    def __hash__(self) -> int:
        return hash("cpu")

    def __repr__(self) -> str:
        return "cpu"


_CPU: Final = device()


@final
class Tensor:
    """A NumPy array with the methods of a tensor that a ``Matrix`` calls."""

    __slots__ = ("array",)
    requires_grad = False
    device = _CPU

    def __init__(self, array: Any) -> None:
        self.array: Array = np.asarray(array)

    layout = None
    shape = property(operator.attrgetter("array.shape"))
    ndim = property(operator.attrgetter("array.ndim"))
    dtype = property(operator.attrgetter("array.dtype"))
    nbytes = property(operator.attrgetter("array.nbytes"))
    itemsize = property(operator.attrgetter("array.itemsize"))

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self.array.__array_interface__["data"][0])

    def untyped_storage(self) -> Array:
        """Return the array that owns the memory."""
        base = self.array.base
        return base if isinstance(base, np.ndarray) else self.array

    def numel(self) -> int:
        """Return the number of elements."""
        return self.array.size

    def element_size(self) -> int:
        """Return the bytes of an element."""
        return self.array.itemsize

    def stride(self) -> tuple[int, ...]:
        """Return the distances of neighbours along each axis, in elements."""
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def is_contiguous(self) -> bool:
        """Return whether it lies row by row."""
        return self.array.flags.c_contiguous

    def itself(self) -> Tensor:
        """Return itself: it lies in RAM, with no gradient and nothing to be resolved."""
        return self

    detach = cpu = resolve_conj = resolve_neg = itself

    def numpy(self) -> Array:
        """Return its array."""
        return self.array

    def view(self, dtype: DType) -> Tensor:
        """Return the same bytes as elements of another type of that size."""
        return Tensor(self.array.view(dtype))

    def to(self, target: Any) -> Tensor:
        """Return it with another element type, or itself for a device."""
        return Tensor(self.array.astype(target, copy=False)) if isinstance(target, np.dtype) else self

    def double(self) -> Tensor:
        """Return it in float64."""
        return self.to(float64)

    def clone(self) -> Tensor:
        """Return a copy."""
        return Tensor(self.array.copy())

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Return a view with two axes exchanged."""
        return Tensor(self.array.swapaxes(dim0, dim1))

    def reshape(self, shape: tuple[int, ...]) -> Tensor:
        """Return it in another shape; raises ValueError when the number of elements differs."""
        return Tensor(self.array.reshape(shape))

    def conj(self) -> Tensor:
        """Return the complex conjugate; itself when its elements are real."""
        return Tensor(self.array.conj()) if is_complex(self) else self

    def abs(self) -> Tensor:
        """Return the magnitudes."""
        return Tensor(np.abs(self.array))

    def item(self) -> Any:
        """Return the only element as a Python number."""
        return self.array.item()

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __neg__(self) -> Tensor:
        return Tensor(-self.array)

    def __bool__(self) -> bool:
        return bool(self.array)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.array[_arrays_in(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.array[_arrays_in(key)] = value.array if isinstance(value, Tensor) else value


def _arrays_in(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(_arrays_in, key))
    return key.array if isinstance(key, Tensor) else key


def tensor(data: Any) -> Tensor:
    """Return nested lists as a tensor: floats in float32, complex numbers in complex64.

    Raises ValueError for rows of different lengths, TypeError for what are no numbers.
    """
    array = np.asarray(data)
    usual = {float64: float32, complex128: complex64}.get(array.dtype, array.dtype)
    return from_numpy(array.astype(usual, copy=False))


as_tensor = tensor


def from_numpy(array: Array) -> Tensor:
    """Return a tensor that shares the array's memory; raises TypeError for elements that there are not."""
    if not any(array.dtype in types for types in _RANKS):
        raise DTypeError(f"a Matrix holds no elements of NumPy's {array.dtype}")
    return Tensor(array)


def zeros(shape: Sequence[int], dtype: DType, device: device) -> Tensor:
    """Return zeros."""
    return Tensor(np.zeros(shape, dtype))


def ones(shape: Sequence[int], dtype: DType, device: device) -> Tensor:
    """Return ones."""
    return Tensor(np.ones(shape, dtype))


def eye(n: int, m: int, dtype: DType, device: device) -> Tensor:
    """Return ones on the diagonal."""
    return Tensor(np.eye(n, m, dtype=dtype))


def rand(shape: Sequence[int], dtype: DType, device: device) -> Tensor:
    """Return numbers spread evenly over [0, 1); ``numpy.random.seed`` repeats them."""
    return Tensor(np.random.random_sample(shape)).to(dtype)


def randn(shape: Sequence[int], dtype: DType, device: device) -> Tensor:
    """Return normally distributed numbers; ``numpy.random.seed`` repeats them."""
    return Tensor(np.random.standard_normal(shape)).to(dtype)


def is_floating_point(tensor: Tensor) -> bool:
    """Return whether the elements are real floats."""
    return _rank(tensor.dtype) == _FLOAT


def is_complex(tensor: Tensor) -> bool:
    """Return whether the elements are complex."""
    return _rank(tensor.dtype) == _COMPLEX


def result_type(a: Tensor | complex, b: Tensor | complex) -> DType:
    """Return the element type of what two operands are combined to.

    Tensors with axes count before those without, these before Python numbers; what counts less decides only
    where it is of a higher category.
    """
    found: DType | None = None
    for each in sorted((a, b), key=_weight, reverse=True):
        given = _dtype_of(each)
        if found is None:
            found = given
        elif _weight(a) == _weight(b):
            found = promote_types(found, given)
        elif _rank(given) > _rank(found):
            found = _raised(found, given)
    assert found is not None, "two operands were given"
    return found


def promote_types(a: DType, b: DType) -> DType:
    """Return the smallest type that both go into: of a float and an integer the float."""
    if _rank(a) != _rank(b):
        low, high = sorted((a, b), key=_rank)
        return _raised(low, high)
    if a == b or not {a, b} & HALVES:
        return np.promote_types(a, b)
    return float32 if {a, b} == HALVES else max(a, b, key=operator.attrgetter("itemsize"))


def _raised(low: DType, high: DType) -> DType:
    """Return a type of the higher category of two that holds both."""
    return complex128 if low == float64 and high == complex64 else high


def _raw(operand: Tensor | complex) -> Any:
    return operand.array if isinstance(operand, Tensor) else operand


def _weight(operand: Tensor | complex) -> int:
    return (2 if operand.ndim else 1) if isinstance(operand, Tensor) else 0


def _dtype_of(operand: Tensor | complex) -> DType:
    found: DType = operand.dtype if isinstance(operand, Tensor) else tensor(operand).dtype
    return found


def _rank(dtype: DType) -> int:
    return next(rank for rank, types in enumerate(_RANKS) if dtype in types)


def _combined(name: str, function: Any, least_rank: int = 0) -> Callable[[Any, Any], Tensor]:
    """Return a function of two operands, of which one may be a Python number."""

    def combine(a: Tensor | complex, b: Tensor | complex) -> Tensor:
        dtype = result_type(a, b)
        dtype = dtype if _rank(dtype) >= least_rank else float32
        left, right = (np.asarray(_raw(each)).astype(dtype, copy=False) for each in (a, b))
        with np.errstate(all="ignore"):
            return Tensor(function(left, right))

    combine.__name__ = name
    return combine


def _power(a: Array, b: Array) -> Array:
    return np.asarray(np.power(a, b)).astype(
        a.dtype, copy=False
    )  # NumPy's powers of truth values are integers


add = _combined("add", np.add)
sub = _combined("sub", np.subtract)
mul = _combined("mul", np.multiply)
true_divide = _combined("true_divide", np.true_divide, _FLOAT)
pow = _combined("pow", _power)  # noqa: A001 - torch's name
eq, ne = _combined("eq", np.equal), _combined("ne", np.not_equal)
lt, le = _combined("lt", np.less), _combined("le", np.less_equal)
gt, ge = _combined("gt", np.greater), _combined("ge", np.greater_equal)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the product; that of halves is summed in float32."""
    wide = float32 if a.dtype in HALVES else a.dtype
    return Tensor(a.to(wide).array @ b.to(wide).array).to(a.dtype)


def sum(  # noqa: A001 - torch's name
    tensor: Tensor, dim: tuple[int, ...] | None = None, keepdim: bool = False
) -> Tensor:
    """Return sums along axes: of integers in int64, of floats summed in float64."""
    target = tensor.dtype if _rank(tensor.dtype) > _INTEGER else int64
    wide = _WIDE.get(target, target)
    return Tensor(np.sum(tensor.array, dim, dtype=wide, keepdims=keepdim)).to(target)


def mean(tensor: Tensor, dim: tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
    """Return means along axes, summed in float64."""
    wide = _WIDE.get(tensor.dtype, tensor.dtype)
    return Tensor(np.mean(tensor.array, dim, dtype=wide, keepdims=keepdim)).to(tensor.dtype)


def amax(tensor: Tensor, dim: tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
    """Return the largest along axes; NaN if one is."""
    return Tensor(np.max(tensor.array, dim, keepdims=keepdim))


def amin(tensor: Tensor, dim: tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
    """Return the smallest along axes; NaN if one is."""
    return Tensor(np.min(tensor.array, dim, keepdims=keepdim))
