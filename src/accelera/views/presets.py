"""Models and cards to choose from: usual shapes of transformers, and usual amounts of memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

VOCABULARY = 32_000
"""Tokens of the embedding that synthetic traces have."""


@dataclass(frozen=True)
class ModelPreset:
    """The shape of a decoder-only transformer, as ``generate_synthetic_trace`` makes it."""

    name: str
    """Its usual name: the rounded number of parameters."""
    num_layers: int
    hidden_size: int

    @property
    def parameters(self) -> int:
        """Weights of the synthetic model: 12 h² + 2 h per layer, the embedding, and the last norm's h."""
        width = self.hidden_size
        return self.num_layers * (12 * width * width + 2 * width) + VOCABULARY * width + width

    @property
    def label(self) -> str:
        """The name with the shape."""
        return f"{self.name} ({self.num_layers} layers, {self.hidden_size:,} wide)"

    def to_dict(self) -> dict[str, Any]:
        """Return the preset as JSON-able values."""
        return {**asdict(self), "label": self.label, "parameters": self.parameters}


@dataclass(frozen=True)
class CardPreset:
    """A card's memory, and the link to its host."""

    name: str
    bytes: int
    link_bytes_per_s: float
    """Bytes per second each way."""
    hierarchy: str
    """The machine preset whose arithmetic it is taken to have."""

    def to_dict(self) -> dict[str, Any]:
        """Return the preset as JSON-able values."""
        return asdict(self)


MODELS = (
    ModelPreset("125M", 12, 768),
    ModelPreset("350M", 24, 1024),
    ModelPreset("760M", 24, 1536),
    ModelPreset("1.3B", 24, 2048),
    ModelPreset("2.7B", 32, 2560),
    ModelPreset("7B", 32, 4096),
    ModelPreset("13B", 40, 5120),
    ModelPreset("30B", 48, 7168),
    ModelPreset("70B", 80, 8192),
)
"""Shapes of Brown et al., "Language Models are Few-Shot Learners" (2020), table 2.1, and of Touvron et al.,
"LLaMA" (2023), table 2, with a feed-forward part of four times the width and this vocabulary."""

GB = 10**9
CARDS = (
    CardPreset("8 GB card", 8 * GB, 12e9, "gpu-24gb"),
    CardPreset("12 GB card", 12 * GB, 16e9, "gpu-24gb"),
    CardPreset("16 GB card", 16 * GB, 25e9, "gpu-24gb"),
    CardPreset("24 GB card", 24 * GB, 25e9, "gpu-24gb"),
    CardPreset("40 GB card", 40 * GB, 25e9, "gpu-24gb"),
    CardPreset("48 GB card", 48 * GB, 25e9, "gpu-24gb"),
    CardPreset("80 GB card", 80 * GB, 50e9, "h200"),
    CardPreset("141 GB card", 141 * GB, 50e9, "h200"),
)
"""Round figures of such cards (PCI Express 4.0 by 8 and 16 lanes, 5.0 by 16), not measurements."""


def presets() -> dict[str, list[dict[str, Any]]]:
    """Return all presets as JSON-able values: ``models`` and ``cards``."""
    return {"models": [each.to_dict() for each in MODELS], "cards": [each.to_dict() for each in CARDS]}


def model_name(workload: Mapping[str, Any]) -> str | None:
    """Return the name of the preset that has the shape of a transformer's workload, if one has."""
    if str(workload.get("model_type", "Transformer")) != "Transformer":
        return None
    shape = (workload.get("num_layers"), workload.get("hidden_size"))
    return next((each.name for each in MODELS if (each.num_layers, each.hidden_size) == shape), None)


def smallest_card(need_bytes: int) -> CardPreset | None:
    """Return the smallest card that holds ``need_bytes``, if one does."""
    return next((each for each in CARDS if each.bytes >= need_bytes), None)
