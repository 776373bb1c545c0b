"""Where resident bytes are: pages of RAM, or an accelerator's memory."""

from __future__ import annotations

from accelera.offload.places.contract import Place
from accelera.offload.places.cpu import CpuPlace

__all__ = ["CpuPlace", "Place"]
