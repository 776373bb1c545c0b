"""Ways out of a budget that is too small, and what still fits one that is not: each made and measured.

Batches and contexts are searched with ``largest_batch`` and ``largest_context`` over shortened traces, and
what is found is checked with the whole trace: only ways that were measured to fit are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import Any, Literal

from accelera._plotting import format_budget, format_size
from accelera.simulator import generate_synthetic_trace, largest_batch, largest_context
from accelera.simulator._internal import ITEM_BYTES
from accelera.trace import Occupancy, Trace
from accelera.views.facts import JsonView, MeasuredTrace, facts_of
from accelera.views.presets import smallest_card

MOST_BATCH = 65_536
MOST_CONTEXT = 1_048_576
"""Tokens."""
TOKENS = 128
"""Contexts are multiples of this."""
_BLOCKS = 128
"""Most blocks of a key-value cache in a measured trace: coarser blocks never need less memory."""
_SEARCHED_BLOCKS = 16
"""Most blocks while a size is searched."""
_CACHED_TRACES = 32
_NEIGHBOURS = 8
"""Sizes below and above the result of the search that are measured with the whole trace."""
_SEQUENCE_MODELS = ("Transformer", "MoE")
_WorkloadKey = tuple[tuple[str, Any], ...]
Workload = Mapping[str, Any]
"""Arguments of ``generate_synthetic_trace``."""
_DEFAULTS = {name: each.default for name, each in signature(generate_synthetic_trace).parameters.items()}


@dataclass(frozen=True)
class WayOut:
    """A change with which everything fits."""

    kind: Literal["batch", "context", "dtype", "card"]
    label: str
    """In words, with what is needed then: ``Batch 3 fits: 22.9 GB``."""
    changes: dict[str, Any]
    """Arguments of the workload (``batch_size``, ``seq_length``, ``dtype``); for a card its name, and the
    ``budget`` in bytes as text, ``link_bytes_per_s`` and ``hierarchy`` that it has."""
    needs_bytes: int


@dataclass(frozen=True)
class RoomLeft:
    """Largest value that something may still take."""

    kind: Literal["batch", "context"]
    label: str
    largest: int
    """Sequences, or tokens; a context is a multiple of 128."""
    needs_bytes: int


@dataclass(frozen=True)
class WaysView(JsonView):
    """Changes that make a workload fit; where it fits, what else does."""

    fits: bool
    ways: list[WayOut]
    """Empty where it fits."""
    room: list[RoomLeft]
    """Empty where it does not fit, and for a trace that cannot be generated again."""
    sentence: str


def ways_view(trace: Trace | MeasuredTrace, budget_bytes: int, workload: Workload | None = None) -> WaysView:
    """Return the ways out of ``budget_bytes``, or the room that is left in it.

    Parameters
    ----------
    workload
        What ``trace`` was generated from. Without it only larger cards are offered.
    """
    facts = facts_of(trace)
    if workload is not None:
        workload = {**_DEFAULTS, **workload}
    if facts.peak_bytes <= budget_bytes:
        room = [] if workload is None else list(_room(workload, budget_bytes))
        return WaysView(True, [], room, _room_sentence(room))
    ways = [] if workload is None else list(_smaller_workloads(workload, budget_bytes))
    ways += _card(facts.peak_bytes)
    words = f"To make it fit: {'; '.join(each.label for each in ways)}." if ways else _no_way_sentence(facts)
    return WaysView(False, ways, [], words)


def _smaller_workloads(workload: Workload, budget: int) -> Iterator[WayOut]:
    """Yield the largest batch, the longest context, the widest element type that fit, each by itself."""
    batch = _largest(workload, "batch_size", budget, workload["batch_size"] - 1)
    if batch:
        need = peak_of({**workload, "batch_size": batch})
        yield WayOut("batch", f"Batch {batch:,} fits: {format_size(need)}", {"batch_size": batch}, need)
    tokens = _largest(workload, "seq_length", budget, workload["seq_length"] - 1)
    if tokens:
        need = peak_of({**workload, "seq_length": tokens})
        yield WayOut("context", f"Context {tokens:,} fits: {format_size(need)}", {"seq_length": tokens}, need)
    yield from _narrower_dtypes(workload, budget)
    if not batch and not tokens and workload["batch_size"] > 1:
        yield from _single_sequence(workload, budget)


def _single_sequence(workload: Workload, budget: int) -> Iterator[WayOut]:
    """Yield one sequence with the longest context that fits then."""
    single = {**workload, "batch_size": 1}
    tokens = _largest(single, "seq_length", budget, workload["seq_length"] - 1)
    if tokens:
        need = peak_of({**single, "seq_length": tokens})
        label = f"Batch 1 with context {tokens:,} fits: {format_size(need)}"
        yield WayOut("batch", label, {"batch_size": 1, "seq_length": tokens}, need)


def _narrower_dtypes(workload: Workload, budget: int) -> Iterator[WayOut]:
    width = ITEM_BYTES[workload["dtype"]]
    for dtype in ("float32", "bfloat16"):
        if ITEM_BYTES[dtype] < width:
            need = peak_of({**workload, "dtype": dtype})
            if need <= budget:
                yield WayOut("dtype", f"{dtype} fits: {format_size(need)}", {"dtype": dtype}, need)
                return


def _card(need: int) -> list[WayOut]:
    card = smallest_card(need)
    if card is None:
        return []
    changes = {
        "card": card.name,
        "budget": str(card.bytes),
        "link_bytes_per_s": card.link_bytes_per_s,
        "hierarchy": card.hierarchy,
    }
    return [WayOut("card", f"{card.name} fits", changes, need)]


def _room(workload: Workload, budget: int) -> Iterator[RoomLeft]:
    for kind, field, most in (("batch", "batch_size", MOST_BATCH), ("context", "seq_length", MOST_CONTEXT)):
        largest = _largest(workload, field, budget, most)
        if largest > workload[field]:
            need = peak_of({**workload, field: largest})
            yield RoomLeft(kind, f"{kind.title()} {largest:,} still fits", largest, need)  # type: ignore[arg-type]


def _largest(workload: Workload, field: str, budget: int, most: int) -> int:
    """Return the largest batch or context up to ``most`` that fits, 0 for none."""
    step = 1 if field == "batch_size" else TOKENS
    if most < step or (field == "seq_length" and workload["model_type"] not in _SEQUENCE_MODELS):
        return 0
    search = largest_batch if field == "batch_size" else largest_context
    estimate = search(
        lambda size: _generated_trace(_shortened({**workload, field: size})),
        max(budget, 1),
        multiple=step,
        most=most,
    ).largest

    def fits(size: int) -> bool:
        return peak_of({**workload, field: size}) <= budget

    below = range(estimate, max(estimate - _NEIGHBOURS * step, 0), -step)
    found = next((size for size in below if fits(size)), 0)
    if found == estimate:
        above = range(estimate + step, min(estimate + _NEIGHBOURS * step, most) + 1, step)
        found = next((size - step for size in above if not fits(size)), above[-1] if above else estimate)
    return found


def _shortened(workload: Workload) -> _WorkloadKey:
    """Return a workload of one step whose peak is about that of ``workload``."""
    return _key({**workload, "steps": 1}, _SEARCHED_BLOCKS)


def peak_of(workload: Workload) -> int:
    """Return the most bytes alive in the trace of ``workload``.

    Of a long text, the blocks of the key-value cache are taken coarser, which never needs less.
    """
    return _peak(_key(workload, _BLOCKS))


@lru_cache(maxsize=4096)
def _peak(key: _WorkloadKey) -> int:
    return Occupancy(_generated_trace(key)).peak_bytes


@lru_cache(maxsize=_CACHED_TRACES)
def _generated_trace(key: _WorkloadKey) -> Trace:
    return generate_synthetic_trace(**dict(key))


def _key(workload: Workload, blocks: int) -> _WorkloadKey:
    """Return ``workload`` with at most about ``blocks`` blocks of cache, as a key."""
    block = workload["block_tokens"]
    coarser = max(-(-workload["seq_length"] // (block * blocks)), 1)
    return tuple(sorted({**workload, "block_tokens": block * coarser}.items()))


def _room_sentence(room: list[RoomLeft]) -> str:
    return f"There is room for more: {'; '.join(each.label for each in room)}." if room else "It fits."


def _no_way_sentence(facts: MeasuredTrace) -> str:
    return f"No usual card holds {format_budget(facts.peak_bytes)}, and nothing smaller was found that fits."
