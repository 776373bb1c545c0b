"""Connectionist temporal classification: the likelihood of labels whose places in time are not known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import dtypes
from accelera.tensora.amp import computes_in
from accelera.tensora.autograd import Function
from accelera.tensora.core import Tensor, native

Lengths = Tensor | Sequence[int]
_NEVER = -math.inf


@computes_in("float32")
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths | int,
    target_lengths: Lengths | int,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Negative log likelihood of labels whose places in time are not known (A. Graves et al. 2006).

    As in PyTorch, gradients are those of logits of which `log_probs` is the `log_softmax`, and there are no
    second ones.

    Parameters
    ----------
    log_probs
        Logarithms of probabilities, of shape (time, batch, classes) or (time, classes).
    targets
        Labels, of shape (batch, longest), or all of them one after the other; of one sample (length,).
    input_lengths, target_lengths
        For each sample: a tensor or a list, or a number for one sample.
    blank
        Class of the blank, which stands for no label.
    reduction
        ``"mean"`` (over the batch, of losses divided by their target's length), ``"sum"`` or ``"none"``.
    zero_infinity
        Count targets that are too long for their input, whose loss is infinite, as zero.

    Raises
    ------
    ValueError
        If shapes, lengths, labels or options do not fit.

    """
    if reduction not in ("none", "mean", "sum"):
        raise ArgumentError(f"[ctc_loss] reduction={reduction!r}; give 'mean', 'sum' or 'none'")
    single = log_probs.ndim == 2
    if single:
        log_probs = native.reshape(log_probs, (log_probs.shape[0], 1, log_probs.shape[1]))
    if log_probs.ndim != 3 or not 0 <= blank < log_probs.shape[2]:
        raise ShapeError(
            f"[ctc_loss] log_probs of shape {log_probs.shape} and blank={blank}; give (time, batch, classes) "
            "and one of the classes"
        )
    paths = _paths(log_probs, targets, (_as_int_list(input_lengths), _as_int_list(target_lengths)), blank)
    losses = _Likelihood.apply(log_probs, paths, zero_infinity)
    if reduction == "mean":
        longs = native.asarray([max(n, 1) for n in paths.target_lengths], losses.dtype)
        return native.sum(losses / longs) / float(losses.size)
    if reduction == "sum":
        return native.sum(losses)
    return native.reshape(losses, ()) if single else losses


def _as_int_list(lengths: Any) -> list[int]:
    if isinstance(lengths, int):
        return [lengths]
    found = lengths.tolist() if isinstance(lengths, Tensor) else lengths
    return [int(each) for each in found] if isinstance(found, Sequence) else [int(found)]


@dataclass(frozen=True)
class _Paths:
    """Label sequence of each sample with blanks in between, and the lengths of inputs and targets."""

    labels: Any
    """Of shape (batch, 2 longest + 1)."""
    may_skip: Any
    """Mask of positions that a path may reach by skipping the blank before them; shape as `labels`."""
    input_lengths: list[int]
    target_lengths: list[int]

    @property
    def width(self) -> int:
        """Positions of a label sequence, blanks included."""
        return int(self.labels.shape[1])


def _paths(log_probs: Tensor, targets: Tensor, lengths: tuple[list[int], list[int]], blank: int) -> _Paths:
    times, batch, classes = log_probs.shape
    input_lengths, target_lengths = lengths
    if len(input_lengths) != batch or len(target_lengths) != batch:
        raise ArgumentError(
            f"[ctc_loss] {len(input_lengths)} input lengths and {len(target_lengths)} target lengths "
            f"for a batch of {batch}"
        )
    if any(not 0 <= n <= times for n in input_lengths) or min(target_lengths, default=0) < 0:
        raise ArgumentError(
            f"[ctc_loss] input lengths {input_lengths}, target lengths {target_lengths}; give input lengths "
            f"from 0 to {times} and target lengths from 0 on"
        )
    rows = _label_rows(targets, target_lengths)
    if any(not 0 <= label < classes or label == blank for row in rows for label in row):
        raise ArgumentError(f"[ctc_loss] a label is {blank}, the blank, or not in 0 to {classes - 1}")
    width = 2 * max(map(len, rows), default=0) + 1
    spread = [[blank] * width for _ in rows]
    for places, row in zip(spread, rows, strict=True):
        places[1 : 2 * len(row) : 2] = row
    may_skip = [[i > 1 and p[i] not in (blank, p[i - 2]) for i in range(width)] for p in spread]
    return _Paths(
        native.reshape(native.asarray(spread, dtypes.int64), (batch, width)),
        native.reshape(native.asarray(may_skip, dtypes.bool), (batch, width)),
        input_lengths,
        target_lengths,
    )


def _label_rows(targets: Tensor, lengths: list[int]) -> list[list[int]]:
    """Labels of each sample."""
    listed = targets.tolist()
    if targets.ndim == 2:
        if targets.shape[0] != len(lengths) or max(lengths, default=0) > targets.shape[1]:
            raise ShapeError(f"[ctc_loss] targets of shape {targets.shape} for target lengths {lengths}")
        return [row[:n] for row, n in zip(listed, lengths, strict=True)]
    if targets.ndim != 1 or sum(lengths) > len(listed):
        raise ShapeError(f"[ctc_loss] targets of shape {targets.shape} for target lengths {lengths}")
    rows, begin = [], 0
    for n in lengths:
        rows.append(listed[begin : begin + n])
        begin += n
    return rows


class _Likelihood(Function):
    """Losses of a batch, by the forward-backward algorithm on logarithms."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, paths: _Paths, zero_infinity: bool) -> Tensor:
        """Return the loss of each sample."""
        emitted = _label_log_probs(log_probs, paths)
        alphas = _forward_pass(emitted, paths)
        losses = _losses(alphas, paths)
        ctx.save_for_backward(log_probs, emitted, alphas, losses)
        ctx.paths, ctx.zero_infinity = paths, zero_infinity
        return native.where(native.isinf(losses), 0, losses) if zero_infinity else losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, None, None]:
        """Return the gradient of the logarithms: probabilities less how often a class is on a path."""
        log_probs, emitted, alphas, losses = ctx.saved_tensors
        paths: _Paths = ctx.paths
        times, batch, _ = log_probs.shape
        losses = native.reshape(losses, (1, batch, 1))
        both = alphas + _backward_pass(emitted, paths)
        on_path = native.where(native.isfinite(both), native.exp(both - emitted + losses), 0)
        labels = native.expand(native.reshape(paths.labels, (1, batch, paths.width)), tuple(both.shape))
        nothing = native.full(tuple(log_probs.shape), 0, log_probs.dtype, log_probs.device)
        found = native.exp(log_probs) - native.scatter_add(nothing, native.contiguous(labels), on_path, 2)
        found = found * native.reshape(grad, (1, batch, 1))
        found = native.where(native.isinf(losses), 0 if ctx.zero_infinity else math.nan, found)
        ends = native.asarray(paths.input_lengths, dtypes.int64)
        runs = native.reshape(native.arange(times), (times, 1)) < native.reshape(ends, (1, batch))
        return native.where(native.reshape(runs, (times, batch, 1)), found, 0), None, None


def _label_log_probs(log_probs: Tensor, paths: _Paths) -> Tensor:
    """Return the log probability of the label at each position, (time, batch, width)."""
    shape = (*log_probs.shape[:2], paths.width)
    labels = native.expand(native.reshape(paths.labels, (1, *shape[1:])), shape)
    return native.take_along_axis(log_probs, native.contiguous(labels), 2)


def _shift_columns(x: Tensor, by: int) -> Tensor:
    """Shift columns by `by` positions to the right (left if negative); the gap has probability 0."""
    rows, width = x.shape
    gap = native.full((rows, min(abs(by), width)), _NEVER, x.dtype)
    kept = x[:, : max(width - by, 0)] if by > 0 else x[:, -by:]
    return native.concat([gap, kept] if by > 0 else [kept, gap], 1)


def _forward_pass(emitted: Tensor, paths: _Paths) -> Tensor:
    """Return alpha: the log probability of all path prefixes that end at a position, (time, batch, width)."""
    times, batch, width = emitted.shape
    first = native.expand(native.reshape(native.arange(width) < 2, (1, width)), (batch, width))
    never = native.full((), _NEVER, emitted.dtype)
    steps: list[Any] = []
    for t in range(times):
        if t == 0:
            steps.append(native.where(first, emitted[0], never))
            continue
        last = steps[-1]
        skipped = native.where(paths.may_skip, _shift_columns(last, 2), never)
        ways = native.logaddexp(native.logaddexp(last, _shift_columns(last, 1)), skipped)
        steps.append(ways + emitted[t])
    return _stacked(steps, emitted)


def _backward_pass(emitted: Tensor, paths: _Paths) -> Tensor:
    """Return beta: the log probability of all path suffixes from a position on, (time, batch, width)."""
    times, batch, width = emitted.shape
    never = native.full((), _NEVER, emitted.dtype)
    places = native.reshape(native.arange(width), (1, width))
    ends = native.reshape(native.asarray(paths.target_lengths, dtypes.int64) * 2, (batch, 1))
    is_end = native.logical_or(places == ends, places == ends - 1)
    last_times = native.reshape(native.asarray(paths.input_lengths, dtypes.int64) - 1, (batch, 1))
    may_skip = native.cast(paths.may_skip, emitted.dtype)
    after = native.full((batch, width), _NEVER, emitted.dtype)
    steps: list[Any] = []
    for t in reversed(range(times)):
        skipped = native.where(_shift_columns(may_skip, -2) == 1, _shift_columns(after, -2), never)
        ways = native.logaddexp(native.logaddexp(after, _shift_columns(after, -1)), skipped)
        ways = native.where(last_times == t, native.where(is_end, 0.0, never), ways)
        after = native.cast(ways, emitted.dtype) + emitted[t]
        steps.append(after)
    return _stacked(steps[::-1], emitted)


def _stacked(steps: list[Any], emitted: Tensor) -> Tensor:
    if not steps:
        return emitted
    return native.concat([native.reshape(each, (1, *emitted.shape[1:])) for each in steps], 0)


def _losses(alphas: Tensor, paths: _Paths) -> Tensor:
    """Return the negative log likelihood: of all paths that end at the last label or the blank after it."""
    losses = []
    for i, (times, n) in enumerate(zip(paths.input_lengths, paths.target_lengths, strict=True)):
        if times == 0:
            losses.append(native.full((1,), 0.0 if n == 0 else math.inf, alphas.dtype))
            continue
        ends = [alphas[times - 1, i, 2 * n]]
        if n:
            ends.append(alphas[times - 1, i, 2 * n - 1])
        total = native.logaddexp(*ends) if n else ends[0]
        losses.append(native.reshape(-total, (1,)))
    return native.concat(losses, 0)
