"""Who handles which operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from accelera.interceptor.attention.handling import scaled_dot_product_attention
from accelera.interceptor.attention.multi_head import multi_head_attention
from accelera.interceptor.broadcasting.handling import matmul
from accelera.interceptor.calls import Call
from accelera.interceptor.elementwise import Elementwise, kind_of
from accelera.interceptor.factors import form_of
from accelera.interceptor.force import in_force
from accelera.interceptor.mechanism import OPERATORS, original
from accelera.interceptor.products import Product
from accelera.interceptor.routing import route
from accelera.interceptor.statistics import statistics

Handler = Callable[..., Any]
Reader = Callable[[tuple[Any, ...], dict[str, Any]], Call]


@cache
def handlers() -> Mapping[str, Handler]:
    """Return the handler of every operator that goes in pieces."""
    below = {name: _handler(name, _reader(name, rule)) for name, rule in _BELOW.items()}
    return {**below, **_COMPOSITE}


_COMPOSITE: Mapping[str, Handler] = {
    "matmul": matmul,
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "_native_multi_head_attention": multi_head_attention,
}
"""Handlers of operators that torch composes of others, which are looked at in turn."""
_BELOW = {
    name: rule
    for name, rule in OPERATORS.items()
    if rule in ("product", "pointwise") and not name.startswith("matmul")
}


def _reader(name: str, rule: str) -> Reader:
    if rule == "product":
        form = form_of(name)
        return lambda args, kwargs: Product(name, form, args, kwargs)
    kind = kind_of(name)
    return lambda args, kwargs: Elementwise(name, kind, args, kwargs)


def _handler(name: str, read: Reader) -> Handler:
    kernel = original(name)

    def handle(*args: Any, **kwargs: Any) -> Any:
        limits = in_force()
        if limits is None:
            return kernel(*args, **kwargs)
        try:
            call = read(args, kwargs)
        except (RuntimeError, IndexError, TypeError, ValueError):
            # What cannot be understood is the caller's error, or none: torch's kernel knows.
            statistics.passed(name, "arguments that do not fit")
            return kernel(*args, **kwargs)
        return route(call, limits, kernel, args, kwargs)

    return handle
