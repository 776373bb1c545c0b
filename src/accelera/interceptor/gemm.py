"""Matrix products as intercepted calls: by the engine's plans, or by torch's kernel where that is faster."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import numpy as np
import torch

from accelera.chunking import TileChunking
from accelera.engine import MatrixEngine
from accelera.errors import BudgetExceededError, StoreError
from accelera.interceptor.config import PRODUCT_TILE_BYTES, InterceptionConfig
from accelera.interceptor.hooks import original, passing
from accelera.interceptor.router import TiledCall, TileRunner
from accelera.interceptor.tiling import (
    Region,
    ResultLayout,
    TileTarget,
    contiguous_strides,
    nbytes,
    overlaps,
)
from accelera.stores import Store, open_store
from accelera.stores._internal import Layout, OutputStore, parse_dtype

_HALVES = (torch.float16, torch.bfloat16)
_PACKING_BYTES = 8 << 20
"""What torch's libraries keep for the blocks that they pack, and their threads' stacks."""
_LEAST_SIDE = 256
"""Rows and columns of the smallest parts: with fewer, reading the factors again and again takes the time."""
_BAND_BYTES = 1 << 18
"""Bytes of a finished block that are written at a time when a summand is added to it."""
_TYPES = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
}
"""Element types that pieces are computed in."""
_thread = threading.local()


class MatmulSchema(NamedTuple):
    """Meaning of a matrix product's arguments, by the operator's name."""

    family: str
    """The operator that returns a new result, such as ``"addmm"`` for ``"addmm.out"``."""
    added: bool
    """Whether the first argument is added to the product."""
    in_place: bool
    """Whether the first argument is the result as well."""
    ranks: tuple[int, int]
    """Axes of both factors."""


def form_of(name: str) -> MatmulSchema:
    """Return the form of an operator by its name.

    >>> form_of("baddbmm_").family, form_of("mv.out").ranks
    ('baddbmm', (2, 1))
    """
    packet = name.partition(".")[0]
    family = packet.removesuffix("_")
    kind = family.removeprefix("b").removeprefix("add") if family.startswith(("add", "badd")) else family
    ranks = {"mm": (2, 2), "bmm": (3, 3), "mv": (2, 1), "dot": (1, 1)}
    return MatmulSchema(
        family, kind != family, packet.endswith("_"), ranks["bmm" if family == "baddbmm" else kind]
    )


@final
class MatmulCall(TiledCall):
    """``beta * start + alpha * (a @ b)``, or ``a @ b`` alone."""

    __slots__ = (
        *("a", "b", "start", "alpha", "beta", "form"),
        *("op", "device", "looked_bytes", "result_bytes", "temporary_bytes", "given", "shape"),
    )

    def __init__(self, name: str, form: MatmulSchema, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.op, self.form = name, form
        self.start = args[0] if form.added else None
        self.a, self.b = a, b = args[1:3] if form.added else args[:2]
        self.alpha, self.beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
        if len(args) > 3:
            self.beta, self.alpha = (*args[3:], 1)[:2]
        self.given = self.start if form.in_place else kwargs.get("out")
        self.device = a.device
        self.shape = (*a.shape[:-1], *b.shape[2 if b.dim() == 3 else 1 :])
        size = nbytes(self.shape, a.dtype)
        self.looked_bytes = a.nbytes + b.nbytes + size
        given = self.given
        is_given = given is not None and given.shape == self.shape
        self.result_bytes = 0 if is_given else size
        self.temporary_bytes = 0
        if not (a.is_contiguous() and b.is_contiguous()) or (given is not None and not given.is_contiguous()):
            self.temporary_bytes = self._copied_bytes()

    def _copied_bytes(self) -> int:
        """Return what torch copies of matrices that lie neither by rows nor by columns."""
        matrices = [each for each in (self.a, self.b, self.given) if each is not None and each.dim() > 1]
        # A stack is copied matrix by matrix.
        return sum(nbytes(each.shape[-2:], each.dtype) for each in matrices if not lies_plainly(each))

    def unsupported_reason(self) -> str | None:
        """Return why only torch's kernel can compute the call; None if it can be computed in pieces."""
        a, b, given = self.a, self.b, self.given
        if (a.dim(), b.dim()) != self.form.ranks or a.shape[-1] != b.shape[max(0, b.dim() - 2)]:
            return "shapes that do not fit"
        if a.dim() == 3 and a.shape[0] != b.shape[0]:
            return "shapes that do not fit"
        tensors = [each for each in (a, b, self.start, given) if each is not None]
        if any(each.dtype != a.dtype or each.device != a.device for each in tensors):
            return "mixed types or devices"
        if a.dtype not in _TYPES:
            return f"elements of {a.dtype}"
        if not self.shape or 0 in self.shape:
            return "a result of one element or none"
        if given is not None and (
            given.shape != self.shape or overlaps(given, [a, b], element_for_element=False)
        ):
            return "a result given that is resized or shares memory"
        return None if self._can_be_added() else "a summand or factors that do not fit"

    def _can_be_added(self) -> bool:
        if self.start is None:
            return True
        whole = not self.a.is_floating_point() and not self.a.is_complex()
        if whole and not (isinstance(self.alpha, int) and isinstance(self.beta, int)):
            return False
        missing = len(self.shape) - self.start.dim()
        sizes = (1,) * missing + tuple(self.start.shape)
        fits = missing >= 0 and all(size in (1, full) for size, full in zip(sizes, self.shape, strict=True))
        return fits and not (
            self.given is not None and self.given is not self.start and overlaps(self.given, [self.start])
        )

    def wants_pieces(self, config: InterceptionConfig) -> bool:
        """Return whether the call goes in pieces even when it would fit."""
        elsewhere = config.device is not None and config.device != "cpu" and self.device.type == "cpu"
        return elsewhere or config.override.least != "direct"

    def result(self) -> ResultLayout:
        """Return what a new result will be."""
        return ResultLayout(self.shape, contiguous_strides(self.shape), self.a.dtype)

    def fill(self, target: TileTarget, config: InterceptionConfig, budget_bytes: int) -> list[str]:
        """Compute in pieces: by the engine's plan, or by torch's own kernel where that is faster.

        Raises the refusal that asks for least when the budget allows neither. No refusal is kept with its
        traceback, which would hold the factors until garbage is collected.
        """
        ways = [self._fill_by_engine, self._fill_by_kernel]
        if self.a.dtype in _HALVES or self.device.type != "cpu":
            ways.reverse()
        refusals = []
        for fill in ways:
            try:
                return fill(target, config, budget_bytes)
            except BudgetExceededError as refusal:
                refusals.append(refusal.with_traceback(None))
        least = min(refusals, key=lambda refusal: refusal.needed_bytes)
        refusals.clear()
        try:
            raise least
        finally:
            del least

    def _fill_by_engine(self, target: TileTarget, config: InterceptionConfig, budget_bytes: int) -> list[str]:
        """Compute by a plan of the engine; when none fits, raise before anything is computed."""
        engine = _engine(config.device or str(self.device))
        engine.matmul(
            _operand(self.a),
            _operand(self.b),
            _strategy(config, self.a.itemsize),
            out=_output(self, target),
            budget=max(budget_bytes, 1),  # 0 is no budget, and the refusal names the one that is needed
        )
        return list(engine.last_report.fallbacks)

    def _fill_by_kernel(self, target: TileTarget, config: InterceptionConfig, budget_bytes: int) -> list[str]:
        """Compute parts of the result one after the other, for types and devices that torch is faster for."""
        asked = config.override.tile_bytes or PRODUCT_TILE_BYTES
        side = _LEAST_SIDE if config.override.tile_bytes is None else 1
        sizes = _part_sizes(self, budget_bytes, asked, side)
        least = _piece_bytes(self, sizes)
        if least > budget_bytes:
            raise BudgetExceededError(
                f"[{self.op}] the smallest part needs {least} bytes, and {budget_bytes} are left; "
                f"raise the budget to at least {least} bytes",
                needed_bytes=least,
                budget_bytes=budget_bytes,
            )
        return _GemmTiles(self, target).compute(_regions(self.shape, sizes))


def lies_plainly(matrix: torch.Tensor) -> bool:
    """Return whether rows or columns of the last two axes are dense and do not overlap."""
    down, across = matrix.stride()[-2:]
    rows, columns = matrix.shape[-2:]
    return bool((across == 1 and down >= columns) or (down == 1 and across >= rows))


def _engine(device: str) -> MatrixEngine:
    """Return this thread's engine: its report must not be another thread's."""
    engines: dict[str, MatrixEngine] = _thread.__dict__.setdefault("engines", {})
    if device not in engines:
        engines[device] = MatrixEngine(device=device, enable_progress=False)
    return engines[device]


def _strategy(config: InterceptionConfig, itemsize: int) -> TileChunking | None:
    """Return square tiles where the config fixes their size; None lets the planner choose."""
    if config.override.tile_bytes is None:
        return None
    edge = max(1, int((config.override.tile_bytes // itemsize) ** 0.5))
    return TileChunking(tile_size=(edge, edge))


def _output(product: MatmulCall, target: TileTarget) -> Any:
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

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Fill ``out``; return bytes read."""
        with _without_interception():
            moved = self._plain.read(region, out)
        if self._conjugated:
            np.conjugate(out, out=out)
        if self._negated:
            np.negative(out, out=out)
        return moved

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Refuse: factors are only read."""
        raise StoreError("[write] a factor of a product is only read")

    @property
    def layout(self) -> Layout:
        """The tensor's strides."""
        return self._plain.layout


@final
class _BlockSink(OutputStore):
    """Takes finished blocks of ``a @ b`` and puts ``beta * start + alpha * block``."""

    name = "result"
    tier = "ram"

    def __init__(self, product: MatmulCall, target: TileTarget) -> None:
        self.shape, self.dtype = target.shape, parse_dtype(target.dtype)
        self._target = target
        self._start = None if product.start is None or product.beta == 0 else product.start.detach()
        if self._start is not None:
            self._start = self._start.expand(target.shape)
        self._alpha, self._beta = product.alpha, product.beta

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        """Refuse: blocks are written once."""
        raise StoreError("[read] the result of an intercepted product is only written")

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        """Put one block, band by band; return its bytes."""
        with _without_interception():
            self._put(region, _as_tensor(data, self._target.dtype), data.nbytes)
        return data.nbytes

    def _put(self, region: Region, block: torch.Tensor, size: int) -> None:
        if self._start is None and self._alpha == 1:
            self._target.put(region, block)
            return
        for band, part in _bands(region, size):
            self._target.put(band, self._with_summand(band, block[part]))

    def _with_summand(self, region: Region, block: torch.Tensor) -> torch.Tensor:
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
def _without_interception() -> Iterator[None]:
    """Switch interception and autograd off in an engine thread, as they are off in the caller's."""
    with passing(), torch.inference_mode():
        yield


def _as_tensor(data: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor over a block's memory, bfloat16 included."""
    if dtype == torch.bfloat16:
        return torch.from_numpy(data.view(np.int16)).view(dtype)
    return torch.from_numpy(data)


def _bands(region: Region, size: int) -> list[tuple[Region, tuple[slice, ...]]]:
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


@final
class _GemmTiles(TileRunner):
    """The parts of a product, computed by torch's kernel into memory that all of them share.

    With memory of its own for each the heap would grow by nearly all of them.
    """

    def __init__(self, product: MatmulCall, target: TileTarget) -> None:
        super().__init__(product.device)
        self._product, self._target = product, target
        self._scratch: torch.Tensor | None = None

    def axes(self, region: Region) -> Sequence[int]:
        return sorted(range(len(region)), key=lambda axis: region[axis].start - region[axis].stop)

    def release(self) -> None:
        self._scratch = None

    def at_once(self, region: Region) -> None:
        arguments, options = self._arguments_of(region)
        piece = self._piece([part.stop - part.start for part in region])
        original(f"{self._product.form.family}.out")(*arguments, **options, out=piece)
        self._target.put(region, piece)

    def on_cpu(self, region: Region) -> None:
        arguments, options = self._arguments_of(region)
        there = [each.cpu() for each in arguments]
        self._target.put(region, original(self._product.form.family)(*there, **options))

    def _arguments_of(self, region: Region) -> tuple[list[torch.Tensor], dict[str, Any]]:
        product = self._product
        rows, columns = region[: product.a.dim() - 1], region[product.a.dim() - 1 :]
        of_b: Region = (*(region[:1] if product.a.dim() == 3 else ()), slice(None), *columns)
        factors = [product.a[rows], product.b[of_b]]
        if product.start is None:
            return factors, {}
        start = product.start.expand(product.shape)[region]
        return [start, *factors], {"beta": product.beta, "alpha": product.alpha}

    def _piece(self, shape: list[int]) -> torch.Tensor:
        count = math.prod(shape)
        if self._scratch is None or self._scratch.numel() < count:
            self._scratch = None
            self._scratch = torch.empty(count, dtype=self._product.a.dtype, device=self._product.device)
        return self._scratch[:count].view(shape)


def _part_sizes(product: MatmulCall, budget_bytes: int, asked: int, side: int) -> list[int]:
    """Return the sides of the parts: as large as the budget allows, but no side cut below ``side``."""
    sizes = list(product.shape)
    stacked = len(sizes) == 3

    def is_large() -> bool:
        return math.prod(sizes) * product.a.itemsize > asked or _piece_bytes(product, sizes) > budget_bytes

    while is_large():
        if stacked and sizes[0] > 1:
            sizes[0] = -(-sizes[0] // 2)
            continue
        longest = max(range(stacked, len(sizes)), key=lambda axis: sizes[axis])
        if sizes[longest] <= side:
            break
        sizes[longest] = max(side, -(-sizes[longest] // 2))
    return sizes


def _piece_bytes(product: MatmulCall, sizes: tuple[int, ...] | list[int]) -> int:
    """Bound what one piece takes: itself twice, and both factors' parts, which the kernel packs."""
    depth: int = product.a.shape[-1]
    stack = sizes[0] if len(sizes) == 3 else 1
    rows: int = sizes[product.a.dim() - 2]
    columns: int = sizes[-1] if product.b.dim() > 1 else 1
    itemsize: int = product.a.itemsize
    return _PACKING_BYTES + (2 * stack * rows * columns + rows * depth + columns * depth) * itemsize


def _regions(shape: tuple[int, ...], sizes: list[int]) -> Iterator[Region]:
    """Yield the pieces of a result of ``shape``, row by row."""
    spans = [
        [slice(start, min(start + size, full)) for start in range(0, full, size)]
        for full, size in zip(shape, sizes, strict=True)
    ]
    return itertools.product(*spans)
