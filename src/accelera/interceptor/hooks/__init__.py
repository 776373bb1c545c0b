"""Hooks in torch's dispatcher that catch large calls of operators before a kernel computes them."""

from __future__ import annotations

from accelera._extras import needed_for

with needed_for("interception"):
    from accelera.interceptor.hooks.dispatch import original, passing
    from accelera.interceptor.hooks.operators import OPERATORS
    from accelera.interceptor.hooks.registration import arm, build_shim, compiled_operators, disarm, tier, why

__all__ = [
    "OPERATORS",
    "arm",
    "build_shim",
    "compiled_operators",
    "disarm",
    "original",
    "passing",
    "tier",
    "why",
]
