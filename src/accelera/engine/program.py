"""Element-wise program: an expression flattened into instructions that run on small pieces of its operands.

The tree is flattened, equal parts are computed once, and values that are no longer needed give their
scratch buffer to later ones. A piece is small enough for the caches, so a long expression costs one
pass over the memory, not one per operator.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accelera.engine.dtypes import cast_into, cast_itemsize
from accelera.engine.expression import Apply, Choose, ComplexPart, Constant, Convert, Expr, Leaf
from accelera.stores import Store

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class ProgramValue:
    """One value of a program, and the instruction that computes it."""

    kind: str
    """``"leaf"``, ``"constant"``, ``"convert"``, ``"real"``, ``"imag"``, ``"where"`` or ``"ufunc"``."""
    detail: Any
    """The leaf's number, the constant, or the function."""
    inputs: tuple[int, ...]
    """Indices of the values it is made of."""
    dtype: np.dtype[Any]
    """Type in which it is held."""
    shape: Shape
    """Shape when the whole expression is one piece, axes aligned to the expression's."""

    @property
    def computed(self) -> bool:
        """Whether it takes an instruction and a scratch buffer."""
        return self.kind not in ("leaf", "constant")


class ElementwiseProgram:
    """The instructions of one expression, over a space of at least one axis."""

    def __init__(self, root: Expr) -> None:
        self.shape: Shape = root.shape or (1,)
        builder = _Builder(len(self.shape))
        self.root = builder.add_all(root)
        self.values = builder.values
        self.leaves: tuple[Store, ...] = tuple(builder.leaves)
        """Operands, each once."""
        self.slots = _slots(self.values, self.root)
        """For each value the number of its scratch buffer; None for those that need none."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type in which the result is held."""
        return self.values[self.root].dtype

    @property
    def instructions(self) -> int:
        """Number of values that are computed."""
        return sum(each.computed for each in self.values)

    @property
    def slot_itemsizes(self) -> list[int]:
        """Bytes per element of each scratch buffer."""
        sizes: dict[int, int] = {}
        for value, slot in zip(self.values, self.slots, strict=True):
            if slot is not None:
                sizes[slot] = max(sizes.get(slot, 0), value.dtype.itemsize)
        return [sizes[slot] for slot in sorted(sizes)]

    @property
    def cast_itemsize(self) -> int:
        """Bytes per element that the largest conversion takes besides its input and output."""
        values = [each for each in self.values if each.kind == "convert"]
        return max(
            (cast_itemsize(self.values[each.inputs[0]].dtype, each.dtype) for each in values), default=0
        )

    def view(self, leaf: int) -> Store:
        """Return an operand with as many axes as the expression."""
        store = self.leaves[leaf]
        missing = len(self.shape) - store.ndim
        return store[(None,) * missing + (slice(None),) * store.ndim] if missing else store

    def text(self) -> str:
        """Return the program as text: equal texts on equal operands mean equal results."""
        return "; ".join(f"{index} = {_value_text(value)}" for index, value in enumerate(self.values))


def _value_text(value: ProgramValue) -> str:
    named = value.detail.__name__ if isinstance(value.detail, np.ufunc) else value.detail
    parts = [value.kind, "" if named is None else str(named), *map(str, value.inputs), str(value.dtype)]
    return " ".join(part for part in parts if part)


class Scratch:
    """The buffers in which one thread keeps the values of a piece."""

    def __init__(self, program: ElementwiseProgram, elements: int, order: Shape) -> None:
        self._program = program
        self._order = order
        self._inverse_order = tuple(int(axis) for axis in np.argsort(order))
        self._buffers = [np.empty(size * elements, np.uint8) for size in program.slot_itemsizes]

    def run(self, leaves: Sequence[Array], extent: Shape, out: Array | None = None) -> Array:
        """Compute a piece of shape ``extent`` from pieces of the leaves; return it, in ``out`` if it can be.

        ``out`` has the shape of the piece and the type of the program.
        """
        program = self._program
        values: list[Array] = []
        for index, value in enumerate(program.values):
            if value.kind == "leaf":
                values.append(leaves[value.detail])
            elif value.kind == "constant":
                values.append(value.detail)
            else:
                last = index == program.root and out is not None
                place = out if last and out is not None else self._slot_array(index, value, extent)
                _execute(value, [values[each] for each in value.inputs], place)
                values.append(place)
        found: Array = np.broadcast_to(values[program.root], extent)
        return found

    def _slot_array(self, index: int, value: ProgramValue, extent: Shape) -> Array:
        shape = fitted(extent, value.shape)
        slot = self._program.slots[index]
        assert slot is not None
        lying = tuple(shape[axis] for axis in self._order)
        place: Array = np.ndarray(lying, value.dtype, self._buffers[slot].data).transpose(self._inverse_order)
        return place


def fitted(extent: Shape, shape: Shape) -> Shape:
    """Return ``extent`` with length 1 along the axes where ``shape`` has length 1 and broadcasts."""
    return tuple(min(size, whole) for size, whole in zip(extent, shape, strict=True))


def _execute(value: ProgramValue, inputs: list[Array], out: Array) -> None:
    if value.kind == "ufunc":
        value.detail(*inputs, out=out)
    elif value.kind == "convert":
        cast_into(np.broadcast_to(inputs[0], out.shape), out)
    elif value.kind == "where":
        condition, x, y = inputs
        np.copyto(out, y)
        np.copyto(out, x, where=condition)
    elif inputs[0].dtype.kind == "c":
        np.copyto(out, inputs[0].real if value.kind == "real" else inputs[0].imag)
    else:
        out.fill(0)


class _Builder:
    """Flattens a tree into numbered values; equal subexpressions get one number."""

    def __init__(self, rank: int) -> None:
        self.values: list[ProgramValue] = []
        self.leaves: list[Store] = []
        self._rank = rank
        self._by_key: dict[Hashable, int] = {}
        self._value_numbers: dict[int, int] = {}

    def add_all(self, root: Expr) -> int:
        """Add ``root`` and its arguments, depth first; return the number of ``root``."""
        waiting = [root]
        while waiting:
            expr = waiting[-1]
            missing = [each for each in expr.arguments if id(each) not in self._value_numbers]
            if missing:
                waiting.extend(reversed(missing))
            else:
                waiting.pop()
                self._value_numbers[id(expr)] = self._add(expr)
        return self._value_numbers[id(root)]

    def _add(self, expr: Expr) -> int:
        inputs = [self._value_numbers[id(each)] for each in expr.arguments]
        if isinstance(expr, Leaf):
            return self._leaf(expr.store)
        if isinstance(expr, Constant):
            return self._constant(np.asarray(expr.value))
        if isinstance(expr, Apply):
            inputs = self._converted(expr.arguments, inputs, expr.signature.inputs)
            return self._value("ufunc", expr.ufunc, inputs, expr.signature.held, expr.shape)
        if isinstance(expr, Choose):
            inputs = self._converted(expr.arguments, inputs, expr.signature.inputs)
            return self._value("where", None, inputs, expr.signature.held, expr.shape)
        if isinstance(expr, ComplexPart):
            return self._value(expr.name, None, inputs, expr.dtype, expr.shape)
        assert isinstance(expr, Convert)
        return self._convert(inputs[0], expr.dtype)

    def _leaf(self, store: Store) -> int:
        for index, known in enumerate(self.leaves):
            if same_elements(store, known):
                return self._by_key["leaf", index]
        self.leaves.append(store)
        detail = len(self.leaves) - 1
        number = self._append(ProgramValue("leaf", detail, (), store.dtype, self._aligned(store.shape)))
        self._by_key["leaf", detail] = number
        return number

    def _constant(self, number: Array) -> int:
        key = ("constant", number.dtype.str, number.dtype.name, number.tobytes())
        value = ProgramValue("constant", number, (), number.dtype, (1,) * self._rank)
        return self._by_key[key] if key in self._by_key else self._keep(key, value)

    def _converted(
        self, arguments: Sequence[Expr], inputs: list[int], dtypes: Sequence[np.dtype[Any]]
    ) -> list[int]:
        return [
            self._constant(each.in_type(dtype))
            if isinstance(each, Constant)
            else self._convert(number, dtype)
            for each, number, dtype in zip(arguments, inputs, dtypes, strict=True)
        ]

    def _convert(self, number: int, dtype: np.dtype[Any]) -> int:
        value = self.values[number]
        if value.dtype == dtype:
            return number
        return self._value("convert", None, [number], dtype, value.shape)

    def _value(self, kind: str, detail: Any, inputs: list[int], dtype: np.dtype[Any], shape: Shape) -> int:
        key = (kind, getattr(detail, "__name__", None), tuple(inputs), dtype.name)
        value = ProgramValue(kind, detail, tuple(inputs), dtype, self._aligned(shape))
        return self._by_key[key] if key in self._by_key else self._keep(key, value)

    def _keep(self, key: Hashable, value: ProgramValue) -> int:
        self._by_key[key] = self._append(value)
        return self._by_key[key]

    def _append(self, value: ProgramValue) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _aligned(self, shape: Shape) -> Shape:
        return (1,) * (self._rank - len(shape)) + tuple(shape)


def _slots(values: Sequence[ProgramValue], root: int) -> list[int | None]:
    """Return the buffer number of each computed value; a buffer is reused once its value is not needed."""
    last_use = {each: index for index, value in enumerate(values) for each in value.inputs}
    last_use[root] = len(values)
    slots: list[int | None] = []
    free: list[int] = []
    count = 0
    for index, value in enumerate(values):
        if not value.computed:
            slots.append(None)
            continue
        ending = {each: slots[each] for each in value.inputs if last_use[each] == index}
        leaving = {slot for slot in ending.values() if slot is not None}
        taken = next((slots[each] for each in ending if _can_overwrite(value, values[each])), None)
        if taken is None and not free:
            free.append(count)
            count += 1
        slots.append(free.pop() if taken is None else taken)
        free.extend(leaving - {slots[-1]})
    return slots


def _can_overwrite(value: ProgramValue, other: ProgramValue) -> bool:
    """Return whether a result may overwrite an input: same type and shape, computed element by element."""
    alike = value.dtype == other.dtype and value.shape == other.shape
    return value.kind == "ufunc" and other.computed and alike


def same_elements(a: Store, b: Store) -> bool:
    """Return whether two operands are the same part of the same file or array."""
    if a is b:
        return True
    if a.dtype != b.dtype or a.shape != b.shape or a.tier != b.tier or a.name != b.name:
        return False
    mine, theirs = a.resident(), b.resident()
    if mine is not None and theirs is not None:
        return _address_and_strides(mine) == _address_and_strides(theirs)
    prints = a.fingerprint(), b.fingerprint()
    return prints[0] is not None and json.dumps(prints[0]) == json.dumps(prints[1])


def _address_and_strides(array: Array) -> tuple[int, Shape]:
    return array.__array_interface__["data"][0], array.strides
