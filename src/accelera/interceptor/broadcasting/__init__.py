"""Products of stacks of matrices whose batch axes are broadcast, without a copy of any operand."""

from __future__ import annotations

from accelera.interceptor.broadcasting.contraction import contract
from accelera.interceptor.broadcasting.product import broadcast_matmul

__all__ = ["broadcast_matmul", "contract"]
