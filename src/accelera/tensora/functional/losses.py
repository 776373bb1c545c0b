"""Losses. Each has a `reduction`: ``"mean"``, ``"sum"`` or ``"none"``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from accelera.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from accelera.tensora import dtypes
from accelera.tensora.amp import computes_in
from accelera.tensora.core import Tensor, native
from accelera.tensora.functional.layers import pairwise_distance


def _reduced(loss: Tensor, reduction: str, name: str) -> Tensor:
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise ArgumentError(f"[{name}] reduction={reduction!r}; give 'mean', 'sum' or 'none'")
    total = native.sum(loss)
    return total if reduction == "sum" else total / float(loss.size) if loss.size else total * math.nan


def _hinge(x: Tensor) -> Tensor:
    """Return `x` limited to at least 0; unlike that of `relu`, its gradient at 0 is 1."""
    return native.clip(x, 0.0, math.inf)


def _same_shapes(name: str, input: Tensor, target: Tensor) -> None:
    if tuple(input.shape) != tuple(target.shape):
        raise ShapeError(f"[{name}] an input of shape {input.shape} and a target of shape {target.shape}")


def _as_rows(input: Tensor) -> Tensor:
    """Input of shape (N, C) as it is; (C,) and () as one row."""
    return native.reshape(input, (-1, input.shape[-1] if input.ndim else 1))


# --- classes ----------------------------------------------------------------------------------------------


@computes_in("float32")
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Negative log likelihood of classes under the softmax of the input.

    Parameters
    ----------
    input
        Logits of shape (C,), (N, C) or (N, C, ...), of a real floating-point type.
    target
        Classes, as integers of the input's shape without C; or probabilities of its shape.
    weight
        Of shape (C,): factor of each class.
    ignore_index
        A class that counts for nothing.
    reduction
        The mean is weighted: over the weights of the targets.
    label_smoothing
        Share of the target that is spread evenly over all classes (C. Szegedy et al. 2016).

    Raises
    ------
    IndexError
        If a class is out of range.
    ValueError
        If shapes do not fit.

    """
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(f"[cross_entropy] label_smoothing={label_smoothing}; give a number from 0 to 1")
    axis = 0 if input.ndim == 1 else 1
    if input.ndim == 0:
        raise ShapeError("[cross_entropy] a 0-d input; give (C,), (N, C) or (N, C, ...)")
    if target.dtype in dtypes.INEXACT:
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    shape = (*input.shape[:axis], *input.shape[axis + 1 :])
    if tuple(target.shape) != shape:
        raise ShapeError(
            f"[cross_entropy] classes of shape {target.shape} for logits of shape {input.shape}; give {shape}"
        )
    if target.dtype not in dtypes.INTEGERS:
        raise DTypeError(f"[cross_entropy] a target of type {target.dtype}; give integers or probabilities")
    classes = input.shape[axis]
    rows = input if input.ndim <= 2 else native.permute(input, (0, *range(2, input.ndim), 1))
    rows = native.reshape(rows, (target.size, classes))
    flat = native.reshape(native.cast(target, dtypes.int64), (target.size,))
    weight = None if weight is None else weight.detach()
    losses, weights = native.cross_entropy(rows, flat, weight, ignore_index, label_smoothing)
    if reduction == "mean":
        found = native.sum(losses) / native.sum(weights.detach())
    else:
        found = _reduced(native.reshape(losses, shape), reduction, "cross_entropy")
    return native.cast(found, input.dtype)


def _soft_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    """`cross_entropy` with probabilities of classes."""
    _same_shapes("cross_entropy", input, target)
    axis = 0 if input.ndim == 1 else 1
    classes = input.shape[axis]
    if smoothing:
        target = target * (1 - smoothing) + smoothing / classes
    losses = -native.log_softmax(input, axis) * target
    if weight is not None:
        losses = losses * native.reshape(weight, (-1, *[1] * (input.ndim - 1 - axis)))
    if reduction == "mean":
        return native.sum(losses) / float(max(input.size // max(classes, 1), 1))
    return _reduced(native.sum(losses, axis, False), reduction, "cross_entropy")


@computes_in("float32")
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Negative log likelihood of classes, from logarithms of probabilities.

    The arguments are those of `cross_entropy`, of which it is the second half.
    """
    axis = 0 if input.ndim == 1 else 1
    shape = (*input.shape[:axis], *input.shape[axis + 1 :])
    if tuple(target.shape) != shape:
        raise ShapeError(
            f"[nll_loss] classes of shape {target.shape} for an input of shape {input.shape}; give {shape}"
        )
    kept = native.not_equal(target, ignore_index)
    safe = native.where(kept, target, 0)
    if not native.holds(native.all(native.logical_and(safe >= 0, safe < input.shape[axis]))):
        raise IndexingError(f"[nll_loss] a class is not in 0 to {input.shape[axis] - 1}")
    places = native.reshape(safe, (*shape[:axis], 1, *shape[axis:]))
    own = native.reshape(native.take_along_axis(input, places, axis), shape)
    weights = native.cast(kept, input.dtype)
    if weight is not None:
        weights = weights * native.take(weight, safe, 0)
    # An ignored element may be infinite, and infinity times 0 is NaN.
    losses = -native.where(kept, own, 0) * weights
    if reduction == "mean":
        return native.sum(losses) / native.sum(weights)
    return _reduced(losses, reduction, "nll_loss")


@computes_in("float32")
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Mean over the other classes of ``max(0, margin - x[target] + x[class]) ** p``; input (N, C) or (C,)."""
    if p not in (1, 2):
        raise ArgumentError(f"[multi_margin_loss] p={p}; give 1 or 2")
    rows = _as_rows(input)
    places = native.reshape(native.cast(target, dtypes.int64), (-1, 1))
    if places.shape[0] != rows.shape[0]:
        raise ShapeError(
            f"[multi_margin_loss] classes of shape {target.shape} for an input of shape {input.shape}"
        )
    own = native.take_along_axis(rows, places, 1)
    losses = native.relu(rows - own + margin) ** p
    if weight is not None:
        losses = losses * native.reshape(native.take(weight, places, 0), (-1, 1))
    others = native.not_equal(native.arange(rows.shape[1]), places)
    losses = native.sum(native.where(others, losses, 0), 1, False) / float(rows.shape[1])
    return _reduced(native.reshape(losses, target.shape), reduction, "multi_margin_loss")


@computes_in("float32")
def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Mean of ``max(0, 1 - x[label] + x[other])`` over pairs of a label and another class.

    Parameters
    ----------
    input
        Of shape (N, C) or (C,).
    target
        Labels first, then -1, in a tensor of the same shape.
    reduction
        See the module.

    """
    _same_shapes("multilabel_margin_loss", input, target)
    rows = _as_rows(input)
    labels = native.reshape(native.cast(target, dtypes.int64), rows.shape)
    n, classes = rows.shape
    valid = native.cumprod(native.cast(labels >= 0, dtypes.int64), 1) > 0
    safe = native.where(valid, labels, 0)
    counted = native.cast(valid, rows.dtype)
    hits = native.scatter_add(native.full((n, classes), 0, rows.dtype), safe, counted, 1)
    own = native.reshape(native.take_along_axis(rows, safe, 1), (n, classes, 1))
    pairs = native.relu(1.0 - own + native.reshape(rows, (n, 1, classes)))
    wanted = native.reshape(counted, (n, classes, 1)) * native.cast(
        native.reshape(hits, (n, 1, classes)) == 0, rows.dtype
    )
    losses = native.sum(pairs * wanted, (1, 2), False) / float(classes)
    return _reduced(native.reshape(losses, input.shape[:-1]), reduction, "multilabel_margin_loss")


def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """`binary_cross_entropy_with_logits`, averaged over the classes of each row."""
    losses = binary_cross_entropy_with_logits(input, target, reduction="none")
    if weight is not None:
        losses = losses * weight
    losses = native.sum(losses, -1, False) / float(input.shape[-1])
    return _reduced(losses, reduction, "multilabel_soft_margin_loss")


# --- distances from numbers -------------------------------------------------------------------------------


@computes_in("float32")
def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Squared difference."""
    _same_shapes("mse_loss", input, target)
    return _reduced(native.square(input - target), reduction, "mse_loss")


@computes_in("float32")
def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Absolute difference."""
    _same_shapes("l1_loss", input, target)
    return _reduced(native.abs(input - target), reduction, "l1_loss")


@computes_in("float32")
def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """``d**2 / (2 beta)`` of an absolute difference d below `beta`, otherwise ``d - beta / 2``."""
    if beta < 0:
        raise ArgumentError(f"[smooth_l1_loss] beta={beta}; give 0 or more")
    if beta == 0:
        return l1_loss(input, target, reduction)
    return huber_loss(input, target, reduction, beta) / beta


@computes_in("float32")
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """``d**2 / 2`` of an absolute difference d below `delta`, otherwise ``delta * (d - delta / 2)``."""
    if delta <= 0:
        raise ArgumentError(f"[huber_loss] delta={delta}; give more than 0")
    _same_shapes("huber_loss", input, target)
    distance = native.abs(input - target)
    near = native.minimum(distance, delta)
    # Apart, for the gradient at an infinite distance: of the product it is 0 times infinity.
    beyond = (distance - 0.5 * delta) * delta
    losses = native.where(native.less(distance, delta), near * near * 0.5, beyond)
    return _reduced(losses, reduction, "huber_loss")


@computes_in("float32")
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Negative log likelihood of Poisson-distributed counts, without ``log(target!)``.

    Parameters
    ----------
    input
        Logarithm of the expected count, or the count itself if not `log_input`.
    target
        Counts.
    log_input, eps
        `eps` keeps the logarithm of an expected count of 0 finite.
    full
        Add Stirling's approximation of ``log(target!)`` for counts above 1.
    reduction
        See the module.

    """
    expected, logarithm = (native.exp(input), input) if log_input else (input, native.log(input + eps))
    losses = expected - target * logarithm
    if full:
        stirling = target * native.log(target) - target + native.log(target * (2 * math.pi)) * 0.5
        losses = losses + native.where(target > 1, stirling, 0)
    return _reduced(losses, reduction, "poisson_nll_loss")


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """``(log(var) + (input - target)**2 / var) / 2``, where `var` counts as at least `eps`.

    Parameters
    ----------
    input, target
        Expected and observed numbers.
    var
        Expected variances: a number, or a tensor that broadcasts with `input`.
    full
        Add ``log(2 pi) / 2``.
    eps, reduction
        See above.

    """
    variance = var if hasattr(var, "dtype") else native.full((), var, input.dtype)
    if not native.holds(native.logical_not(native.any(variance < 0))):
        raise ArgumentError("[gaussian_nll_loss] a negative variance")
    if variance.ndim == input.ndim - 1 and tuple(variance.shape) == tuple(input.shape[:-1]):
        variance = native.reshape(variance, (*variance.shape, 1))
    # The limit has no part in the gradient, so that a variance of 0 can grow.
    short = native.maximum(variance.detach(), eps) - variance.detach()
    variance = variance + short
    losses = (native.log(variance) + native.square(input - target) / variance) * 0.5
    return _reduced(losses + 0.5 * math.log(2 * math.pi) if full else losses, reduction, "gaussian_nll_loss")


# --- probabilities ----------------------------------------------------------------------------------------


@computes_in("float32")
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """``-target * log(input) - (1 - target) * log(1 - input)``, logarithms being at least -100.

    The gradient is finite for probabilities of exactly 0 and 1, as in PyTorch.
    """
    _same_shapes("binary_cross_entropy", input, target)
    if not native.holds(native.all(native.logical_and(input >= 0, input <= 1))):
        raise ArgumentError("[binary_cross_entropy] an input below 0, above 1 or NaN; give probabilities")
    losses = native.binary_cross_entropy(input, target)
    return _reduced(losses if weight is None else losses * weight, reduction, "binary_cross_entropy")


@computes_in("float32")
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """`binary_cross_entropy` of ``sigmoid(input)``; `pos_weight` multiplies its first part."""
    _same_shapes("binary_cross_entropy_with_logits", input, target)
    softplus = native.softplus(-input, 1.0, 40.0)  # -log(sigmoid)
    scale = 1.0 if pos_weight is None else (pos_weight - 1.0) * target + 1.0
    losses = (1.0 - target) * input + softplus * scale
    losses = losses if weight is None else losses * weight
    return _reduced(losses, reduction, "binary_cross_entropy_with_logits")


@computes_in("float32")
def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """``target * (log(target) - input)``: Kullback-Leibler divergence of probabilities.

    Parameters
    ----------
    input
        Logarithms of probabilities.
    target
        Probabilities, or their logarithms if `log_target`.
    reduction
        ``"batchmean"``, the sum divided by the first extent, as well.
    log_target
        See above.

    """
    if log_target:
        losses = native.exp(target) * (target - input)
    else:
        losses = native.xlogy(target, target) - target * input
    if reduction == "batchmean":
        return native.sum(losses) / float(input.shape[0] if input.ndim else 1)
    return _reduced(losses, reduction, "kl_div")


@computes_in("float32")
def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """``log(1 + exp(-target * input))`` of targets -1 and 1."""
    _same_shapes("soft_margin_loss", input, target)
    return _reduced(native.softplus(-target * input, 1.0, 40.0), reduction, "soft_margin_loss")


# --- margins ----------------------------------------------------------------------------------------------


@computes_in("float32")
def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """The input where the target is 1, and ``max(0, margin - input)`` where it is -1."""
    zero = native.full((), 0, input.dtype)
    near = native.where(native.not_equal(target, -1), input, zero)
    far = native.where(native.not_equal(target, 1), _hinge(margin - input), zero)
    return _reduced(near + far, reduction, "hinge_embedding_loss")


@computes_in("float32")
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """``1 - cos`` where the target is 1, and ``max(0, cos - margin)`` where it is -1.

    Parameters
    ----------
    input1, input2
        Of shape (N, D) or (D,).
    target
        Of shape (N,) or (): 1 or -1.
    margin, reduction
        See above.

    """
    _same_shapes("cosine_embedding_loss", input1, input2)
    tiny = 1e-12
    dot = native.sum(input1 * input2, -1, False)
    squares = [native.sum(native.square(x), -1, False) + tiny for x in (input1, input2)]
    cosine = dot / native.sqrt(squares[0] * squares[1])
    zero = native.full((), 0, cosine.dtype)
    near = native.where(native.equal(target, 1), 1.0 - cosine, zero)
    far = native.where(native.equal(target, -1), _hinge(cosine - margin), zero)
    return _reduced(near + far, reduction, "cosine_embedding_loss")


@computes_in("float32")
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """``max(0, margin - target * (input1 - input2))``; 1 wants the first to be larger, -1 the second."""
    _same_shapes("margin_ranking_loss", input1, input2)
    return _reduced(_hinge(-target * (input1 - input2) + margin), reduction, "margin_ranking_loss")


@computes_in("float32")
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, d(anchor, positive) - d(anchor, negative) + margin)`` with p-norms along the last axis.

    Parameters
    ----------
    anchor, positive, negative
        Of shape (N, D) or (D,).
    margin, p, eps, reduction
        See above and `pairwise_distance`.
    swap
        Take the distance of positive and negative where it is the smaller one (V. Balntas et al. 2016).

    """

    def distance(x: Tensor, y: Tensor) -> Tensor:
        return pairwise_distance(x, y, p, eps)

    return triplet_margin_with_distance_loss(
        anchor, positive, negative, distance_function=distance, margin=margin, swap=swap, reduction=reduction
    )


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Any, Any], Any] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` with any distance of two tensors; by default `pairwise_distance`."""
    if margin <= 0:
        raise ArgumentError(f"[triplet_margin_loss] margin={margin}; give more than 0")
    distance = distance_function or pairwise_distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = native.minimum(far, distance(positive, negative))
    return _reduced(_hinge(near - far + margin), reduction, "triplet_margin_loss")
