"""One phase of a model in one element type, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accelera.trace import Trace


@dataclass(frozen=True)
class Phase:
    """Memory of inference, generation or training in one element type; sizes in bytes."""

    name: str
    """``inference``, ``generation`` or ``training``."""
    dtype: str
    """``float32``, ``bfloat16`` …, ``mixed`` or ``float8``."""
    most: Mapping[str, int]
    """The most that each role takes at any time, by the names of ``ROLES``."""
    at_peak: Mapping[str, int]
    """What each role takes when the most is alive together; the sum is ``peak_bytes``."""
    peak_bytes: int
    """The most that is alive at once."""
    peak_op: str
    """The operator that runs then."""
    largest: tuple[tuple[str, int], ...]
    """The largest tensors alive then, by name."""
    outputs_bytes: int
    """What nothing but the kept outputs of the model held: 0 where they are not kept past the loss."""
    trace: Trace = field(repr=False, compare=False)
    """Every access of it, for ``accelera.simulate`` and ``accelera.advise``."""
    subject: tuple[Any, Any] = field(repr=False, compare=False)
    """The model without contents and its inputs, for ``accelera.plan_offload``."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-able values."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "most": dict(self.most),
            "at_peak": dict(self.at_peak),
            "peak_bytes": self.peak_bytes,
            "peak_op": self.peak_op,
            "largest": [list(each) for each in self.largest],
            "outputs_bytes": self.outputs_bytes,
        }
