"""Matrix products by the engine's plans: operands read as they lie, whatever their strides."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import numpy as np
import torch

from accelera.chunking import TileChunking
from accelera.engine import MatrixEngine
from accelera.interceptor.config import InterceptionConfig
from accelera.interceptor.hooks import passing
from accelera.interceptor.tiling import TileTarget
from accelera.stores import Layout, OutputStore, Store, open_store, parse_dtype
from accelera.stores import Region as StoreRegion

_BAND_BYTES = 1 << 18
"""How much of a finished block is put at a time where something is added to it."""
_thread = threading.local()


class Gemm(NamedTuple):
    """``beta * start + alpha * (a @ b)``, or ``a @ b`` alone."""

    a: torch.Tensor
    b: torch.Tensor
    start: torch.Tensor | None
    alpha: Any
    beta: Any


def fill(product: Gemm, target: TileTarget, config: InterceptionConfig, budget_bytes: int) -> list[str]:
    """Compute ``product`` into ``target`` by a plan; return the fallbacks taken.

    Raises BudgetExceededError, before anything is computed, when no plan fits ``budget_bytes``.
    """
    engine = _engine(config.device or str(product.a.device))
    engine.matmul(
        _operand(product.a),
        _operand(product.b),
        _strategy(config, product.a.itemsize),
        out=_output(product, target),
        budget=budget_bytes,
    )
    report = engine.last_report
    return [] if report is None else list(report.fallbacks)


def _engine(device: str) -> MatrixEngine:
    """Return this thread's engine: its report must not be another thread's."""
    engines: dict[str, MatrixEngine] = _thread.__dict__.setdefault("engines", {})
    if device not in engines:
        engines[device] = MatrixEngine(device=device, enable_progress=False)
    return engines[device]


def _strategy(config: InterceptionConfig, itemsize: int) -> TileChunking | None:
    """Return square tiles where the config fix their size; None lets the planner choose."""
    if config.override.tile_bytes is None:
        return None
    edge = max(1, int((config.override.tile_bytes // itemsize) ** 0.5))
    return TileChunking(tile_size=(edge, edge))


def _output(product: Gemm, target: TileTarget) -> Any:
    """Return the result itself where blocks can be computed in place, else what takes finished blocks."""
    alone = product.start is None or (product.beta == 0 and product.alpha == 1)
    if target.memory is not None and alone and not target.memory.is_conj():
        return target.memory
    return _BlockSink(product, target)


def _operand(tensor: torch.Tensor) -> Any:
    """Return a factor as the engine takes it; conjugated and negated views as they are read."""
    plain = tensor.detach()
    if not plain.is_conj() and not plain.is_neg():
        return plain
    return _ConjugateView(plain)


@final
class _ConjugateView(Store):
    """A view that torch conjugates or negates lazily; regions are resolved as they are read."""

    name = "tensor"

    def __init__(self, tensor: torch.Tensor) -> None:
        self._conjugated, self._negated = tensor.is_conj(), tensor.is_neg()
        plain = tensor.conj() if self._conjugated else tensor
        self._plain = open_store(torch._neg_view(plain) if self._negated else plain)
        self.shape, self.dtype, self.tier = self._plain.shape, self._plain.dtype, self._plain.tier

    def read(self, region: StoreRegion, out: np.ndarray[Any, Any]) -> int:
        """Fill ``out``; return bytes read."""
        with _in_thread():
            moved = self._plain.read(region, out)
        if self._conjugated:
            np.conjugate(out, out=out)
        if self._negated:
            np.negative(out, out=out)
        return moved

    def write(self, region: StoreRegion, data: np.ndarray[Any, Any]) -> int:
        """Refuse: factors are only read."""
        raise PermissionError("[write] a factor of a product is only read")

    @property
    def layout(self) -> Layout:
        """The tensor's strides."""
        return self._plain.layout


@final
class _BlockSink(OutputStore):
    """Takes finished blocks of ``a @ b`` and puts ``beta * start + alpha * block``."""

    name = "result"
    tier = "ram"

    def __init__(self, product: Gemm, target: TileTarget) -> None:
        self.shape, self.dtype = target.shape, parse_dtype(target.dtype)
        self._target = target
        self._start = None if product.start is None or product.beta == 0 else product.start.detach()
        if self._start is not None:
            self._start = self._start.expand(target.shape)
        self._alpha, self._beta = product.alpha, product.beta

    def read(self, region: StoreRegion, out: np.ndarray[Any, Any]) -> int:
        """Refuse: blocks are written once."""
        raise PermissionError("[read] the result of an intercepted product is only written")

    def write(self, region: StoreRegion, data: np.ndarray[Any, Any]) -> int:
        """Put one block, band by band; return its bytes."""
        with _in_thread():
            self._put(region, _as_tensor(data, self._target.dtype), data.nbytes)
        return data.nbytes

    def _put(self, region: StoreRegion, block: torch.Tensor, size: int) -> None:
        if self._start is None and self._alpha == 1:
            self._target.put(region, block)
            return
        for band, part in _bands(region, size):
            self._target.put(band, self._folded(band, block[part]))

    def _folded(self, region: StoreRegion, block: torch.Tensor) -> torch.Tensor:
        if self._start is None:
            return torch.mul(block, self._alpha)
        start = self._start[region].to("cpu")
        return torch.add(start if self._beta == 1 else start * self._beta, block, alpha=self._alpha)

    @property
    def layout(self) -> Layout:
        """The result's strides."""
        steps = [stride * self.dtype.itemsize for stride in self._target.strides]
        return Layout.of_strides(self.shape, steps, self.dtype.itemsize)

    @property
    def scratch_bytes(self) -> int:
        """Bands of the summand and of the sum."""
        return 0 if self._start is None and self._alpha == 1 else 4 * _BAND_BYTES

    def commit(self) -> None:
        """Do nothing: the blocks are where they belong."""

    def abort(self, *, keep_partial: bool = False) -> None:
        """Do nothing: the caller gives the result up."""


@contextmanager
def _in_thread() -> Iterator[None]:
    """Let the engine's threads use torch as the caller's does: neither intercepted nor differentiated."""
    with passing(), torch.inference_mode():
        yield


def _as_tensor(data: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor over a block's memory, bfloat16 included."""
    if dtype == torch.bfloat16:
        return torch.from_numpy(data.view(np.int16)).view(dtype)
    return torch.from_numpy(data)


def _bands(region: StoreRegion, size: int) -> list[tuple[StoreRegion, tuple[slice, ...]]]:
    """Cut a block along its first long axis; return parts of the result beside parts of the block."""
    axis = next((axis for axis, part in enumerate(region) if part.stop - part.start > 1), 0)
    start, stop = region[axis].start, region[axis].stop
    step = max(1, (stop - start) * _BAND_BYTES // max(1, size))
    bands = []
    for low in range(start, stop, step):
        high = min(low + step, stop)
        here = (*region[:axis], slice(low, high), *region[axis + 1 :])
        inner = (*[slice(None)] * axis, slice(low - start, high - start))
        bands.append((here, inner))
    return bands
