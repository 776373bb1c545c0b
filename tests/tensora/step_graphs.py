"""Random training steps for the planner, and an interpreter of its schedules that trusts nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from accelera._native import StepGraph

NEVER = 2**31 - 1
PACK_SECONDS = 2e-5
"""For a byte of the packed form."""
RUN, DROP, OUT, IN, PACK, UNPACK, OUT_BEGIN, OUT_END, IN_BEGIN, IN_END = range(10)


@dataclass
class Step:
    """A logged step, as lists by operation and by value."""

    seconds: list[float] = field(default_factory=list)
    workspace: list[int] = field(default_factory=list)
    pure: list[int] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)
    writes: list[list[int]] = field(default_factory=list)
    births: list[list[int]] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    born: list[int] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    packed: list[int] = field(default_factory=list)

    def value(self, nbytes: int, born: int = -1, freed: int = NEVER, packed: int = 0) -> int:
        self.nbytes.append(nbytes)
        self.born.append(born)
        self.freed.append(freed)
        self.packed.append(packed)
        return len(self.nbytes) - 1

    def operation(
        self,
        reads: list[int],
        sizes: list[int],
        *,
        seconds: float = 1.0,
        pure: bool = True,
        workspace: int = 0,
        masks: bool = False,
    ) -> list[int]:
        """Add an operation that makes values of these sizes; they end with their last use."""
        number = len(self.seconds)
        made = [self.value(nbytes, number, number, masks * (nbytes // 8)) for nbytes in sizes]
        self.seconds.append(seconds)
        self.pure.append(int(pure))
        self.workspace.append(workspace)
        self.reads.append(list(dict.fromkeys(reads)))
        self.writes.append([])
        self.births.append(made)
        for value in reads:
            if self.born[value] >= 0 and self.freed[value] != NEVER:
                self.freed[value] = number
        return made

    def graph(self) -> StepGraph:
        return StepGraph(
            seconds=np.array(self.seconds, "float64"),
            workspace=np.array(self.workspace, "int64"),
            pure=np.array(self.pure, "uint8"),
            reads=_rows(self.reads),
            writes=_rows(self.writes),
            births=_rows(self.births),
            nbytes=np.array(self.nbytes, "int64"),
            born=np.array(self.born, "int32"),
            freed=np.array(self.freed, "int32"),
            fixed=np.zeros(len(self.nbytes), "uint8"),
            packed_bytes=np.array(self.packed, "int64"),
            pack_seconds=PACK_SECONDS * np.array(self.packed, "float64"),
        )

    @property
    def ends_with_step(self) -> list[bool]:
        return [b >= 0 and f != NEVER for b, f in zip(self.born, self.freed, strict=True)]


def _rows(lists: list[list[int]]) -> tuple[Any, Any]:
    starts = np.cumsum([0, *map(len, lists)]).astype("int64")
    return starts, np.array([each for some in lists for each in some], "int32")


def random_step(random: np.random.Generator, depth: int) -> Step:
    """A chain with skips and its way back, as autograd makes them."""
    step = Step()
    sizes = [64 * int(random.integers(1, 2000)) for _ in range(4)]
    weights = [step.value(640) for _ in range(depth)]
    x = [step.value(640)]
    saved = []
    for i in range(depth):
        earlier = [x[-1]] + ([x[int(random.integers(len(x)))]] if random.random() < 0.3 else [])
        outputs = [sizes[int(random.integers(4))] for _ in range(1 + (random.random() < 0.2))]
        made = step.operation(
            [*earlier, weights[i]],
            outputs,
            seconds=float(random.integers(1, 30)),
            pure=bool(random.random() < 0.9),
            workspace=int(random.integers(0, 3)) * 6400,
            masks=bool(random.random() < 0.2),
        )
        saved.append((earlier, made))
        x.append(made[0])
    grad = step.operation([x[-1]], [step.nbytes[x[-1]]])[0]
    for i in reversed(range(depth)):
        earlier, made = saved[i]
        keep = [each for each in [*earlier, *made] if random.random() < 0.8]
        grads = step.operation([grad, weights[i], *keep], [sizes[0], 640], seconds=2.0)
        grad = grads[0]
        if random.random() < 0.5:
            step.operation([grads[1], weights[i]], [])
            step.writes[-1].append(weights[i])
    return step


@dataclass
class Carried:
    """Measured of a schedule that was carried out."""

    top: int
    live: int
    seconds: float


def carry_out(
    step: Step, actions: list[tuple[int, int, int, int]], places: list[int], spill: float
) -> Carried:
    """Carry a schedule out, value by value and byte by byte; raise AssertionError where it cannot be."""
    return _Interpreter(step, actions, places, spill).run()


class _Interpreter:
    def __init__(
        self, step: Step, actions: list[tuple[int, int, int, int]], places: list[int], spill: float
    ) -> None:
        self.step, self.actions, self.places, self.spill = step, actions, places, spill
        self.low = step.ends_with_step
        self.blocks: dict[Any, tuple[int, int]] = {}
        self.contents: dict[int, Any] = {}
        self.file: dict[int, Any] = {}
        self.packed: dict[int, Any] = {}
        self.going: dict[int, Any] = {}
        """Contents that are being written."""
        self.coming: set[int] = set()
        """Values whose contents are being read."""
        self.truth: dict[int, Any] = {
            v: ("before", v, 0) for v in range(len(step.nbytes)) if step.born[v] < 0
        }
        self.versions: dict[int, int] = {}
        self.next = 0
        self.result = Carried(0, 0, 0.0)

    def take(self, key: Any, nbytes: int) -> None:
        nbytes = max(64, -(-nbytes // 64) * 64)
        place = self.places[self.next]
        self.next += 1
        for other, size in self.blocks.values():
            assert place + nbytes <= other or other + size <= place, "blocks overlap"
        assert key not in self.blocks
        self.blocks[key] = (place, nbytes)
        self.result.top = max(self.result.top, place + nbytes)
        self.result.live = max(self.result.live, sum(size for _, size in self.blocks.values()))

    def content(self, value: int) -> Any:
        if self.low[value]:
            assert value in self.contents, f"value {value} is not there"
            assert value not in self.going, f"value {value} is read after its last use"
            return self.contents[value]
        return self.truth[value]

    def compute(self, number: int) -> dict[int, Any]:
        """Contents of what an operation makes: a function of what it reads."""
        read = tuple(self.content(value) for value in self.step.reads[number])
        return {value: hash((number, i, read)) for i, value in enumerate(self.step.births[number])}

    def run(self) -> Carried:
        step = self.step
        for number in range(len(step.seconds)):
            self.act(number, 0)
            self.operate(number)
            for value in [v for v in self.contents if step.freed[v] == number]:
                del self.contents[value], self.blocks[value]
            for value in [v for v in self.file if step.freed[v] == number]:
                del self.file[value]
            for value in [v for v in self.packed if step.freed[v] == number]:
                del self.packed[value], self.blocks["packed", value]
            self.act(number, 1)
        assert self.next == len(self.places)
        assert not self.going
        assert not self.coming
        return self.result

    def operate(self, number: int) -> None:
        step = self.step
        if step.workspace[number]:
            self.take("workspace", step.workspace[number])
        made = self.compute(number)
        for value, content in made.items():
            self.truth[value] = content
            if self.low[value]:
                self.take(value, step.nbytes[value])
                self.contents[value] = content
        self.blocks.pop("workspace", None)
        for value in step.writes[number]:
            content = hash((number, "write", self.truth[value]))
            self.truth[value] = content
            if self.low[value]:
                self.contents[value] = content

    def act(self, number: int, after: int) -> None:
        for _, _, kind, subject in (a for a in self.actions if a[0] == number and a[1] == after):
            if kind == RUN:
                self.run_again(subject)
            elif kind == DROP:
                del self.contents[subject], self.blocks[subject]
            elif kind == PACK:
                assert self.step.packed[subject]
                self.take(("packed", subject), self.step.packed[subject])
                self.packed[subject] = self.contents.pop(subject)
                del self.blocks[subject]
                self.result.seconds += PACK_SECONDS * self.step.packed[subject]
            elif kind == UNPACK:
                self.take(subject, self.step.nbytes[subject])
                self.contents[subject] = self.packed.pop(subject)
                del self.blocks["packed", subject]
            else:
                self.transfer(kind, subject)

    def transfer(self, kind: int, value: int) -> None:
        """Carry out a transfer to the file or back, or one of its ends; blocks are taken while it goes on."""
        if kind in (OUT, OUT_BEGIN):
            assert value not in self.going
            self.going[value] = self.contents[value]
            self.result.seconds += self.spill * max(64, -(-self.step.nbytes[value] // 64) * 64)
        if kind in (OUT, OUT_END):
            self.file[value] = self.contents.pop(value)
            assert self.file[value] == self.going.pop(value), "contents changed while they were written"
            del self.blocks[value]
        if kind in (IN, IN_BEGIN):
            assert value in self.file
            self.take(value, self.step.nbytes[value])
            self.coming.add(value)
        if kind in (IN, IN_END):
            self.coming.remove(value)
            self.contents[value] = self.file.pop(value)

    def run_again(self, number: int) -> None:
        step = self.step
        assert step.pure[number]
        if step.workspace[number]:
            self.take("workspace", step.workspace[number])
        made = self.compute(number)
        twice = []
        for value, content in made.items():
            assert content == self.truth[value], "an operation that runs again makes something else"
            here = any(
                (not self.low[value], value in self.contents, value in self.file, value in self.packed)
            )
            self.take(("twice", value) if here else value, step.nbytes[value])
            if here:
                twice.append(("twice", value))
            else:
                self.contents[value] = content
        self.blocks.pop("workspace", None)
        for key in twice:
            del self.blocks[key]
        self.result.seconds += step.seconds[number]
