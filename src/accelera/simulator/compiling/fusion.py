"""Fusion: operations that a compiler merges into one loop, and the bytes and launches that saves.

The rules follow PyTorch's inductor. Loops merge when one reads what the other wrote or both read the same
contents, when they run over the same elements, when nothing outside stands between them, and up to
``MOST_OPERATIONS`` at once; per phase, since forward and backward are compiled apart. Reductions over the
fastest axis take part like pointwise loops, those over slow axes only with their like. Library calls keep
their epilogues apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accelera.simulator.compiling.dataflow import OPTIMIZER, Dataflow, OpKind, TracedOperation, base_name

MOST_OPERATIONS = 64
"""Operations in one merged loop, inductor's ``max_fusion_size``."""
FARTHEST_STEPS = 128
"""Most steps between two loops that may be merged."""

_ROW = {OpKind.POINTWISE, OpKind.ROW_REDUCTION, OpKind.ROW_AND_COLUMN, OpKind.COLUMN_THEN_POINTWISE}
_TWO_LOOPS = {OpKind.ROW_AND_COLUMN, OpKind.COLUMN_THEN_POINTWISE}
_LOOPS = _ROW | {OpKind.COLUMN_REDUCTION, OpKind.FULL_REDUCTION, OpKind.CONSTANT}
_EXTRA_LAUNCHES = {"mean": 1, "max_pool2d_with_indices_backward": 3}
"""Further launches of an operation: loops over reduced elements, and those that prepare a scatter."""


@dataclass(frozen=True)
class FusedKernel:
    """One loop or call of the compiled program."""

    steps: tuple[int, ...]
    """Steps of the trace that it computes."""
    ops: tuple[str, ...]
    phase: str
    flops: float
    read_bytes: int
    written_bytes: int
    launches: int
    eager_bytes: int
    """Bytes that its steps read and write when they run one by one."""
    eager_launches: int
    inner: tuple[int, ...] = ()
    """Values that never reach memory."""

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def saved_bytes(self) -> int:
        """Bytes no longer read and written."""
        return self.eager_bytes - self.nbytes

    @property
    def saved_launches(self) -> int:
        """Launches no longer needed."""
        return self.eager_launches - self.launches


def fuse(flow: Dataflow, *, optimizer: bool = False) -> tuple[FusedKernel, ...]:
    """Return the kernels of the compiled program, in order of their first step.

    Parameters
    ----------
    optimizer
        Whether the optimizer's step is compiled too; ``torch.compile(model)`` leaves it as it is.
    """
    groups = _Groups(flow)
    for operation in flow.operations:
        if _merges(operation, optimizer):
            groups.join(operation)
    merged = (
        _kernel(flow, [flow.operations[step] for step in steps])
        for steps in groups.members()
        if _is_kernel(flow.operations[steps[0]], len(steps), optimizer)
    )
    return (*_layout_copies(flow), *merged)


def _merges(operation: TracedOperation, optimizer: bool) -> bool:
    return operation.kind in _LOOPS and (optimizer or operation.phase != OPTIMIZER)


def _is_kernel(first: TracedOperation, count: int, optimizer: bool) -> bool:
    """Return whether a group is a kernel: a lone constant is folded when it is compiled."""
    folded = first.kind is OpKind.CONSTANT and _merges(first, optimizer)
    return first.runs and (count > 1 or not folded)


class _Groups:
    """Steps in disjoint groups; a merge that would make two groups depend on each other is refused."""

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        count = len(flow.operations)
        self._group = list(range(count))
        self._steps: dict[int, list[int]] = {step: [step] for step in range(count)}
        self._producers = [sorted(set(flow.producers(each))) for each in flow.operations]
        self._order: list[int | None] = list(range(count))
        self._positions = list(range(count))

    def members(self) -> Iterator[list[int]]:
        """Yield the steps of each group, by first step."""
        return iter(sorted(self._steps.values()))

    def join(self, operation: TracedOperation) -> None:
        """Merge the step's group with the groups it shares values with, the most shared bytes first."""
        shared = self._shared_bytes(operation)
        for step in sorted(shared, key=lambda each: (-shared[each], -each)):
            own, other = self._group[operation.index], self._group[step]
            if own != other and self._may_merge(own, other):
                self._merge(own, other)

    def _shared_bytes(self, operation: TracedOperation) -> dict[int, int]:
        """Return the bytes shared with each group, by the latest step of the group."""
        shared: dict[int, int] = defaultdict(int)
        for index in operation.reads:
            value = self._flow.values[index]
            near = {value.producer, *value.consumers} - {-1}
            groups = {self._group[step] for step in near if self._is_near(step, operation)}
            for group in groups:
                shared[self._steps[group][-1]] += value.nbytes
        return shared

    def _is_near(self, step: int, operation: TracedOperation) -> bool:
        other = self._flow.operations[step]
        near = 0 < operation.index - step <= FARTHEST_STEPS
        return near and other.phase == operation.phase and _merges(other, optimizer=True)

    def _may_merge(self, one: int, other: int) -> bool:
        small_enough = len(self._steps[one]) + len(self._steps[other]) <= MOST_OPERATIONS
        return small_enough and self._same_loop(one, other)

    def _same_loop(self, one: int, other: int) -> bool:
        first = [self._flow.operations[step] for step in self._steps[one]]
        second = [self._flow.operations[step] for step in self._steps[other]]
        if not _reduce_alike(first, second):
            return False
        domains = {each.domain for each in first}, {each.domain for each in second}
        if max(domains[0]) == max(domains[1]):
            return True
        small, large = (first, second) if max(domains[0]) < max(domains[1]) else (second, first)
        return _runs_over_reductions(small, large) or self._is_inlined(small, large)

    def _is_inlined(self, small: Sequence[TracedOperation], large: Sequence[TracedOperation]) -> bool:
        """Return whether the smaller loop is pointwise and only the larger one uses its results."""
        if any(each.kind not in (OpKind.POINTWISE, OpKind.CONSTANT) for each in small):
            return False
        inside = {each.index for each in (*small, *large)}
        made = [self._flow.values[value] for each in small for value in each.writes]
        return all(not value.stays and inside.issuperset(value.consumers) for value in made)

    def _merge(self, one: int, other: int) -> None:
        """Merge two groups, unless the later one also depends on the earlier one through a third."""
        early, late = sorted((one, other), key=self._positions.__getitem__)
        start, end = self._positions[early], self._positions[late]
        between = [group for group in self._order[start + 1 : end] if group is not None]
        after = {early}
        for group in between:
            if not after.isdisjoint(self._groups_before(group)):
                after.add(group)
        after.remove(early)
        if not after.isdisjoint(self._groups_before(late)):
            return
        free = [group for group in between if group not in after]
        self._arrange([*free, late, *(group for group in between if group in after)], start, end)
        steps = self._steps.pop(early)
        for step in steps:
            self._group[step] = late
        self._steps[late] = sorted(self._steps[late] + steps)

    def _arrange(self, groups: Sequence[int], start: int, end: int) -> None:
        """Put ``groups`` in this order at the end of the positions ``start`` to ``end``."""
        first = end + 1 - len(groups)
        self._order[start:first] = [None] * (first - start)
        for position, group in enumerate(groups, start=first):
            self._order[position] = group
            self._positions[group] = position

    def _groups_before(self, group: int) -> set[int]:
        producers = (each for step in self._steps[group] for each in self._producers[step])
        return {self._group[producer] for producer in producers} - {group}


def _reduce_alike(first: Sequence[TracedOperation], second: Sequence[TracedOperation]) -> bool:
    """Return whether both reduce alike: slow axes only with slow axes, all axes only with pointwise loops."""
    kinds = [{each.kind for each in group} - {OpKind.CONSTANT} for group in (first, second)]
    columns = [OpKind.COLUMN_REDUCTION in each for each in kinds]
    if any(columns):
        return all(columns)
    if any(OpKind.FULL_REDUCTION in each for each in kinds):
        return set.union(*kinds) <= {OpKind.POINTWISE, OpKind.FULL_REDUCTION}
    return True


def _runs_over_reductions(small: Sequence[TracedOperation], large: Sequence[TracedOperation]) -> bool:
    """Return whether the smaller loop runs over the results of the larger one's row reductions."""
    made = {each.outer for each in large if each.kind is OpKind.ROW_REDUCTION}
    return {each.domain for each in small} <= made


def _kernel(flow: Dataflow, operations: Sequence[TracedOperation]) -> FusedKernel:
    inside = {each.index for each in operations}
    values = flow.values
    read = {v for each in operations for v in each.reads if values[v].producer not in inside}
    made = {v for each in operations for v in each.writes}
    written = {v for v in made if values[v].stays or not inside.issuperset(values[v].consumers)}
    return FusedKernel(
        steps=tuple(sorted(inside)),
        ops=tuple(each.op for each in operations),
        phase=operations[0].phase,
        flops=sum(each.flops for each in operations),
        read_bytes=sum(values[v].nbytes for v in read)
        + sum(_reread_bytes(flow, each) for each in operations),
        written_bytes=sum(values[v].nbytes for v in written),
        launches=1 + _extra_launches(operations),
        eager_bytes=sum(each.nbytes for each in operations),
        eager_launches=sum(each.runs for each in operations),
        inner=tuple(sorted(made - written)),
    )


def _extra_launches(operations: Sequence[TracedOperation]) -> int:
    """Return the number of launches after the first: a second loop, and those of ``_EXTRA_LAUNCHES``."""
    second = any(each.kind in _TWO_LOOPS for each in operations)
    return second + sum(_EXTRA_LAUNCHES.get(base_name(each.op), 0) for each in operations)


def _reread_bytes(flow: Dataflow, operation: TracedOperation) -> int:
    """Return the bytes that an operation's second loop reads again."""
    if operation.kind not in _TWO_LOOPS:
        return 0
    operands = (flow.values[value] for value in operation.reads)
    return sum(value.nbytes for value in operands if value.elements == operation.domain)


def _layout_copies(flow: Dataflow) -> Iterator[FusedKernel]:
    """Yield the loops that copy images and weights to the layout that convolutions prefer."""
    for operation in flow.operations:
        if base_name(operation.op) == "convolution":
            given = [v for v in map(flow.values.__getitem__, operation.reads) if v.producer < 0]
            for value in sorted(given, key=lambda each: each.nbytes)[len(operation.reads) == 3 :]:
                yield FusedKernel((), ("layout",), operation.phase, 0.0, value.nbytes, value.nbytes, 1, 0, 0)
