"""Pools and unfolded windows in JAX, by strided slices: one for each element of a window."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accelera.tensora.lowering.jax_networks import transposed, widened
from accelera.tensora.lowering.pool_windows import AxisWindows, axis_windows
from accelera.tensora.lowering.program import ProgramStep, StepParams


def _taps(x: Any, axes: list[AxisWindows], fill: float) -> Any:
    """Yield each position k in a window, and the k-th element of all windows of x (N, C, extents...)."""
    padding = [(0, 0), (0, 0), *((each.low, each.high) for each in axes)]
    padded = jnp.pad(x, padding, constant_values=fill)
    for tap in itertools.product(*(range(len(each.places)) for each in axes)):
        part = padded
        for axis, (windows, k) in enumerate(zip(axes, tap, strict=True)):
            part = _take_axis(part, windows.places[k] + windows.low, axis + 2)
        yield tap, part


def _take_axis(x: Any, places: np.ndarray, axis: int) -> Any:
    steps = np.diff(places)
    if len(steps) and (steps == steps[0]).all() and steps[0] > 0:
        return jax.lax.slice_in_dim(x, int(places[0]), int(places[-1]) + 1, int(steps[0]), axis)
    return jnp.take(x, places, axis)


def max_pool(step: ProgramStep, x: Any) -> Any:
    """Largest element of each window, and its flat index within the channel."""
    axes = axis_windows(step.params)
    extents = [each.extent for each in axes]
    x = widened(x)
    most = jnp.full(step.outputs[0].shape, -math.inf, x.dtype)
    at = jnp.broadcast_to(_first_indices(axes, extents), most.shape)
    for tap, value in _taps(x, axes, -math.inf):
        places = _flat_indices([w.places[k] for w, k in zip(axes, tap, strict=True)], extents)
        inside = _all_inside([w.inside[k] for w, k in zip(axes, tap, strict=True)])
        better = ((value > most) | (value != value)) & inside
        most, at = jnp.where(better, value, most), jnp.where(better, places, at)
    return most, at


def _first_indices(axes: list[AxisWindows], extents: list[int]) -> np.ndarray:
    firsts = [np.take_along_axis(each.places, each.inside.argmax(0)[None], 0)[0] for each in axes]
    return _flat_indices(firsts, extents)


def _flat_indices(places: list[np.ndarray], extents: list[int]) -> np.ndarray:
    """Return the flat index in an image for all windows, from the indices along each axis."""
    result = np.zeros((), np.int64)
    for each, extent in zip(places, extents, strict=True):
        result = result[..., None] * extent + each
    return result


def _all_inside(inside: list[np.ndarray]) -> np.ndarray:
    result = np.ones((), bool)
    for each in inside:
        result = result[..., None] & each
    return result


def _window_mean(params: StepParams, x: Any) -> Any:
    axes = axis_windows(params)
    counts = np.ones(())
    for each in axes:
        own = each.counted if params.flag else each.inside.sum(0)
        counts = counts[..., None] * own
    factor = 1 / (np.full_like(counts, params.x) if params.x else counts)
    return sum(part for _, part in _taps(x, axes, 0)) * factor.astype(x.dtype)


def avg_pool(step: ProgramStep, x: Any) -> Any:
    """Mean of each window; flag: count padding; x: divisor of the sums instead of the counts."""
    return _window_mean(step.params, widened(x))


def avg_pool_back(step: ProgramStep, y: Any) -> Any:
    """Gradient of the images whose means have the gradient y."""
    return transposed(lambda x: _window_mean(step.params, x), step, widened(y))


def _unfold(params: StepParams, x: Any) -> Any:
    columns = jnp.stack([part for _, part in _taps(x, axis_windows(params), 0)], 2)
    return columns.reshape((x.shape[0], columns.shape[1] * columns.shape[2], -1))


def unfold(step: ProgramStep, x: Any) -> Any:
    """Windows of images as columns (N, C times elements of a window, windows)."""
    return _unfold(step.params, x)


def fold(step: ProgramStep, y: Any) -> Any:
    """Sums of columns in images, where `unfold` took them from."""
    return transposed(lambda x: _unfold(step.params, x), step, widened(y))


WINDOWS = {each.__name__: each for each in (max_pool, avg_pool, avg_pool_back, unfold, fold)}
"""By name of the entry."""
