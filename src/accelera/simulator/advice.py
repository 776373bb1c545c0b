"""What to do about a trace that does not fit: which policy, how far ahead to load, what to keep."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from accelera.simulator.advice_parts import Depth, Offload, Ranked, Resident
from accelera.simulator.advice_text import advice_table


@dataclass(frozen=True)
class Advice:
    """Result of ``advise``, the best policy first; sizes in bytes, times in seconds."""

    policy: str
    """The one to use where the accesses to come are known, as in the engine's plans."""
    causal_policy: str
    """The best of those that know only the past."""
    lookahead: int
    """Further steps to load while one computes: the fewest that hide what can be hidden."""
    capacity_bytes: int
    floor_bytes: int
    """Operands of the largest step: no capacity below holds them together."""
    ample_bytes: int
    """Everything alive at once: more changes nothing."""
    knee_bytes: int
    """Beyond this, more memory pays less than it did before."""
    without_stalls_bytes: int
    """From here on nobody waits for want of memory."""
    lower_bound_bytes: int | None
    """The least bytes that any schedule moves; None where it was not worked out."""
    ranking: tuple[Ranked, ...]
    depths: tuple[Depth, ...]
    """What each look-ahead achieves with ``policy``."""
    resident: tuple[Resident, ...]
    """What to keep throughout, the most bytes saved per byte first, as far as there is room beside steps."""
    resident_moved_bytes: int
    """What LRU moves with these kept; compare its own line in the ranking."""
    offload: Offload
    words: tuple[str, ...]
    """The findings, one sentence each."""

    def ranked(self, policy: str) -> Ranked:
        """Return the figures of ``policy``; raises KeyError for one that was not tried."""
        return next(each for each in self.ranking if each.policy == policy)

    def table(self) -> str:
        """Return the ranking and the findings as text, for people."""
        return advice_table(self.ranking, self.resident, self.words)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Advice:
        """Return what ``to_dict`` was called on."""
        many = {"ranking": Ranked, "depths": Depth, "resident": Resident}
        parts: dict[str, Any] = {
            name: tuple(kind(**each) for each in values[name]) for name, kind in many.items()
        }
        return cls(
            **{**values, **parts, "offload": Offload(**values["offload"]), "words": tuple(values["words"])}
        )

    def to_json(self) -> str:
        """Return everything as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Advice:
        """Return what ``to_json`` was called on."""
        return cls.from_dict(json.loads(text))
