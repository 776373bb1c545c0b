"""Operators that can be intercepted; ``make reference`` writes ``csrc/torch/operators.def`` from them."""

from __future__ import annotations

from typing import Literal

from accelera.errors import UnknownNameError

Rule = Literal["product", "pointwise", "attention", "heads"]
"""How the elements of a result follow from the operands' shapes."""

_PRODUCTS = """
    mm mm.out bmm bmm.out addmm addmm.out addmm_ baddbmm baddbmm.out baddbmm_
    mv mv.out addmv addmv.out addmv_ dot dot.out
"""
_POINTWISE = """
    add.Tensor add.out add_.Tensor add.Scalar add.Scalar_out add_.Scalar
    sub.Tensor sub.out sub_.Tensor sub.Scalar sub.Scalar_out sub_.Scalar
    mul.Tensor mul.out mul_.Tensor mul.Scalar mul.Scalar_out mul_.Scalar
    div.Tensor div.out div_.Tensor div.Scalar div.Scalar_out div_.Scalar
    div.Tensor_mode div.out_mode div_.Tensor_mode
    maximum maximum.out minimum minimum.out
    pow.Tensor_Tensor pow.Tensor_Tensor_out pow_.Tensor pow.Tensor_Scalar pow.Tensor_Scalar_out pow_.Scalar
    pow.Scalar pow.Scalar_out
    exp exp.out exp_ log log.out log_ sqrt sqrt.out sqrt_ tanh tanh.out tanh_ sigmoid sigmoid.out sigmoid_
    relu relu.out relu_ gelu gelu.out gelu_ silu silu.out silu_ neg neg.out neg_ abs abs.out abs_
    where.self where.self_out
    _softmax _softmax.out _log_softmax _log_softmax.out
    _softmax_backward_data _softmax_backward_data.out
    _log_softmax_backward_data _log_softmax_backward_data.out
"""

BELOW_AUTOGRAD: dict[str, Rule] = {
    **dict.fromkeys(_PRODUCTS.split(), "product"),
    **dict.fromkeys(_POINTWISE.split(), "pointwise"),
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

COMPOSITE = frozenset((*ABOVE_AUTOGRAD, *COMPOSED))
"""Operators that torch composes of others, which are looked at as well."""

OPERATORS: dict[str, Rule] = {**BELOW_AUTOGRAD, **ABOVE_AUTOGRAD, **COMPOSED}
"""All of them, by name without ``aten::``."""


def check_name(name: str) -> str:
    """Return ``name``; raises UnknownNameError when no such operator can be intercepted."""
    if name not in OPERATORS:
        raise UnknownNameError.among("operator", name, OPERATORS)
    return name


def is_composite(name: str) -> bool:
    """Return whether torch composes the operator of others, which are looked at as well."""
    return name in COMPOSITE


def is_above_autograd(name: str) -> bool:
    """Return whether the operator is caught before autograd, which then records what a handler does."""
    return name in ABOVE_AUTOGRAD


def is_in_place(name: str) -> bool:
    """Return whether the operator's result is its first operand, such as that of ``add_.Tensor``."""
    return name.partition(".")[0].endswith("_")


def definitions() -> str:
    """Return the lines ``OPERATOR(place, rule, name in at::_ops)`` of ``csrc/torch/operators.def``."""
    places = {"BelowAutograd": BELOW_AUTOGRAD, "AboveAutograd": ABOVE_AUTOGRAD, "Composed": COMPOSED}
    return "".join(
        f"OPERATOR({place}, {rule.capitalize()}, {name.replace('.', '_')})\n"
        for place, rules in places.items()
        for name, rule in rules.items()
    )
