"""Losses as modules: functions of `functional`, with their options as attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelera.errors import ArgumentError
from accelera.tensora import functional
from accelera.tensora.core import Tensor
from accelera.tensora.nn.module import Module


class _Loss(Module):
    """Loss whose options are attributes of the same names."""

    function: Any
    options: tuple[str, ...] = ()

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("none", "mean", "sum", "batchmean"):
            raise ArgumentError(
                f"[{type(self).__name__}] reduction={reduction!r}; give 'none', 'mean' or 'sum'"
            )
        self.reduction = reduction

    def forward(self, *tensors: Any) -> Tensor:
        """Return the loss of an input and a target; some losses take more tensors."""
        options = {name: getattr(self, name) for name in self.options}
        return type(self).function(*tensors, reduction=self.reduction, **options)


class L1Loss(_Loss):
    """Absolute difference."""

    function = functional.l1_loss


class MSELoss(_Loss):
    """Squared difference."""

    function = functional.mse_loss


class SmoothL1Loss(_Loss):
    """Squared difference up to `beta`, absolute beyond."""

    function = functional.smooth_l1_loss
    options = ("beta",)

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta


class HuberLoss(_Loss):
    """Half the squared difference up to `delta`, linear beyond (P. Huber 1964)."""

    function = functional.huber_loss
    options = ("delta",)

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta


class SoftMarginLoss(_Loss):
    """``log(1 + exp(-target * input))`` for targets of 1 and -1."""

    function = functional.soft_margin_loss


class MultiLabelMarginLoss(_Loss):
    """Hinge loss of several classes of each sample."""

    function = functional.multilabel_margin_loss


class HingeEmbeddingLoss(_Loss):
    """The input for targets of 1, ``max(0, margin - input)`` for -1."""

    function = functional.hinge_embedding_loss
    options = ("margin",)

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin


class MarginRankingLoss(_Loss):
    """``max(0, -target * (input1 - input2) + margin)``."""

    function = functional.margin_ranking_loss
    options = ("margin",)

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin


class CosineEmbeddingLoss(_Loss):
    """Cosine distance for targets of 1, cosine similarity above `margin` for -1."""

    function = functional.cosine_embedding_loss
    options = ("margin",)

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin


class KLDivLoss(_Loss):
    """Kullback-Leibler divergence of a target from an input of logarithms."""

    function = functional.kl_div
    options = ("log_target",)

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target


class PoissonNLLLoss(_Loss):
    """Negative log likelihood of a Poisson distribution, up to a constant unless `full`."""

    function = functional.poisson_nll_loss
    options = ("log_input", "full", "eps")

    def __init__(
        self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.log_input, self.full, self.eps = log_input, full, eps


class GaussianNLLLoss(_Loss):
    """Negative log likelihood of normal distributions, of means, targets and variances."""

    function = functional.gaussian_nll_loss
    options = ("full", "eps")

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full, self.eps = full, eps


class _WeightedLoss(_Loss):
    """Loss with a weight of each class or element, which is a buffer."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)


class NLLLoss(_WeightedLoss):
    """Negative of the input at each target's class, of logarithms of probabilities.

    Parameters
    ----------
    weight
        Of each class.
    ignore_index
        Target that does not count.
    reduction
        ``"none"``, ``"mean"`` or ``"sum"``.

    """

    function = functional.nll_loss
    options = ("weight", "ignore_index")

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index


class CrossEntropyLoss(_WeightedLoss):
    """Cross entropy of classes, of their logits.

    Parameters
    ----------
    weight
        Of each class.
    ignore_index
        Target that does not count.
    reduction
        ``"none"``, ``"mean"`` or ``"sum"``.
    label_smoothing
        Share of the target that all classes have in common.

    """

    function = functional.cross_entropy
    options = ("weight", "ignore_index", "label_smoothing")

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing


class BCELoss(_WeightedLoss):
    """Binary cross entropy of probabilities."""

    function = functional.binary_cross_entropy
    options = ("weight",)


class BCEWithLogitsLoss(_WeightedLoss):
    """Binary cross entropy of logits; `pos_weight` weighs the positive targets of each class."""

    function = functional.binary_cross_entropy_with_logits
    options = ("weight", "pos_weight")

    def __init__(
        self, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None
    ) -> None:
        super().__init__(weight, reduction)
        self.register_buffer("pos_weight", pos_weight)


class MultiLabelSoftMarginLoss(_WeightedLoss):
    """Binary cross entropy of logits, averaged over the classes."""

    function = functional.multilabel_soft_margin_loss
    options = ("weight",)


class MultiMarginLoss(_WeightedLoss):
    """Hinge loss of one class of each sample, to the power `p`."""

    function = functional.multi_margin_loss
    options = ("p", "margin", "weight")

    def __init__(
        self, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__(weight, reduction)
        self.p, self.margin = p, margin


class CTCLoss(_Loss):
    """Negative log likelihood of labels whose places in time are not known (A. Graves et al. 2006)."""

    function = functional.ctc_loss
    options = ("blank", "zero_infinity")

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction)
        self.blank, self.zero_infinity = blank, zero_infinity


class TripletMarginLoss(_Loss):
    """``max(0, d(anchor, positive) - d(anchor, negative) + margin)``."""

    function = functional.triplet_margin_loss
    options = ("margin", "p", "eps", "swap")

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap


class TripletMarginWithDistanceLoss(_Loss):
    """`TripletMarginLoss` with a distance of the user's own."""

    function = functional.triplet_margin_with_distance_loss
    options = ("distance_function", "margin", "swap")

    def __init__(
        self,
        *,
        distance_function: Callable[[Any, Any], Any] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.distance_function, self.margin, self.swap = distance_function, margin, swap
