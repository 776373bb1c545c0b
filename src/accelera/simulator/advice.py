"""Advice on a trace that does not fit: the figures, the sentences, and the table for people."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from accelera._result_html import MemoryBar, result_html
from accelera.errors import ArgumentError, UnknownNameError
from accelera.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Ranked:
    """One policy's figures at the capacity asked about; sizes in bytes, times in seconds."""

    policy: str
    moved_bytes: int
    stall_s: float
    total_s: float
    regret: float | None
    """Moved bytes over the least that any schedule moves; None where that is 0 or was not worked out."""
    needs_future: bool
    """Whether it must know the accesses to come, as the engine does, and a loop's second turn."""


@dataclass(frozen=True)
class Depth:
    """Effect of loading a number of steps ahead."""

    lookahead: int
    """Further steps admitted while one computes."""
    stall_s: float
    moved_bytes: int


@dataclass(frozen=True)
class Resident:
    """A buffer worth keeping in the first tier throughout."""

    name: str
    size_bytes: int
    saved_bytes: int
    """Bytes that LRU would otherwise move for it after the first time."""

    @property
    def saved_per_byte(self) -> float:
        """Bytes saved per byte of room."""
        return self.saved_bytes / self.size_bytes


@dataclass(frozen=True)
class Offload:
    """Cost of working in less memory than everything needs; times in seconds."""

    compute_s: float
    """Arithmetic alone: the time with memory for everything."""
    transfer_s: float
    """How long the busier direction of the first link moves data."""
    stall_s: float
    """Waiting with the policy and look-ahead advised."""
    recompute_total_s: float
    """Time in all when buffers may be made again instead of moved."""

    @property
    def slowdown(self) -> float:
        """Time in all over arithmetic alone; infinity where the trace tells of no arithmetic."""
        total_s = self.compute_s + self.stall_s
        if not self.compute_s:
            return float("inf") if total_s else 1.0
        return total_s / self.compute_s


WORTHWHILE = 0.05
"""Share of the traffic below which a change of policy is not worth advising."""
PLAIN = "lru"
"""What most systems do."""
_SHOWN = 8
_NAMED = 3


def advice_table(ranking: Sequence[Ranked], resident: Sequence[Resident], words: Sequence[str]) -> str:
    """Return the ranking, what to keep, and the findings."""
    head = f"{'policy (* knows the future)':28}{'moved':>12}{'waits':>12}{'x bound':>10}"
    rows = [
        f"{each.policy + ' *' * each.needs_future:28}{format_bytes(each.moved_bytes):>12}"
        f"{each.stall_s:>10.4g} s{_regret(each):>10}"
        for each in ranking
    ]
    kept = list(_kept_rows(resident))
    return "\n".join([head, *rows, *([""] if kept else []), *kept, "", *words])


def _kept_rows(resident: Sequence[Resident]) -> Iterator[str]:
    """Yield what to keep, the largest first, those alike together."""
    alike: dict[tuple[int, int], list[str]] = defaultdict(list)
    for each in resident:
        alike[each.size_bytes, each.saved_bytes].append(each.name)
    groups = sorted(alike.items(), key=lambda item: item[0], reverse=True)
    for (size_bytes, saved_bytes), names in groups[:_SHOWN]:
        named = ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
        count, of = (f" (x{len(names)})", " each") if len(names) > 1 else ("", "")
        yield f"keep {named}{count}: {format_bytes(size_bytes)}{of}, saves {format_bytes(saved_bytes)}{of}"
    left = sum(len(names) for _, names in groups[_SHOWN:])
    if left:
        yield f"and {left} more buffers"


def _regret(each: Ranked) -> str:
    return "" if each.regret is None else f"{each.regret:.3f}"


def sentences(
    best: Ranked, plain: Ranked, causal: Ranked, least_bytes: int | None, capacity_bytes: int
) -> Iterator[str]:
    """Yield what is to be said about policies."""
    at = f"at {format_bytes(capacity_bytes)}"
    if not plain.moved_bytes:
        yield f"{at} nothing need be moved: everything fits, and any policy will do"
        return
    saved = 1 - best.moved_bytes / plain.moved_bytes
    moves = f"{PLAIN} moves {format_bytes(plain.moved_bytes)}"
    if least_bytes is not None and plain.moved_bytes == least_bytes:
        yield f"{at} {moves}, and no schedule moves less: the policy will not help you here"
    elif saved < WORTHWHILE:
        yield (
            f"{at} the policy will not help you here: {moves}, the best ({best.policy}) "
            f"{format_bytes(best.moved_bytes)}, {max(saved, 0):.1%} less"
        )
    else:
        moved = format_bytes(best.moved_bytes)
        yield f"{at} use {best.policy}: it moves {moved}, {saved:.0%} less than {PLAIN}"
        if causal.policy != best.policy:
            yield (
                f"where the accesses to come are not known, {causal.policy}: "
                f"{format_bytes(causal.moved_bytes)}"
            )
    if least_bytes:
        yield f"no schedule moves less than {format_bytes(least_bytes)}"


def ahead_words(depths: Sequence[Depth], lookahead: int) -> str:
    """Return how far ahead to load, and what waiting that leaves."""
    first = depths[0]
    waits = next(each.stall_s for each in depths if each.lookahead == lookahead)
    steps = "1 step" if lookahead == 1 else f"{lookahead or 'no'} steps"
    if lookahead == first.lookahead:
        return f"load {steps} ahead: with more, nobody waits notably less than {waits:.4g} s"
    return f"load {steps} ahead: {waits:.4g} s of waiting, with {first.lookahead} it is {first.stall_s:.4g} s"


def memory_words(floor_bytes: int, knee_bytes: int, without_stalls_bytes: int, ample_bytes: int) -> str:
    """Return a sentence on capacities: the least, the knee, the least without stalls, and room for all."""
    return (
        f"the largest step needs {format_bytes(floor_bytes)}; memory pays best up to "
        f"{format_bytes(knee_bytes)}, from {format_bytes(without_stalls_bytes)} nobody waits for want of it, "
        f"{format_bytes(ample_bytes)} hold everything"
    )


def resident_words(kept_bytes: int, moved_bytes: int, plain: Ranked) -> str:
    """Return what keeping buffers throughout achieves without any knowledge of the future."""
    return (
        f"keeping {format_bytes(kept_bytes)} of buffers throughout, {PLAIN} moves "
        f"{format_bytes(moved_bytes)} instead of {format_bytes(plain.moved_bytes)}"
    )


def offload_words(offload: Offload) -> str:
    """Return whether it pays to work in less memory than everything needs."""
    if not offload.compute_s:
        return (
            "neither trace nor hierarchy tells how long the arithmetic takes, so whether moving data pays "
            "beside it cannot be said: name a hierarchy that computes, such as gpu-24gb"
        )
    total_s = offload.compute_s + offload.stall_s
    if offload.recompute_total_s < total_s * (1 - WORTHWHILE):
        return (
            f"making buffers again takes {offload.recompute_total_s:.4g} s in all, moving them "
            f"{total_s:.4g} s: recompute what is cheap to make"
        )
    waits = f"{offload.stall_s:.4g} s of waiting beside {offload.compute_s:.4g} s of arithmetic"
    if offload.slowdown < 1 + WORTHWHILE:
        return f"offloading pays: the moves hide behind the arithmetic ({waits})"
    if offload.slowdown < 2:
        return f"offloading costs {offload.slowdown - 1:.0%} more time ({waits})"
    return (
        f"offloading does not pay unless there is no other way: {offload.slowdown:.1f} x the time ({waits}); "
        "more memory or a smaller batch would help"
    )


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
    """From here on no step waits for lack of memory."""
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

    def __repr__(self) -> str:
        effects = [
            f" moves {format_bytes(row.moved_bytes)}, waits {format_seconds(row.stall_s)}"
            for row in self.ranking
            if row.policy == self.policy
        ]
        causal = "" if self.causal_policy == self.policy else f"; without the future: {self.causal_policy}"
        return f"<Advice at {format_bytes(self.capacity_bytes)}: {self.policy}{''.join(effects)}{causal}>"

    def _repr_html_(self) -> str:
        sizes = {buffer.name: buffer.size_bytes for buffer in self.resident}
        bars = [MemoryBar("always in memory", sizes, self.capacity_bytes)] if sizes else []
        return result_html(repr(self), self.table(), bars)

    def ranked(self, policy: str) -> Ranked:
        """Return the figures of ``policy``; raises UnknownNameError for one that was not tried."""
        by_name = {each.policy: each for each in self.ranking}
        if policy not in by_name:
            raise UnknownNameError.among("policy", policy, by_name)
        return by_name[policy]

    def table(self) -> str:
        """Return the ranking and the findings as text, for people."""
        return advice_table(self.ranking, self.resident, self.words)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Advice:
        """Return the advice that ``to_dict`` turned into ``values``.

        Raises ArgumentError for values of other names or types.
        """
        many = {"ranking": Ranked, "depths": Depth, "resident": Resident}
        try:
            parts: dict[str, Any] = {
                name: tuple(_record(kind, each) for each in values[name]) for name, kind in many.items()
            }
            parts |= {"offload": _record(Offload, values["offload"]), "words": tuple(values["words"])}
            return _record(cls, {**values, **parts})
        except (AttributeError, LookupError, TypeError) as error:
            raise ArgumentError(f"[Advice] damaged advice: {error!r:.200}; {_REMEDY}") from error

    def to_json(self) -> str:
        """Return everything as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Advice:
        """Return the advice that ``to_json`` turned into ``text``; raises ArgumentError for other text."""
        try:
            values = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise ArgumentError(f"[Advice] no JSON: {error!s:.200}; {_REMEDY}") from error
        return cls.from_dict(values)


_JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "tuple[str, ...]": (tuple,),
}
"""Types of the values of a field by its annotation."""
_LARGEST = 2**63 - 1
"""No count of bytes or steps is larger; beyond it, numbers cannot be shown or divided."""
_REMEDY = "pass the text that Advice.to_json returned"
_Record = TypeVar("_Record")


def _record(kind: type[_Record], values: Mapping[str, Any]) -> _Record:
    """Return a dataclass of values; raises TypeError for a field of another name or type."""
    record = kind(**values)
    for field in fields(kind):  # type: ignore[arg-type]
        value, types = values[field.name], _JSON_TYPES.get(str(field.type))
        if types and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
            raise ArgumentError(f"[Advice] {field.name}={value!r:.80} is no {field.type}; {_REMEDY}")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise ArgumentError(
                f"[Advice] {field.name} has {value.bit_length():,} bits, at most 63 are possible; {_REMEDY}"
            )
        if field.type == "tuple[str, ...]" and not all(isinstance(part, str) for part in value):
            raise ArgumentError(f"[Advice] {field.name} has parts that are no text; {_REMEDY}")
    return record
