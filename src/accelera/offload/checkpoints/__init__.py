"""Checkpoints opened without loading them, and written tensor by tensor."""

from __future__ import annotations
