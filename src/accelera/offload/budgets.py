"""Budgets of an offloaded model by device, and the least that each must hold besides blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from accelera.devices import Device, get_device
from accelera.errors import ArgumentError, BudgetExceededError
from accelera.memory import MemoryManager
from accelera.memory._internal import LEDGER, Budget
from accelera.offload.backing import BackingStores, RamBacking, ScratchBacking, TieredBacking
from accelera.offload.block_layout import BLOCKS
from accelera.offload.config import LEAST_BYTES
from accelera.offload.device_memory import tensor_device
from accelera.offload.tensor import can_be_offloaded
from accelera.stores._internal import STAGING_BYTES_PER_THREAD
from accelera.units import format_bytes


@dataclass(frozen=True)
class DeviceBudget:
    """The bytes that a model may take of one device that computes."""

    device: Device
    limit_bytes: int


@dataclass(frozen=True)
class DeviceBudgets:
    """The devices that compute, in the order of the model's parts, and the RAM beside them."""

    computing: tuple[DeviceBudget, ...]
    ram_bytes: int | None = None
    """Most RAM for what is on no accelerator; the rest lies in files. None: as ``store`` says."""

    @classmethod
    def parse(cls, op: str, budget: Any, model: Any, device: Any = None) -> DeviceBudgets:
        """Read a budget as people write it: one size, or sizes by device.

        Parameters
        ----------
        op
            Name of the operation, for messages.
        budget
            A size, for ``device``; or a mapping from devices to sizes. A device is a name
            (``"cuda:0"``, ``"cpu"``), the number of a CUDA device, a ``torch.device``, or a device of
            ``accelera.devices``, such as a simulated one.
        model
            Where its weights are is the device that computes when ``device`` is None.

        Raises ArgumentError for no devices, for one named twice, for a size that is none, that is zero or
        that the device does not have, and for ``device`` beside a mapping; UnknownNameError for a name that
        is none; DeviceError for a device that is not there.
        """
        if not isinstance(budget, Mapping):
            place = computing_device(model, device)
            return cls((DeviceBudget(place, Budget.parse(budget, MemoryManager(place)).limit_bytes),))
        if device is not None:
            raise ArgumentError(
                f"[{op}] device={device!r} beside budgets by device: these say which devices compute; leave "
                "device= out"
            )
        entries = _entries(op, budget)
        host = [each for each in entries if each.device.name == "cpu"]
        accelerators = tuple(each for each in entries if each.device.name != "cpu")
        if not accelerators:
            return cls(tuple(host))
        return cls(accelerators, host[0].limit_bytes if host else None)

    def only(self, op: str) -> tuple[Device, int]:
        """Return the one device that computes, and its budget; raises ArgumentError when there are more."""
        if len(self.computing) > 1:
            raise ArgumentError(
                f"[{op}] budgets of {len(self.computing)} accelerators: this is for one, and 'cpu' beside it"
            )
        return self.computing[0].device, self.computing[0].limit_bytes

    def backing(self, store: str | Path | None) -> BackingStores | None:
        """Return where bytes live that are on no device; None for the usual place beside each device."""
        if self.ram_bytes is None:
            return None
        places = (tensor_device(each.device) for each in self.computing)
        cuda = next((each for each in places if each.type == "cuda"), None)
        backing = TieredBacking(RamBacking(pinned_for=cuda), ScratchBacking(store), self.ram_bytes)
        LEDGER.reserve_while("offload", "offload", self.ram_bytes, backing)
        return backing


def computing_device(model: Any, device: Any) -> Device:
    """Return the device that computes: the one asked for, else the one where the weights are.

    Raises UnknownNameError for a name that is none, DeviceError for a device that is not there.
    """
    if device is None:
        first = next(model.parameters(), None) if isinstance(model, torch.nn.Module) else None
        device = "cpu" if first is None or first.is_meta else first.device
    return get_device(device if isinstance(device, Device) else str(device))


def _entries(op: str, budget: Mapping[Any, Any]) -> list[DeviceBudget]:
    if not budget:
        raise ArgumentError(
            f"[{op}] the budget names no device; write for example {{'cuda:0': '10GiB', 'cpu': '30GiB'}}"
        )
    entries: list[DeviceBudget] = []
    for spelled, amount in budget.items():
        named = f"cuda:{spelled}" if type(spelled) is int else spelled
        place = get_device(named if isinstance(named, Device) else str(named))
        if any(_is_same(place, each.device) for each in entries):
            raise ArgumentError(
                f"[{op}] {spelled!r} is {place.name}, which has a budget already; name it once"
            )
        entries.append(DeviceBudget(place, _limit(op, spelled, amount, place)))
    return entries


def _is_same(one: Device, other: Device) -> bool:
    """Return whether two objects are the same device; simulated ones may share a name."""
    return one is other or (one.name == other.name and not one.name.startswith("sim"))


def _limit(op: str, spelled: Any, amount: Any, place: Device) -> int:
    if amount is None:
        raise ArgumentError(f"[{op}] {spelled!r} has no size; write for example '10GiB'")
    limit = Budget.parse(amount, MemoryManager(place)).limit_bytes
    if place.name != "cpu" and limit > place.total_bytes():
        raise ArgumentError(
            f"[{op}] {spelled!r} has a budget of {limit} bytes; the device has {place.total_bytes()}"
        )
    return limit


RUNTIME_BYTES = 6 << 20
"""Memory of PyTorch's runtime and threads once they work, and of the run's own records."""

ARITHMETIC_BYTES = 4 << 20
"""What the library of products packs for itself, and again for each of its threads.

Measured over products of up to 4096 x 4096 x 4096 in all floating-point types: 1 MiB on one thread, 8 on two,
31 on eight.
"""

SPARE_BYTES = 1 << 20
"""Left for results where no inputs say how large they are; a guard makes blocks leave for larger ones."""

PARTS = 64
"""Parts into which the largest weight is cut in the least budget."""

_LEAST_BLOCKS = 16
"""Number of the smallest blocks that fit at least."""

_THREADS = 3
"""Two threads read and one writes."""


def reserved_on(device: Device) -> dict[str, int]:
    """Return the bytes that every offloaded model takes besides blocks and tensors, by what they are for."""
    if not device.host_memory:
        return {"arithmetic": device.workspace_bytes(), "runtime": RUNTIME_BYTES}
    return {
        "staging": _THREADS * STAGING_BYTES_PER_THREAD,
        "arithmetic": ARITHMETIC_BYTES * (1 + torch.get_num_threads()),
        "runtime": RUNTIME_BYTES,
    }


def least_room(largest_bytes: int, least_bytes: int = LEAST_BYTES) -> int:
    """Return the least room for blocks of a model whose largest weight has ``largest_bytes``."""
    return max(_LEAST_BLOCKS * least_bytes, 4 * largest_bytes // PARTS)


def require_floor(
    op: str, limit_bytes: int, tensors: Iterable[torch.Tensor], device: Device, *, train: bool
) -> None:
    """Raise BudgetExceededError, naming the least that does, when no operation of a model could fit.

    What is taken in any case and the blocks of one operation, cut as fine as can be, are to fit.
    """
    fixed = sum(reserved_on(device).values()) + SPARE_BYTES
    room = _least_block_bytes(tensors, train=train)
    if limit_bytes < fixed + room:
        least = fixed + room
        raise BudgetExceededError(
            f"[{op}] a budget of {format_bytes(limit_bytes)} ({limit_bytes} bytes): PyTorch's arithmetic, "
            f"transfers and threads take {format_bytes(fixed)} besides the weights, and the blocks of one "
            f"operation {format_bytes(room)}; raise it to at least {least} bytes ({format_bytes(least)})",
            needed_bytes=least,
            budget_bytes=limit_bytes,
        )


def _least_block_bytes(tensors: Iterable[torch.Tensor], *, train: bool) -> int:
    """Return the least room for blocks: a row is never cut, and several blocks are used at once."""
    large = [each for each in tensors if can_be_offloaded(each) and each.nbytes >= LEAST_BYTES]
    largest = max((each.nbytes for each in large), default=0)
    row = max((math.prod(each.shape[1:]) * each.element_size() for each in large), default=0)
    return max(least_room(largest), BLOCKS[train] * row)
