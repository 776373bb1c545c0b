"""Pickles of classes of a script, with slots and attributes of enumeration members, which need help."""

from __future__ import annotations

import enum
from types import MemberDescriptorType
from typing import Any

Reduced = tuple[Any, ...]
_CLASS_FIELDS = 6
"""Length of the reduced form of a class that is sent as a whole, and not by its name."""


def complete_class(value: type, reduced: Any) -> Any:
    """Return ``reduced``, the form of a class that ``cloudpickle`` makes, with the parts that it omits."""
    if not isinstance(reduced, tuple) or len(reduced) != _CLASS_FIELDS:
        return reduced
    if issubclass(value, enum.Enum):
        return _with_member_attributes(value, reduced)
    # A named tuple declares its own slots.
    if "__slots__" in vars(value) and not issubclass(value, tuple):
        return _with_slots(value, reduced)
    return reduced


def _with_slots(value: type, reduced: Reduced) -> Reduced:
    """Declare slots when the class is made: later they have no effect, and objects get a dictionary."""
    make, (kind, name, bases, members, *rest), (attributes, slots), *items, set_state = reduced
    slot_names = vars(value)["__slots__"]
    slot_names = (slot_names,) if isinstance(slot_names, str) else tuple(slot_names)
    attributes = {
        name: content
        for name, content in attributes.items()
        if name not in ("__slots__", "__slotnames__") and not isinstance(content, MemberDescriptorType)
    }
    arguments = kind, name, bases, {**members, "__slots__": slot_names}, *rest
    return make, arguments, (attributes, slots), *items, set_state


def _with_member_attributes(value: type[enum.Enum], reduced: Reduced) -> Reduced:
    """Add attributes that the initializer of members has set, and second names of members."""
    make, arguments, state, *items, set_state = reduced
    members = list(value.__members__.items())
    attributes = {
        name: {key: content for key, content in vars(member).items() if not key.startswith("_")}
        for name, member in members
        if name == member.name
    }
    aliases = {name: member.name for name, member in members if name != member.name}
    class_attributes, slots = state
    class_attributes = {name: content for name, content in class_attributes.items() if name not in aliases}
    return (
        make,
        arguments,
        (set_state, (class_attributes, slots), attributes, aliases),
        *items,
        _set_enum_state,
    )


def _set_enum_state(kind: Any, state: tuple[Any, Any, dict[str, dict[str, Any]], dict[str, str]]) -> Any:
    set_state, class_state, attributes, aliases = state
    set_state(kind, class_state)
    for name, content in attributes.items():
        vars(kind[name]).update(content)
    for alias, name in aliases.items():
        if alias not in kind.__members__:
            type.__setattr__(kind, alias, kind[name])
            kind._member_map_[alias] = kind[name]
    return kind
