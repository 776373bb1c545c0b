"""``api/`` names every public name with its signature: a change of the interface is a change of a file."""

from __future__ import annotations

from tools.api_surface import FOLDER, surface
from tools.front_doors import doors, home_of, names_of, value_of

MOST_NAMES = 160
"""Public names outside Tensora; a name that two packages offer counts once."""


def test_the_files_are_those_of_the_sources() -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.txt")}
    made = surface()
    changed = sorted(name for name in {*kept, *made} if kept.get(name) != made.get(name))
    assert changed == [], "the public interface changed: run `make api`, and review the difference"


def test_the_interface_outside_tensora_stays_small() -> None:
    names = {
        (name, home_of(value_of(door, name)))
        for door in doors()
        if not door.startswith("accelera.tensora")
        for name in names_of(door)
    }
    assert len(names) <= MOST_NAMES
