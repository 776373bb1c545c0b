"""Random entries of the op table in JAX: the same Philox numbers, from the draw's seed and number.

J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from accelera.errors import UnsupportedError
from accelera.tensora.lowering.program import ProgramStep

U32, U64 = jnp.uint32, jnp.uint64


def _low_and_high(x: Any) -> tuple[Any, Any]:
    """Low and high word."""
    return x.astype(U32), (x >> U64(32)).astype(U32)


def _philox(blocks: Any, draw: Any, attempt: int | Any = 0) -> Any:
    """Four words for each block, (..., 4); `draw` is seed and number, uint64."""
    low, high = _low_and_high(blocks.astype(U64))
    high = high | (jnp.asarray(attempt, U32) << U32(16))
    number_low, number_high = _low_and_high(draw[1])
    counter = [low, high, jnp.broadcast_to(number_low, low.shape), jnp.broadcast_to(number_high, low.shape)]
    key = list(_low_and_high(draw[0]))
    for _ in range(10):
        a_low, a_high = _low_and_high(U64(0xD2511F53) * counter[0])
        b_low, b_high = _low_and_high(U64(0xCD9E8D57) * counter[2])
        counter = [b_high ^ counter[1] ^ key[0], b_low, a_high ^ counter[3] ^ key[1], a_low]
        key = [key[0] + U32(0x9E3779B9), key[1] + U32(0xBB67AE85)]
    return jnp.stack(counter, -1)


def _long_words(words: Any) -> Any:
    wide = words.astype(U64)
    return wide[..., 0::2] | wide[..., 1::2] << U64(32)


def _random_words(size: int, draw: Any) -> Any:
    """A word of 32 bits for each element."""
    return _philox(jnp.arange(-(-size // 4)), draw).reshape(-1)[:size]


def _unit_uniform(size: int, draw: Any, dtype: str) -> Any:
    """In [0, 1), with as many bits as the type's mantissa has; halves in float32."""
    if dtype == "float64":
        words = _long_words(_philox(jnp.arange(-(-size // 2)), draw)).reshape(-1)[:size]
        return (words >> U64(11)).astype(jnp.float64) * 2.0**-53
    bits = {"float16": 11, "bfloat16": 8}.get(dtype, 24)
    return (_random_words(size, draw) >> U32(32 - bits)).astype(jnp.float32) * jnp.float32(2.0**-bits)


def random_uniform(step: ProgramStep, draw: Any) -> Any:
    """Uniform numbers from x to below y."""
    params, (out,) = step.params, step.outputs
    units = _unit_uniform(out.size, draw, out.dtype.name)
    low, high = (jnp.asarray(each, units.dtype) for each in (params.x, params.y))
    values = (low + (high - low) * units).astype(out.dtype.name)
    if params.x < params.y:
        bound = jnp.asarray(params.y, units.dtype).astype(values.dtype)
        last = jnp.nextafter(bound, jnp.asarray(-math.inf, values.dtype))
        values = jnp.where(values.astype(units.dtype) < high, values, last)
    return values.reshape(out.shape)


def random_normal(step: ProgramStep, draw: Any) -> Any:
    """Normal numbers of mean x and deviation y; G. Box and M. Muller (1958)."""
    params, (out,) = step.params, step.outputs
    if out.dtype.name == "float64":
        words = _long_words(_philox(jnp.arange(-(-out.size // 2)), draw))
        first = ((words[:, 0:1] >> U64(11)) + U64(1)).astype(jnp.float64) * 2.0**-53
        second = (words[:, 1:2] >> U64(11)).astype(jnp.float64) * 2.0**-53
    else:
        words = _philox(jnp.arange(-(-out.size // 4)), draw)
        a, b = words[:, 0::2], words[:, 1::2]
        tail = ((a & U32(0xFF)) + U32(1)).astype(jnp.float32) * 2.0**-8
        first = ((a >> U32(8)).astype(jnp.float32) + tail) * 2.0**-24
        second = (b >> U32(8)).astype(jnp.float32) * 2.0**-24
    radius, angle = jnp.sqrt(-2 * jnp.log(first)), 2 * math.pi * second
    normals = jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], -1).reshape(-1)[: out.size]
    return (params.x + params.y * normals).reshape(out.shape)


def random_dropout(step: ProgramStep, x: Any, draw: Any) -> Any:
    """Elements that stay with probability 1 - x, divided by it; zeros instead of the others."""
    dtype = x.dtype
    stays = _unit_uniform(x.size, draw, "float32").reshape(x.shape) >= jnp.float32(step.params.x)
    factor = (1 / jnp.asarray(1 - step.params.x, dtype)).astype(dtype)
    return x * jnp.where(stays, factor, jnp.zeros((), dtype))


def random_integers(step: ProgramStep, draw: Any) -> Any:
    """Integers from c[0] on, below c[0] + c[1]; D. Lemire (2019)."""
    low, extent = step.params.c
    if not 0 < extent < 2**32:
        raise UnsupportedError(
            f"[lowering] random integers of a range of {extent % 2**64}; ranges below 2**32 are lowered"
        )
    size = step.outputs[0].size
    blocks = jnp.arange(-(-size // 4))

    def product(attempt: Any) -> Any:
        return _philox(blocks, draw, attempt).astype(U64) * U64(extent)

    least = U64((2**32 - extent) % extent)

    def is_open(state: Any) -> Any:
        return jnp.any(~state[1])

    def again(state: Any) -> Any:
        values, done, attempt = state
        made = product(attempt)
        fits = (made & U64(0xFFFFFFFF)) >= least
        return jnp.where(done, values, made >> U64(32)), done | fits, attempt + 1

    shape = (*blocks.shape, 4)
    start = (jnp.zeros(shape, U64), jnp.zeros(shape, bool), jnp.uint32(0))
    values = jax.lax.while_loop(is_open, again, start)[0].reshape(-1)[:size]
    dtype = step.outputs[0].dtype.name
    return (values.astype(jnp.int64) + low).astype(dtype).reshape(step.outputs[0].shape)


RANDOM: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (random_uniform, random_normal, random_dropout, random_integers)
}
"""By name of the entry; the last input is the draw."""
