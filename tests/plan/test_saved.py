"""A plan's file: what is no plan, or of another version, is told from the rest; writing replaces it whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from accelera.errors import StoreFormatError
from accelera.plan._internal import SavedPlan

PLAN = SavedPlan("matmul", {"A": [[2, 3], "float32"]}, 1 << 20, {"tile": [2, 3]})


def test_a_plan_comes_back(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.json")
    assert SavedPlan.load(tmp_path / "plan.json") == PLAN


@pytest.mark.parametrize(
    ("version", "change", "says"),
    [
        *((2, change, "format 2") for change in ({}, {"more": 1}, {"spec": []})),
        *((1, change, "no saved plan") for change in ({"more": 1}, {"spec": []})),
    ],
)
def test_other_fields_are_no_plan_and_another_version_is_named_whatever_its_fields_are(
    tmp_path: Path, version: int, change: dict[str, object], says: str
) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)
    saved = json.loads(path.read_text())
    assert saved["accelera_plan"] == 1
    path.write_text(json.dumps({**saved, **change, "accelera_plan": version}))
    with pytest.raises(StoreFormatError, match=says):
        SavedPlan.load(path)


def test_a_new_plan_replaces_the_old_one_whole(tmp_path: Path) -> None:
    """Whoever has the old file open reads the old plan to its end."""
    PLAN.save(tmp_path / "plan.json")
    os.link(tmp_path / "plan.json", tmp_path / "same.json")
    SavedPlan("add", {}, None, {}).save(tmp_path / "plan.json")
    assert SavedPlan.load(tmp_path / "same.json") == PLAN
    assert SavedPlan.load(tmp_path / "plan.json").operation == "add"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["plan.json", "same.json"]
