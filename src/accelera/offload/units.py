"""Units of a model, which stay whole on one device, assigned in their order and in proportion to budgets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from accelera.offload.tensors.taking import storage_key, tensors_of

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
"""Opened where they are exactly these: a subclass may do anything with its children."""


@dataclass(frozen=True)
class Assignment:
    """The devices, by number, of what a model consists of."""

    units: tuple[tuple[nn.Module, int], ...]
    tensors: dict[str, int]
    """Of each parameter and buffer, by its first name."""

    @property
    def devices(self) -> tuple[int, ...]:
        """Numbers of the devices that have anything, in order."""
        return tuple(sorted(set(self.tensors.values())))


def assigned(model: nn.Module, budgets: Sequence[int]) -> Assignment:
    """Assign the units of ``model`` to devices with ``budgets`` in bytes.

    Each device gets a row of units, of bytes in proportion to its budget. Units that share a weight are on
    one device, that of the first of them. What belongs to no unit is on the first device in use.
    """
    units = units_of(model)
    owner: dict[int, int] = {}
    leaders, sizes = list(range(len(units))), [0] * len(units)
    for number, unit in enumerate(units):
        shared = set()
        for _, tensor in tensors_of(unit):
            first = owner.setdefault(storage_key(tensor), number)
            shared.add(_leader(leaders, first))
        for other in shared:
            leaders[other] = min(shared)
        leaders[number] = min(shared)
    for key, nbytes in _storages(model).items():
        if key in owner:
            sizes[_leader(leaders, owner[key])] += nbytes
    devices = _in_proportion(sizes, budgets)
    of_unit = [devices[_leader(leaders, number)] for number in range(len(units))]
    return Assignment(
        tuple(zip(units, of_unit, strict=True)),
        {name: of_unit[owner.get(storage_key(tensor), 0)] for name, tensor in tensors_of(model)},
    )


def units_of(model: nn.Module) -> list[nn.Module]:
    """Return what stays whole: the elements of lists and sequences, and other modules without lists in them.

    A model that is one unit but for what surrounds it is opened further.
    """
    units = list(dict.fromkeys(_units(model)))
    while len(units) == 1 and (parts := list(dict.fromkeys(_units(units[0])))):
        units = parts
    return units or [model]


def _units(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if next(child.parameters(), None) is None:
            continue
        if type(child) in _LISTS or (type(module) not in _LISTS and _has_list(child)):
            yield from _units(child)
        else:
            yield child


def _has_list(module: nn.Module) -> bool:
    return any(
        type(part) in _LISTS and next(part.parameters(), None) is not None for part in module.modules()
    )


def _leader(leaders: list[int], number: int) -> int:
    while leaders[number] != number:
        number = leaders[number]
    return number


def _storages(model: nn.Module) -> dict[int, int]:
    """Return the bytes of each storage, under its key."""
    sizes: dict[int, int] = {}
    for _, tensor in tensors_of(model):
        key = storage_key(tensor)
        sizes[key] = max(sizes.get(key, 0), tensor.nbytes)
    return sizes


def _in_proportion(sizes: Sequence[int], budgets: Sequence[int]) -> list[int]:
    """Return a device for each size: that in whose share of the sum its middle lies."""
    ends = list(itertools.accumulate(budgets))
    devices, start = [], 0
    for size in sizes:
        middle = (2 * start + size) * ends[-1]
        devices.append(next(i for i, end in enumerate(ends) if middle <= 2 * sum(sizes) * end))
        start += size
    return devices
