"""Attention whose scores never stand in memory whole: tile by tile, forward and backward."""

from __future__ import annotations

from accelera.interceptor.attention.bounded import bounded_attention

__all__ = ["bounded_attention"]
