"""The operators that can be intercepted, one line each; `csrc/torch/operators.def` has the same names."""

from __future__ import annotations

from typing import Literal

from accelera.errors import UnknownNameError

Rule = Literal["product", "pointwise", "attention", "heads"]
"""How the elements of a result follow from the operands' shapes."""

BELOW_AUTOGRAD: dict[str, Rule] = {
    "mm": "product",
    "mm.out": "product",
    "bmm": "product",
    "bmm.out": "product",
    "addmm": "product",
    "addmm.out": "product",
    "addmm_": "product",
    "baddbmm": "product",
    "baddbmm.out": "product",
    "baddbmm_": "product",
    "mv": "product",
    "mv.out": "product",
    "addmv": "product",
    "addmv.out": "product",
    "addmv_": "product",
    "dot": "product",
    "dot.out": "product",
    "add.Tensor": "pointwise",
    "add.out": "pointwise",
    "add_.Tensor": "pointwise",
    "add.Scalar": "pointwise",
    "add.Scalar_out": "pointwise",
    "add_.Scalar": "pointwise",
    "sub.Tensor": "pointwise",
    "sub.out": "pointwise",
    "sub_.Tensor": "pointwise",
    "sub.Scalar": "pointwise",
    "sub.Scalar_out": "pointwise",
    "sub_.Scalar": "pointwise",
    "mul.Tensor": "pointwise",
    "mul.out": "pointwise",
    "mul_.Tensor": "pointwise",
    "mul.Scalar": "pointwise",
    "mul.Scalar_out": "pointwise",
    "mul_.Scalar": "pointwise",
    "div.Tensor": "pointwise",
    "div.out": "pointwise",
    "div_.Tensor": "pointwise",
    "div.Scalar": "pointwise",
    "div.Scalar_out": "pointwise",
    "div_.Scalar": "pointwise",
    "div.Tensor_mode": "pointwise",
    "div.out_mode": "pointwise",
    "div_.Tensor_mode": "pointwise",
    "maximum": "pointwise",
    "maximum.out": "pointwise",
    "minimum": "pointwise",
    "minimum.out": "pointwise",
    "pow.Tensor_Tensor": "pointwise",
    "pow.Tensor_Tensor_out": "pointwise",
    "pow_.Tensor": "pointwise",
    "pow.Tensor_Scalar": "pointwise",
    "pow.Tensor_Scalar_out": "pointwise",
    "pow_.Scalar": "pointwise",
    "pow.Scalar": "pointwise",
    "pow.Scalar_out": "pointwise",
    "exp": "pointwise",
    "exp.out": "pointwise",
    "exp_": "pointwise",
    "log": "pointwise",
    "log.out": "pointwise",
    "log_": "pointwise",
    "sqrt": "pointwise",
    "sqrt.out": "pointwise",
    "sqrt_": "pointwise",
    "tanh": "pointwise",
    "tanh.out": "pointwise",
    "tanh_": "pointwise",
    "sigmoid": "pointwise",
    "sigmoid.out": "pointwise",
    "sigmoid_": "pointwise",
    "relu": "pointwise",
    "relu.out": "pointwise",
    "relu_": "pointwise",
    "gelu": "pointwise",
    "gelu.out": "pointwise",
    "gelu_": "pointwise",
    "silu": "pointwise",
    "silu.out": "pointwise",
    "silu_": "pointwise",
    "neg": "pointwise",
    "neg.out": "pointwise",
    "neg_": "pointwise",
    "abs": "pointwise",
    "abs.out": "pointwise",
    "abs_": "pointwise",
    "where.self": "pointwise",
    "where.self_out": "pointwise",
    "_softmax": "pointwise",
    "_softmax.out": "pointwise",
    "_log_softmax": "pointwise",
    "_log_softmax.out": "pointwise",
    "_softmax_backward_data": "pointwise",
    "_softmax_backward_data.out": "pointwise",
    "_log_softmax_backward_data": "pointwise",
    "_log_softmax_backward_data.out": "pointwise",
}
"""Operators caught at the key of the device, where autograd has done its part."""

ABOVE_AUTOGRAD: dict[str, Rule] = {
    "matmul": "product",
    "matmul.out": "product",
    "scaled_dot_product_attention": "attention",
}
"""Operators that torch composes of others, caught before it does; autograd records what a handler does."""

COMPOSED: dict[str, Rule] = {"_native_multi_head_attention": "heads"}
"""Operators without a gradient, caught at the key of the device, that torch's kernel composes of others."""

OPERATORS: dict[str, Rule] = {**BELOW_AUTOGRAD, **ABOVE_AUTOGRAD, **COMPOSED}
"""All of them, by name without ``aten::``."""


def check_name(name: str) -> str:
    """Return ``name``; raises UnknownNameError when no such operator can be intercepted."""
    if name not in OPERATORS:
        raise UnknownNameError.among("operator", name, OPERATORS)
    return name


def is_composite(name: str) -> bool:
    """Whether torch composes the operator of others, which are looked at as well."""
    return name in ABOVE_AUTOGRAD or name in COMPOSED


def is_above_autograd(name: str) -> bool:
    """Whether the operator is caught before autograd, which then records what a handler does."""
    return name in ABOVE_AUTOGRAD


def is_in_place(name: str) -> bool:
    """Whether the operator's result is its first operand, such as that of ``add_.Tensor``."""
    return name.partition(".")[0].endswith("_")
