"""Small programs as traces, by hand and by chance, and what they compute in symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from accelera.trace import Kind, Trace
from accelera.trace._internal import Access

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
    """Return every step as (op, its operands' contents), in symbols, and the contents that stay, by name."""
    contents: dict[int, Any] = {}
    operands: dict[int, tuple[Any, ...]] = {}
    for buffer, kind, step in zip(
        trace.buffer.tolist(), trace.kind.tolist(), trace.step.tolist(), strict=True
    ):
        name = trace.names[buffer]
        if kind == Kind.FREE:
            contents[buffer] = None
        elif kind == Kind.READ:
            held = contents.get(buffer, ("there before", name))
            assert held is not None, f"step {step} reads {name}, which is gone"
            operands[step] = (*operands.get(step, ()), held)
        elif kind == Kind.WRITE:
            contents[buffer] = (trace.ops[step], operands.get(step, ()), name)
    done = {(trace.ops[step], read) for step, read in operands.items()}
    return done, {trace.names[each]: held for each, held in contents.items() if held is not None}
