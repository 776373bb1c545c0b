"""Random numbers, the same for every number of threads.

They come from a counter, by Philox4x32-10 (J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011): an element depends on the generator's seed, the number of draws before, and its place in the draw.
"""

from __future__ import annotations

import secrets
import threading
from typing import Any

from accelera._json_values import shown
from accelera.errors import ArgumentError, DTypeError
from accelera.tensora.core import DType, Tensor, native
from accelera.tensora.python_calls import current
from accelera.tensora.typing import DTypeLike

__all__ = ["Generator", "default_generator", "manual_seed", "rand", "randint", "randn", "randperm"]

_WORD = 1 << 64
_LIMITS = {
    f"{prefix}int{bits}": (0, (1 << bits) - 1) if prefix else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    for prefix in ("u", "")
    for bits in (8, 16, 32, 64)
}

Shape = int | tuple[int, ...] | list[int]


def _shape(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _float(dtype: DTypeLike | None) -> DType:
    return native.default_float() if dtype is None else native.to_dtype(dtype)


class Generator:
    """Source of random tensors.

    Parameters
    ----------
    seed
        Two generators with the same seed, of which the lower 64 bits count, draw the same numbers. None takes
        one from the operating system.

    """

    def __init__(self, seed: int | None = None) -> None:
        self._lock = threading.Lock()
        self.manual_seed(secrets.randbits(63) if seed is None else seed)

    def __repr__(self) -> str:
        """Seed and number of draws."""
        return f"Generator(seed={self._seed}, draws={self._draws})"

    def __reduce__(self) -> tuple[Any, ...]:
        """As its state."""
        return _restored, self.state

    @property
    def seed(self) -> int:
        """The seed, below 2**64."""
        self._note_access("seed")
        return self._seed

    @property
    def state(self) -> tuple[int, int]:
        """Seed, and number of draws so far. A generator that is given it goes on from there."""
        self._note_access("state")
        with self._lock:
            return self._seed, self._draws

    @state.setter
    def state(self, state: tuple[int, int]) -> None:
        value: object = state
        pair = tuple(value) if isinstance(value, (tuple, list)) else ()
        if len(pair) != 2 or not all(type(each) is int and 0 <= each < _WORD for each in pair):
            raise ArgumentError(
                f"[Generator.state] {shown(state, repr)}; give the two numbers that `state` returned"
            )
        seed, draws = pair
        self._note_access("state")
        with self._lock:
            self._seed, self._draws = seed, draws

    def _note_access(self, name: str) -> None:
        if current.trace is not None:
            current.trace.note_unguarded(f"the {name} of a Generator")

    def manual_seed(self, seed: int) -> Generator:
        """Begin again with this seed."""
        self.state = (int(seed) % _WORD, 0)
        return self

    def _next(self) -> tuple[int, int]:
        """Seed and number of the next draw."""
        with self._lock:
            draw = self._draws
            self._draws = (draw + 1) % _WORD
            drawn = self._seed, draw
        if current.trace is not None:
            current.trace.draw(self, *drawn)
        return drawn

    def uniform(
        self, shape: Shape = (), dtype: DTypeLike | None = None, low: float = 0.0, high: float = 1.0
    ) -> Tensor:
        """Numbers that are evenly distributed in ``[low, high)``.

        Parameters
        ----------
        shape
            Of the tensor.
        dtype
            A real floating-point type; the default one if None.
        low, high
            Finite numbers, `low` the smaller one.

        """
        return native.random_uniform(*self._next(), _shape(shape), _float(dtype), low, high)

    def normal(
        self, shape: Shape = (), dtype: DTypeLike | None = None, mean: float = 0.0, std: float = 1.0
    ) -> Tensor:
        """Normally distributed numbers of this mean and standard deviation; arguments as for `uniform`."""
        return native.random_normal(*self._next(), _shape(shape), _float(dtype), mean, std)

    def integers(
        self, low: int, high: int | None = None, shape: Shape = (), dtype: DTypeLike = "int64"
    ) -> Tensor:
        """Integers in ``[low, high)``, all equally likely; in ``[0, low)`` without `high`.

        Raises
        ------
        ValueError
            If there is no such integer, or some do not fit `dtype`.

        """
        first, end = (0, low) if high is None else (low, high)
        kind = native.to_dtype(dtype)
        if kind.name not in _LIMITS:
            raise DTypeError(f"[integers] elements of type {kind.name}; give an integer type")
        least, most = _LIMITS[kind.name]
        if not least <= first < end <= most + 1:
            raise ArgumentError(
                f"[integers] from {first} to below {end} as {kind.name}; "
                f"give low < high, between {least} and {most + 1}"
            )
        low_word = first if first < 1 << 63 else first - _WORD
        return native.random_integers(*self._next(), _shape(shape), kind, low_word, (end - first) % _WORD)

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Return a tensor on the CPU with elements set to zero with probability `p`, others over ``1 - p``.

        A gradient draws the same numbers again, so that no mask is kept.
        """
        return native.random_dropout(*self._next(), x, p)

    def permutation(self, n: int) -> Tensor:
        """The numbers below `n` in any order, as int64."""
        if n < 0:
            raise ArgumentError(f"[permutation] n={n}; give 0 or more")
        return native.random_permutation(*self._next(), n)

    def bernoulli(self, p: Tensor | float, shape: Shape | None = None) -> Tensor:
        """True with probability `p`, as a bool tensor.

        Parameters
        ----------
        p
            A number between 0 and 1, or a tensor of them.
        shape
            Of the result; that of `p` by default.

        """
        if isinstance(p, Tensor):
            chances = native.cast(p.detach(), native.dtype.float64)
            chances = chances if shape is None else native.expand(chances, _shape(shape))
        else:
            chances = native.asarray(float(p), native.dtype.float64)
        if not native.holds(native.all(native.logical_and(chances >= 0, chances <= 1))):
            raise ArgumentError("[bernoulli] probabilities below 0 or above 1, or NaN")
        wanted = tuple(chances.shape) if shape is None else _shape(shape)
        return native.less(self.uniform(wanted, native.dtype.float64), chances)


def _restored(seed: int, draws: int) -> Generator:
    generator = Generator(seed)
    generator.state = (seed, draws)
    return generator


default_generator = Generator()
"""The generator that the functions of this module draw from."""


def manual_seed(seed: int) -> Generator:
    """Let the default generator begin again with this seed."""
    return default_generator.manual_seed(seed)


def _source(generator: Generator | None) -> Generator:
    return default_generator if generator is None else generator


def rand(*shape: int, dtype: DTypeLike | None = None, generator: Generator | None = None) -> Tensor:
    """Numbers that are evenly distributed in [0, 1)."""
    return _source(generator).uniform(shape, dtype)


def randn(*shape: int, dtype: DTypeLike | None = None, generator: Generator | None = None) -> Tensor:
    """Normally distributed numbers of mean 0 and standard deviation 1."""
    return _source(generator).normal(shape, dtype)


def randint(
    low: int,
    high: int | None = None,
    shape: Shape = (),
    *,
    dtype: DTypeLike = "int64",
    generator: Generator | None = None,
) -> Tensor:
    """Integers in ``[low, high)``, all equally likely; in ``[0, low)`` without `high`."""
    return _source(generator).integers(low, high, shape, dtype)


def randperm(n: int, *, generator: Generator | None = None) -> Tensor:
    """The numbers below `n` in any order, as int64."""
    return _source(generator).permutation(n)
