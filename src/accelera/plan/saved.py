"""Saved plans: the choices of a plan in a file, from which the same steps can be made elsewhere and later."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from accelera.errors import ArgumentError, DTypeError, ShapeError, StoreError, StoreFormatError

FORMAT = 1
_FIELDS: dict[str, tuple[type, ...]] = {
    "operation": (str,),
    "operands": (dict,),
    "budget_bytes": (int, type(None)),
    "spec": (dict,),
}


@final
@dataclass(frozen=True)
class SavedPlan:
    """Choices of a plan, and the operands they are for."""

    operation: str
    operands: Mapping[str, list[Any]]
    """Shape and element type of each operand and the result, by name."""
    budget_bytes: int | None
    """The budget it was made for."""
    spec: Mapping[str, Any]
    """Its choices."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SavedPlan:
        """Return the plan in a file.

        Raises StoreError when it cannot be read, StoreFormatError when it is no saved plan.
        """
        try:
            text = Path(path).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"[plan] {path} cannot be read: {error}; give what Plan.save wrote") from error
        try:
            found = json.loads(text)
            version = found.pop("accelera_plan")
            plan = cls(**found)
            sound = all(isinstance(found[name], kind) for name, kind in _FIELDS.items())
        except (ValueError, KeyError, TypeError, AttributeError):
            sound = False
        if not sound:
            raise StoreFormatError(f"[plan] {path} is no saved plan; give what Plan.save wrote")
        if version != FORMAT:
            raise StoreFormatError(
                f"[plan] {path} has format {version}, this version reads {FORMAT}; plan and save again"
            )
        return plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON; raises StoreError when that cannot be."""
        try:
            text = json.dumps({"accelera_plan": FORMAT, **asdict(self)}, indent=2)
            Path(path).expanduser().write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"[plan] {path} cannot be written: {error}; choose another place") from error

    def stage(self, number: int, operation: str) -> SavedPlan:
        """Return the plan of one of its stages, counted from 0, which is that ``operation``."""
        begin = f"{number + 1}."
        operands = {
            name.removeprefix(begin): each for name, each in self.operands.items() if name.startswith(begin)
        }
        return SavedPlan(operation, operands, self.budget_bytes, self.spec["stages"][number])

    def require_stages(self, operation: str, count: int) -> None:
        """Raise ArgumentError or StoreFormatError unless it is of ``operation`` in ``count`` stages."""
        self.require_same(operation, {})
        specs = self.spec.get("stages")
        if (
            not isinstance(specs, list)
            or len(specs) != count
            or not all(isinstance(each, dict) for each in specs)
        ):
            raise StoreFormatError(
                f"[{operation}] plan= is not one of {count} stages, as this expression needs; plan again"
            )

    def require_same(self, operation: str, inputs: Mapping[str, tuple[Sequence[int], Any]]) -> None:
        """Raise unless it was made for ``operation`` on operands of these shapes and element types.

        Raises ArgumentError for another operation, ShapeError or DTypeError for other operands.
        """
        if operation != self.operation:
            raise ArgumentError(f"[{operation}] plan= was made for {self.operation}; plan this operation")
        for name, (shape, dtype) in inputs.items():
            planned_shape, planned_dtype = self.operands.get(name, [None, None])
            if planned_shape != list(shape):
                raise ShapeError(
                    f"[{operation}] {name} has shape {tuple(shape)}, plan= was made for {planned_shape}; "
                    f"plan for these operands"
                )
            if planned_dtype != str(dtype):
                raise DTypeError(
                    f"[{operation}] {name} is {dtype}, plan= was made for {planned_dtype}; plan for these "
                    f"operands"
                )
