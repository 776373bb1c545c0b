"""PyTorch's own samples of operators, run with and without interception."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from tests.torch_samples import operator_infos, sample_inputs

_NAMES = """
__rmatmul__ __rpow__ abs add addbmm addmm addmv addr baddbmm bmm corrcoef cov div dot einsum exp inner
linalg.matrix_power linalg.multi_dot linalg.vecdot log log_softmax matmul maximum minimum mm mul mv neg
nn.functional.bilinear nn.functional.cross_entropy nn.functional.gelu nn.functional.layer_norm
nn.functional.linear nn.functional.multi_head_attention_forward nn.functional.relu
nn.functional.scaled_dot_product_attention nn.functional.silu pow sigmoid softmax sqrt sub tanh tensordot
vdot where
"""
OPERATORS = tuple(_NAMES.split())
"""Those that are intercepted, and some that torch composes of them."""


class Sample(NamedTuple):
    """One call that PyTorch tests an operator with."""

    call: Callable[..., Any]
    """Takes the tensors alone."""
    tensors: list[torch.Tensor]
    text: str


def samples(name: str, dtype: torch.dtype, *, gradients: bool = False, most: int = 6) -> Iterator[Sample]:
    """Yield at most ``most`` samples of each variant of an operator, spread over all that there are."""
    for info in operator_infos()[name]:
        known = info.supported_backward_dtypes("cpu") if gradients else info.supported_dtypes("cpu")
        if dtype not in known or (gradients and not info.supports_autograd):
            continue
        every = [each for each in sample_inputs(info, dtype, requires_grad=gradients) if _is_repeatable(each)]
        for each in every[:: -(-len(every) // most) or 1]:
            yield _sample(info, each)


def _is_repeatable(sample: Any) -> bool:
    """Whether a sample has the same result each time: attention draws what it drops in its own order."""
    return not sample.kwargs.get("dropout_p")


def _sample(info: Any, sample: Any) -> Sample:
    """Return the sample, attention by the composition that is intercepted: fused kernels keep no scores."""
    leaves, form = pytree.tree_flatten((sample.input, *sample.args))
    places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for at, tensor in zip(places, tensors, strict=True):
            filled[at] = tensor
        with sdpa_kernel(SDPBackend.MATH):
            return info.op(*pytree.tree_unflatten(filled, form), **sample.kwargs)

    shapes = [tuple(leaves[at].shape) for at in places]
    return Sample(call, [leaves[at] for at in places], f"{info.formatted_name} {shapes} {sample.kwargs}")


def outputs(result: Any) -> list[torch.Tensor]:
    """Return the tensors of a result."""
    return [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]


def significant_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of the axes that have more than one element; none for an empty tensor."""
    if not tensor.numel():
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
