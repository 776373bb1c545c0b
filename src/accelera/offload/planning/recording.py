"""Records of a dry run: uses of blocks, ordinary tensors beside them, and saved tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from accelera.capture._internal import Effect, Storages, flops_of, tensors_in
from accelera.memory._internal import PoolBlock, Use
from accelera.offload.allocation_scope import AllocationScope
from accelera.offload.block_layout import part_name, row_parts
from accelera.offload.op_schema import device_of
from accelera.offload.training.activation_plan import SavedUse, StepRecord
from accelera.offload.training.saved_tensors import is_large
from accelera.offload.training.tape import ForwardTape, View

if TYPE_CHECKING:
    from accelera.offload.allocation_scope import AllocationScope
    from accelera.offload.training.activation_choice import InputSignature


class Begin(NamedTuple):
    """An operation begins to use blocks: (number, whether read, whether written)."""

    uses: tuple[tuple[int, bool, bool], ...]
    op: str


class End(NamedTuple):
    """The latest operation that began and has not ended, ends."""


class Create(NamedTuple):
    """A block comes into being."""

    block: int
    nbytes: int
    role: str
    name: str
    filled: bool
    """Whether it has contents from the beginning."""


class Free(NamedTuple):
    """Nothing refers to a block any more."""

    block: int


class Arithmetic(NamedTuple):
    """Arithmetic, and bytes of operands and results."""

    flops: float
    touched_bytes: int


class ValueSaved(NamedTuple):
    """The forward pass saves a value of the tape."""

    value: int


class ValueNeeded(NamedTuple):
    """The backward pass needs a saved value."""

    value: int


Event = Begin | End | Create | Free | Arithmetic | ValueSaved | ValueNeeded


class Excerpt(NamedTuple):
    """A part of notes."""

    events: list[Event]
    allocations: list[tuple[int, int]]


class Notes:
    """Everything that a dry run noted, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.positions: list[int] = []
        """For each event, the length of ``allocations`` at its time."""
        self.allocations: list[tuple[int, int]] = []
        """Ordinary tensors: (number, bytes; negative when released)."""
        self.allocation_ops: list[str] = []
        """For each allocation, the operator that made it."""
        self.temporaries: list[tuple[int, int]] = []
        """Positions, and the bytes that an operator takes there for itself."""
        self.most_pinned_bytes = 0
        self.largest_block_bytes = 0
        self.most_block_bytes = 0
        """Most bytes of blocks that exist at once."""
        self._alive_bytes = 0
        self._blocks_bytes: list[int] = []
        self._pinned: list[tuple[int, ...]] = []

    def add(self, event: Event) -> None:
        """Note an event."""
        self.events.append(event)
        self.positions.append(len(self.allocations))

    def create(self, nbytes: int, role: str, name: str, *, filled: bool) -> PoolBlock:
        """Note and return a new block."""
        block = PoolBlock(len(self._blocks_bytes), nbytes, role, name, filled=filled)
        self._blocks_bytes.append(nbytes)
        self.largest_block_bytes = max(self.largest_block_bytes, nbytes)
        self._alive_bytes += nbytes
        self.most_block_bytes = max(self.most_block_bytes, self._alive_bytes)
        self.add(Create(block.id, nbytes, role, name, filled))
        return block

    def position(self, event: int) -> int:
        """Return the length of ``allocations`` at the time of an event."""
        return self.positions[event] if event < len(self.positions) else len(self.allocations)

    def alive_bytes(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the bytes of ordinary tensors at each position."""
        sizes = np.array([nbytes for _, nbytes in self.allocations], np.int64)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

    def alive_at(self, event: int) -> int:
        """Return the bytes of ordinary tensors at the time of an event."""
        return int(self.alive_bytes()[self.position(event)])

    @contextmanager
    def set_aside(self) -> Iterator[Excerpt]:
        """Give an excerpt that receives, at the end of the context, its events, which are removed here."""
        excerpt = Excerpt([], [])
        events, allocations, temporaries = len(self.events), len(self.allocations), len(self.temporaries)
        alive_bytes = self._alive_bytes
        yield excerpt
        excerpt.events.extend(self.events[events:])
        excerpt.allocations.extend(self.allocations[allocations:])
        del self.events[events:], self.positions[events:], self.temporaries[temporaries:]
        del self.allocations[allocations:], self.allocation_ops[allocations:]
        self._alive_bytes = alive_bytes

    def free(self, block: int) -> None:
        """Note that nothing refers to a block any more."""
        self._alive_bytes -= self._blocks_bytes[block]
        self.add(Free(block))

    def begin(self, uses: tuple[tuple[int, bool, bool], ...], op: str) -> None:
        """Note that an operation begins."""
        self.add(Begin(uses, op))
        self._pinned.append(tuple(block for block, _, _ in uses))
        pinned = {block for each in self._pinned for block in each}
        self.most_pinned_bytes = max(self.most_pinned_bytes, sum(map(self._blocks_bytes.__getitem__, pinned)))

    def end(self) -> None:
        """Note that it ends."""
        self._pinned.pop()
        self.add(End())

    def work(self, flops: float, touched_bytes: int) -> None:
        """Note arithmetic, and bytes of operands and results."""
        self.add(Arithmetic(flops, touched_bytes))

    def allocate(self, number: int, nbytes: int, op: str) -> None:
        """Note that an ordinary tensor comes or goes."""
        self.allocations.append((number, nbytes))
        self.allocation_ops.append(op)


@final
class RecordingCache:
    """Stands in for the cache of a run; blocks are numbered in the order in which they are made.

    ``on_slab`` hears of every tensor that stands for the bytes of a block.
    """

    watched = False

    def __init__(
        self,
        mode: FakeTensorMode,
        device: torch.device,
        sizes: tuple[int, int, int],
        notes: Notes,
        on_slab: Callable[[torch.Tensor], None],
    ) -> None:
        self.block_bytes, self.least_bytes, self.capacity_bytes = sizes
        self.device = device
        self.scope = AllocationScope(None, None)
        self._mode = mode
        self._notes = notes
        self._on_slab = on_slab
        self._slabs: dict[int, torch.Tensor] = {}

    def adopt(self, tensor: torch.Tensor, name: str = "", role: str = "weight") -> tuple[PoolBlock, ...]:
        """Return the blocks that would hold ``tensor``."""
        parts = row_parts(tensor.shape, tensor.element_size(), self.block_bytes)
        rows = tensor.shape[0] if tensor.ndim else 1
        row_bytes = tensor.nbytes // rows if rows else 0
        return tuple(
            self._notes.create(
                (part.stop - part.start) * row_bytes, role, part_name(name, part, len(parts)), filled=True
            )
            for part in parts
        )

    def create(self, nbytes: int, name: str = "", role: str = "") -> PoolBlock:
        """Return a block without contents."""
        return self._notes.create(nbytes, role, name, filled=False)

    @contextmanager
    def use(self, uses: Sequence[Use], op: str = "", output_bytes: int = 0) -> Iterator[list[torch.Tensor]]:
        """Note an operation, and give tensors without bytes."""
        self._notes.begin(tuple((use.block.id, use.read, use.write) for use in uses), op)
        try:
            yield [self._slab(use.block) for use in uses]
        finally:
            self._notes.end()

    def free(self, block: PoolBlock) -> None:
        """Note the end of a block."""
        self._slabs.pop(block.id, None)
        self._notes.free(block.id)

    def check_there(self, op: str) -> None:
        """Do nothing: nothing can be missing in a dry run."""

    def working_s(self) -> float:
        """Return 0: a dry run takes no time."""
        return 0.0

    def _slab(self, block: PoolBlock) -> torch.Tensor:
        slab = self._slabs.get(block.id)
        if slab is None:
            with _disable_current_modes():
                shape = torch.empty(block.nbytes, dtype=torch.uint8, device="meta")
                slab = self._slabs[block.id] = FakeTensor(self._mode, shape, self.device)
            self._on_slab(slab)
        return slab


@final
class UnpooledTensors:
    """Records every operator on ordinary tensors; those on ``meta`` only have shapes and are left out."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._storages = Storages(on_death=self._released)
        self._counted: set[int] = set()
        self._excluded: set[int] = set()

    def exclude(self, tensor: torch.Tensor) -> None:
        """Leave the storage of ``tensor`` out of the count: it belongs to a block, or existed before."""
        self._excluded.add(self._storages.number(tensor))

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number under which the storage of ``tensor`` is counted; -1 when it is not."""
        number = self._storages.number(tensor)
        return number if number in self._counted else -1

    def count(self, tensor: torch.Tensor, op: str) -> int:
        """Count ``tensor`` from now on, if it was not seen before; return the number of its storage."""
        number = self._storages.number(tensor)
        if number >= 0 and number not in self._excluded and number not in self._counted:
            self._counted.add(number)
            self._notes.allocate(number, self._storages.sizes_bytes[number], op)
        return number

    def record_operator(self, func: Any, effect: Effect, args: Any, kwargs: Any, result: Any) -> None:
        """Take note of one operator; see ``Listener``."""
        tensors = [*tensors_in((args, kwargs)), *tensors_in(result)]
        tensors = [each for each in tensors if device_of(each).type != "meta"]
        for tensor in tensors:
            self.count(tensor, effect.name)
        if not tensors:
            return
        elements = max(each.numel() for each in tensors)
        touched = sum(each.numel() * each.element_size() for each in tensors)
        self._notes.work(flops_of(func, effect.name, args, kwargs, result, elements), touched)
        inside = _temporary_bytes(effect.name, args, touched)
        if inside:
            self._notes.temporaries.append((len(self._notes.allocations), inside))

    def _released(self, number: int) -> None:
        if number in self._counted:
            self._counted.remove(number)
            self._notes.allocate(number, -self._storages.sizes_bytes[number], "")


def _temporary_bytes(op: str, args: Any, touched_bytes: int) -> int:
    """Return the bytes that an operator takes inside, where no other operator shows them.

    oneDNN puts operands and results of convolutions into another layout, and weights of recurrent layers into
    two or three; a fused layer of a transformer makes queries, scores and the like.
    """
    if "convolution" in op:
        return touched_bytes
    if "rnn_layer" in op:
        return 3 * touched_bytes
    if op == "_native_multi_head_attention":
        return _attention_bytes(args[0], heads=args[4], masked=_argument(args, 9) is not None)
    if op == "_transformer_encoder_layer_fwd":
        source: torch.Tensor = args[0]
        normed = source.nbytes if args[8] else 0
        hidden = source.nbytes // source.shape[-1] * args[14].shape[0]
        attention = _attention_bytes(source, heads=args[2], masked=_argument(args, 18) is not None)
        return int(max(normed + attention, source.nbytes + normed + hidden))
    return 0


def _argument(args: Any, place: int) -> Any:
    return args[place] if len(args) > place else None


def _attention_bytes(source: torch.Tensor, heads: int, *, masked: bool) -> int:
    """Return the bytes that a fused attention takes inside besides its result.

    First queries, keys and values in one tensor and by heads; then those by heads and the scores, of which a
    mask takes another copy.
    """
    batch, length = source.shape[:2]
    scores = batch * heads * length * length * source.element_size()
    return max(5 * source.nbytes, 3 * source.nbytes + (2 if masked else 1) * scores)


@dataclass(frozen=True)
class _SavedPlaceholder:
    """Placeholder for a saved tensor during the dry run."""

    view: View
    use: SavedUse


_FLOPS_PER_S = 1e11

_BYTES_PER_S = 1e10
"""Speeds of a usual machine: what is cheap to compute again hardly depends on them."""


def _seconds(events: Sequence[Event]) -> float:
    """Return the seconds of the arithmetic among ``events``, by a roofline."""
    work = [each for each in events if isinstance(each, Arithmetic)]
    return sum(max(each.flops / _FLOPS_PER_S, each.touched_bytes / _BYTES_PER_S) for each in work)


@final
class RecordedSaves:
    """Takes the place of ``ActivationChoice`` and of the one forward pass that it begins."""

    def __init__(self, cache: Any, notes: Notes, ordinary: UnpooledTensors) -> None:
        self.signature: InputSignature = ()
        self._cache = cache
        self._notes = notes
        self._ordinary = ordinary
        self._tape = ForwardTape(lambda: 0.0, lambda: len(notes.events))
        self._uses: list[SavedUse] = []

    def begin(self, scope: AllocationScope, signature: InputSignature) -> RecordedSaves:
        """Begin the forward pass."""
        self.signature = signature
        return self

    def __enter__(self) -> RecordedSaves:
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        self._tape.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        self._tape.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._hooks.__exit__()

    def record(self, kept_bytes: int, end: int) -> StepRecord:
        """Return the record of the step, which ended at the event ``end``."""
        notes = self._notes
        for operation in self._tape.operations:
            operation.seconds = _seconds(notes.events[slice(*operation.span)])
        last = notes.position(end)
        allocations = np.array(notes.allocations[:last], np.int64).reshape(-1, 2)
        temporaries = [each for each in notes.temporaries if each[0] <= last]
        return StepRecord(allocations, self._uses, self._tape, kept_bytes, temporaries)

    def _pack(self, tensor: torch.Tensor) -> Any:
        if not is_large(tensor, self._cache):
            return tensor if tensor.grad_fn is None else tensor.detach()
        with self._tape.paused():
            view = self._tape.view_of(tensor)
            use = SavedUse(view.value, self._ordinary.number(tensor))
            self._uses.append(use)
            self._notes.add(ValueSaved(view.value))
        return _SavedPlaceholder(view, use)

    def _unpack(self, packed: Any) -> torch.Tensor:
        if not isinstance(packed, _SavedPlaceholder):
            kept: torch.Tensor = packed
            return kept
        self._notes.add(ValueNeeded(packed.view.value))
        position = len(self._notes.allocations)
        tensor = self._empty_like_saved(packed.view)
        packed.use.copies.append((position, self._ordinary.count(tensor, "saved")))
        return tensor

    def _empty_like_saved(self, view: View) -> torch.Tensor:
        """Return a tensor like the saved one, in a storage like the one it lay in."""
        count = self._tape.nbytes[view.value] // view.dtype.itemsize
        device = self._cache.device
        with torch.no_grad():
            if int(np.prod(view.sizes)) == count:
                shaped = torch.empty_strided(view.sizes, view.strides, dtype=view.dtype, device=device)
            else:
                flat = torch.empty(count, dtype=view.dtype, device=device)
                shaped = flat.as_strided(view.sizes, view.strides, view.offset)
            return view.marked(shaped)
