"""How large calls of torch's operators are caught before a kernel computes them."""

from __future__ import annotations

from accelera.extras import needed_for

with needed_for("interception"):
    from accelera.interceptor.mechanism.arming import arm, disarm
    from accelera.interceptor.mechanism.operators import OPERATORS
    from accelera.interceptor.mechanism.originals import original
    from accelera.interceptor.mechanism.passing import passing
    from accelera.interceptor.mechanism.tiers import build_shim, compiled_operators, tier, why

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
