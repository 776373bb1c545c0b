"""Dataflow of a trace: operations by the way a fusing compiler treats each, and the values they pass on.

Each write makes a value, each step reads values; phases separate the graphs. The kinds of operations follow
PyTorch's inductor: products, convolutions and attention are calls into libraries and stay as they are;
pointwise operations and reductions become loops, which merge; views cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from accelera.trace import Kind, Trace


class OpKind(Enum):
    """How an operation is compiled."""

    LIBRARY = "library"
    """A call: products, convolutions, attention. Nothing merges with it."""
    POINTWISE = "pointwise"
    """A loop over its output, one element at a time."""
    CONSTANT = "constant"
    """Known without reading: becomes part of the loops that use it."""
    FULL_REDUCTION = "full reduction"
    """A loop that reduces everything to one number; takes in the pointwise loops before it."""
    ROW_REDUCTION = "row reduction"
    """A loop that reduces the fastest axis; merges with loops over the same elements."""
    COLUMN_REDUCTION = "column reduction"
    """A loop that reduces the slow axes; merges with others that read the same elements."""
    ROW_AND_COLUMN = "row and column reduction"
    """One loop of each kind: the gradient of a layer norm."""
    COLUMN_THEN_POINTWISE = "column reduction, then pointwise"
    """Statistics first, then a loop that uses them: batch norm and its gradient."""
    VIEW = "view"
    """No loop, no bytes."""
    OPAQUE = "opaque"
    """A call nothing is known about: sorting, scattering, a kernel of one's own."""


_LIBRARY = """mm addmm bmm baddbmm matmul linear mv addmv dot einsum addbmm grouped_mm scaled_mm conv1d
conv2d conv3d convolution convolution_backward convolution_overrideable mkldnn_linear mkldnn_convolution
scaled_dot_product_attention attention attention_backward ffn expert router projection conv int_mm"""
_LIBRARY_PREFIXES = ("scaled_dot_product_", "flash_attention", "efficient_attention", "cudnn_convolution")
_VIEWS = """view reshape unsafe_view transpose permute t expand expand_as slice select unsqueeze squeeze
as_strided detach alias split split_with_sizes chunk unbind view_as narrow flatten unflatten
movedim swapaxes view_as_real view_as_complex real imag diagonal unfold reshape_alias"""
_CONSTANTS = """full full_like zeros zeros_like ones ones_like empty empty_like empty_strided new_zeros
new_ones new_full new_empty new_empty_strided arange scalar_tensor fill zero eye tril_indices linspace
lift_fresh"""
_POINTWISE = """add sub rsub mul div true_divide floor_divide remainder fmod pow neg abs sign exp exp2
expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos tan tanh asin acos atan atan2 sinh cosh
sigmoid log_sigmoid_forward logit erf erfc relu relu6 leaky_relu elu selu celu gelu silu mish softplus
hardtanh hardsigmoid hardswish threshold clamp clamp_min clamp_max clip minimum maximum where masked_fill
lerp addcmul addcdiv fma round floor ceil trunc frac eq ne lt le gt ge logical_not logical_and logical_or
logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor isnan isinf isfinite copy clone contiguous to
to_copy _to_copy type_as copysign nan_to_num polar heaviside tril triu cat stack repeat constant_pad_nd
flip roll index index_select gather embedding take_along_dim native_dropout dropout
native_dropout_backward bernoulli rand_like randn_like rand randn uniform normal max_pool2d_with_indices
max_pool2d avg_pool2d adaptive_avg_pool2d upsample_nearest2d upsample_bilinear2d avg_pool2d_backward
upsample_nearest2d_backward pixel_shuffle select_backward slice_backward glu glu_backward pad activation
norm_apply nll_loss_backward bucketize one_hot mse_loss_backward add_relu addr"""
_ROW_REDUCTIONS = """sum mean amax amin max min prod var var_mean std norm linalg_vector_norm logsumexp
softmax log_softmax softmax_backward_data log_softmax_backward_data layer_norm native_layer_norm rms_norm
fused_rms_norm native_group_norm group_norm nll_loss_forward nll_loss cross_entropy mse_loss argmax argmin
any all count_nonzero safe_softmax aminmax l1_loss smooth_l1_loss normalization"""
_BATCH_NORMS = """native_batch_norm native_batch_norm_backward batch_norm cudnn_batch_norm
native_batch_norm_legit native_batch_norm_legit_functional batch_norm_backward batch_norm_with_update
cudnn_batch_norm_backward"""
_BOTH = "native_layer_norm_backward fused_rms_norm_backward native_group_norm_backward layer_norm_backward"

_KIND_OF = {
    name: kind
    for kind, names in (
        (OpKind.POINTWISE, _POINTWISE),
        (OpKind.LIBRARY, _LIBRARY),
        (OpKind.VIEW, _VIEWS),
        (OpKind.CONSTANT, _CONSTANTS),
        (OpKind.ROW_REDUCTION, _ROW_REDUCTIONS),
        (OpKind.COLUMN_THEN_POINTWISE, _BATCH_NORMS),
        (OpKind.ROW_AND_COLUMN, _BOTH),
    )
    for name in names.split()
}


@lru_cache(maxsize=4096)
def base_name(op: str) -> str:
    """Return the operation's own name, without namespace, overload, or the mark of an in-place variant.

    >>> base_name("aten.add_.Tensor"), base_name("aten._softmax.default"), base_name("_foreach_mul_")
    ('add', 'softmax', 'mul')
    """
    words = re.split(r"::|\.", op.strip().lower())
    name = words[1] if len(words) > 1 and words[0] in {"aten", "prims", "accelera"} else words[0]
    return name.removeprefix("_foreach_").strip("_") or op


@lru_cache(maxsize=4096)
def kind_of(op: str) -> OpKind:
    """Return how ``op`` is compiled; ``OPAQUE`` when nothing is known of it."""
    name = base_name(op)
    if name in _KIND_OF:
        return _KIND_OF[name]
    if name.startswith(_LIBRARY_PREFIXES):
        return OpKind.LIBRARY
    if name.endswith("_backward") and kind_of(name.removesuffix("_backward")) is OpKind.POINTWISE:
        return OpKind.POINTWISE
    return OpKind.OPAQUE


FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"

_ITEMSIZES = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "bool": 1}


@dataclass
class TracedValue:
    """The contents of a buffer between two writes."""

    buffer: int
    nbytes: int
    elements: int
    producer: int
    """Step that wrote it; -1 when it existed before the trace."""
    born: int = 0
    """Event that wrote it."""
    consumers: list[int] = field(default_factory=list)
    """Steps that read it, in order."""
    stays: bool = False
    """Whether it is the buffer's last contents and is never freed: a result."""
    dies: int = 0
    """Event of the trace that frees or overwrites its buffer; the number of events if none does."""


@dataclass
class TracedOperation:
    """One step of the trace, as a compiler sees it."""

    index: int
    op: str
    kind: OpKind
    phase: str
    flops: float
    reads: list[int] = field(default_factory=list)
    """Values read."""
    writes: list[int] = field(default_factory=list)
    """Values made."""
    read_bytes: int = 0
    written_bytes: int = 0
    domain: int = 0
    """Elements of the loop that computes it: of its largest result, of its largest operand if it reduces."""
    outer: int = 0
    """Elements of its largest result."""

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def runs(self) -> bool:
        """Whether it is launched when the program runs as traced."""
        return self.kind is not OpKind.VIEW and self.nbytes > 0


@dataclass(frozen=True)
class Dataflow:
    """Operations and the values between them."""

    operations: Sequence[TracedOperation]
    values: Sequence[TracedValue]

    def producers(self, operation: TracedOperation) -> Iterator[int]:
        """Yield the steps whose results ``operation`` reads."""
        for value in operation.reads:
            if self.values[value].producer >= 0:
                yield self.values[value].producer


def dataflow_of(trace: Trace) -> Dataflow:
    """Return the dataflow of a trace."""
    phases = phases_of(trace)
    operations = [
        TracedOperation(index, op, kind_of(op), phase, flops)
        for index, (op, phase, flops) in enumerate(zip(trace.ops, phases, trace.flops.tolist(), strict=True))
    ]
    values = _Values(trace)
    events = zip(trace.buffer.tolist(), trace.kind.tolist(), trace.step.tolist(), strict=True)
    for event, (buffer, kind, step) in enumerate(events):
        if kind == Kind.READ:
            values.read(buffer, operations[step])
        elif kind in (Kind.WRITE, Kind.FREE):
            values.end(buffer, event)
            if kind == Kind.WRITE:
                values.write(buffer, operations[step], event)
    values.close(len(trace))
    for operation in operations:
        _describe(operation, values.made)
    return Dataflow(operations, values.made)


def phases_of(trace: Trace) -> list[str]:
    """Return per step ``forward``, ``backward`` or ``optimizer``.

    Backward begins with the first step that writes a gradient or is named ``…_backward``, the optimizer with
    the first that touches its state; after it the next iteration's forward begins.
    """
    roles = np.array(trace.roles, dtype=object)
    touched = roles[trace.buffer] if len(trace) else roles
    state = _steps_where(trace, (touched == "optimizer_state") & trace.is_access)
    gradient = _steps_where(trace, (touched == "gradient") & (trace.kind == Kind.WRITE))
    starts = set(trace.meta.get("iterations", ()))
    phase, phases = FORWARD, []
    for step, op in enumerate(trace.ops):
        if step in starts:
            phase = FORWARD
        if step in state:
            phase = OPTIMIZER
        elif phase == FORWARD and (step in gradient or base_name(op).endswith("_backward")):
            phase = BACKWARD
        phases.append(phase)
    return phases


def _steps_where(trace: Trace, chosen: NDArray[np.bool_]) -> set[int]:
    return set(trace.step[chosen].tolist())


class _Values:
    """The values made so far and which of them each buffer holds."""

    def __init__(self, trace: Trace) -> None:
        self.made: list[TracedValue] = []
        self.current: dict[int, int] = {}
        self._sizes = trace.size_bytes.tolist()
        self._elements = [
            size // _itemsize(dtype) for size, dtype in zip(self._sizes, trace.dtypes, strict=True)
        ]

    def read(self, buffer: int, operation: TracedOperation) -> None:
        value = self.current.get(buffer)
        if value is None:
            value = self._make(buffer, -1)
        if value not in operation.reads:
            operation.reads.append(value)
            self.made[value].consumers.append(operation.index)

    def write(self, buffer: int, operation: TracedOperation, event: int) -> None:
        operation.writes.append(self._make(buffer, operation.index, event))

    def end(self, buffer: int, event: int) -> None:
        value = self.current.pop(buffer, None)
        if value is not None:
            self.made[value].dies = event

    def close(self, event: int) -> None:
        for value in self.current.values():
            self.made[value].stays, self.made[value].dies = True, event

    def _make(self, buffer: int, producer: int, event: int = 0) -> int:
        self.made.append(TracedValue(buffer, self._sizes[buffer], self._elements[buffer], producer, event))
        self.current[buffer] = len(self.made) - 1
        return len(self.made) - 1


def _itemsize(dtype: str) -> int:
    if dtype in _ITEMSIZES:
        return _ITEMSIZES[dtype]
    try:
        return np.dtype(dtype).itemsize if dtype else 1
    except TypeError:
        return 1


def _describe(operation: TracedOperation, values: Sequence[TracedValue]) -> None:
    """Fill in sizes, and what only they can tell of the operation's kind."""
    reads, writes = [values[v] for v in operation.reads], [values[v] for v in operation.writes]
    operation.read_bytes = sum(value.nbytes for value in reads)
    operation.written_bytes = sum(value.nbytes for value in writes)
    operation.outer = max((value.elements for value in writes), default=0)
    largest = max((value.elements for value in reads), default=0)
    changed = {value.buffer for value in reads}
    made = sum(value.nbytes > 0 and value.buffer not in changed for value in writes)
    operation.kind = _kind_by_size(operation, largest, made)
    loops = operation.kind in (OpKind.POINTWISE, OpKind.CONSTANT)
    operation.domain = operation.outer if loops else max(largest, operation.outer)


def _kind_by_size(operation: TracedOperation, largest: int, made: int) -> OpKind:
    if operation.kind is OpKind.ROW_REDUCTION and operation.outer < largest:
        if operation.outer == 1:
            return OpKind.FULL_REDUCTION
        # A sum that makes something smaller on the way back is a gradient of what was broadcast.
        return OpKind.COLUMN_REDUCTION if operation.phase == BACKWARD else operation.kind
    if operation.kind is OpKind.COLUMN_THEN_POINTWISE and made == 1:
        return OpKind.POINTWISE
    return operation.kind
