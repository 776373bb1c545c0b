"""Small programs as traces, by hand and by chance, and what they compute in symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from accelera.trace import Access, Kind, Trace

OPS = ("mm", "add", "relu", "_softmax", "sum", "sort", "native_layer_norm", "gelu_backward", "bernoulli")


def program(
    *steps: tuple[str, Sequence[str], Sequence[str]],
    elements: Mapping[str, int] | None = None,
    roles: Mapping[str, str] | None = None,
    freed: Mapping[int, Sequence[str]] | None = None,
    flops: Sequence[float] | None = None,
) -> Trace:
    """Return the trace of steps ``(op, what it reads, what it writes)``; buffers are float32, 64 elements."""
    numbers: dict[str, int] = {}
    events: list[Access] = []

    def note(name: str, step: int, kind: Kind, op: str = "") -> None:
        number = numbers.setdefault(name, len(numbers))
        size = 4 * (elements or {}).get(name, 64)
        role = (roles or {}).get(name, "activation")
        events.append(Access(number, size, step, kind, op, role, "float32"))

    for step, (op, reads, writes) in enumerate(steps):
        for name in reads:
            note(name, step, Kind.READ, op)
        for name in writes:
            note(name, step, Kind.WRITE, op)
        for name in (freed or {}).get(step, ()):
            note(name, step, Kind.FREE)
    names = list(numbers)
    return Trace.from_accesses(events, names=names, flops=flops)


@st.composite
def programs(draw: st.DrawFn) -> Trace:
    """Draw a program: weights that were there before, in-place steps, overwrites, frees."""
    weights = [f"w{index}" for index in range(draw(st.integers(1, 3)))]
    elements = {name: draw(st.sampled_from((16, 64, 256))) for name in weights}
    alive, steps, freed = list(weights), [], {}
    for step in range(draw(st.integers(1, 14))):
        op = draw(st.sampled_from(OPS))
        reads = draw(st.lists(st.sampled_from(alive), min_size=1, max_size=3, unique=True))
        target = draw(st.sampled_from(("new", "new", "new", "in place", "over")))
        written = {"new": f"v{step}", "in place": reads[0], "over": alive[-1]}[target]
        elements.setdefault(written, draw(st.sampled_from((16, 64, 256))))
        steps.append((op, reads, [written]))
        alive = list(dict.fromkeys([*alive, written]))
        gone = draw(st.lists(st.sampled_from(alive), max_size=2, unique=True))
        freed[step] = [name for name in gone if name not in weights]
        alive = [name for name in alive if name not in freed[step]]
    return program(*steps, elements=elements, freed=freed)


def computed(trace: Trace) -> tuple[set[Any], dict[str, Any]]:
    """Return every step as (op, operands' contents, results) in symbols, and the contents that stay."""
    contents: dict[int, Any] = {}
    done: set[Any] = set()
    by_step: dict[int, list[tuple[int, int]]] = {}
    for event, (kind, step) in enumerate(zip(trace.kind.tolist(), trace.step.tolist(), strict=True)):
        by_step.setdefault(step if kind <= Kind.WRITE else -event - 1, []).append((event, kind))
    events = sorted(range(len(trace)), key=int)
    index = 0
    while index < len(events):
        kind, step = int(trace.kind[index]), int(trace.step[index])
        buffer = int(trace.buffer[index])
        if kind > Kind.WRITE:
            if kind == Kind.FREE:
                contents[buffer] = "freed"
            index += 1
            continue
        accesses = by_step[step]
        operands = []
        for event, what in accesses:
            each = int(trace.buffer[event])
            if what == Kind.READ:
                held = contents.get(each, ("there before", trace.names[each]))
                assert held != "freed", f"step {step} reads {trace.names[each]}, which is gone"
                operands.append(held)
        result = (trace.ops[step], tuple(operands))
        for event, what in accesses:
            if what == Kind.WRITE:
                contents[int(trace.buffer[event])] = (result, trace.names[int(trace.buffer[event])])
        done.add(result)
        index = max(event for event, _ in accesses) + 1
    stays = {trace.names[each]: held for each, held in contents.items() if held != "freed"}
    return done, stays
