"""The import graph of the whole house: packages by layer, drawn from the sources by grimp.

An arrow says that a package imports another. Those that follow from others (a imports b, b imports c, and
a imports c) are left out, or nothing could be read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import grimp

from tools.pictures.drawing import Drawing

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
WIDTH, ROW, BOX, TOP = 900, 62, 34, 58
Edges = Mapping[tuple[str, str], int]


def imports() -> str:
    """Return the picture."""
    graph = grimp.build_graph("accelera")
    files = _files(graph)
    edges = _edges(graph, set(files))
    rows = _rows(files)
    kept = _reduced(edges)
    places = _placed(rows, kept, files)
    height = TOP + ROW * len(rows) + 4
    drawing = Drawing(WIDTH, height, "Which package of Accelera imports which")
    drawing.text(16, 26, f"{len(files)} packages, {sum(files.values())} files", size=15, bold=True)
    drawing.text(
        16,
        44,
        f"{len(kept)} of {len(edges)} arrows; the others follow from these. All point downwards: no cycle.",
        colour="muted",
        size=11.5,
    )
    for (one, other), count in sorted(kept.items()):
        _arrow(
            drawing, places[one], places[other], f"{one} imports {other}: {edges[one, other]} imports", count
        )
    for name, (left, top, width) in places.items():
        drawing.box((left, top, width, BOX), hint=f"{name}: {files[name]} files")
        drawing.text(left + width / 2, top + 15, name, anchor="middle", size=12.5, bold=True)
        said = "1 file" if files[name] == 1 else f"{files[name]} files"
        drawing.text(left + width / 2, top + 28, said, anchor="middle", size=10, colour="muted")
    return drawing.svg()


def _files(graph: grimp.ImportGraph) -> dict[str, int]:
    found: dict[str, int] = {}
    for module in graph.modules:
        parts = module.split(".")
        if len(parts) > 1 and not parts[1].startswith("_"):
            found[parts[1]] = found.get(parts[1], 0) + 1
    return {name: count for name, count in found.items() if count > 1}


def _edges(graph: grimp.ImportGraph, names: set[str]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for module in graph.modules:
        one = module.split(".")[1] if "." in module else ""
        for target in graph.find_modules_directly_imported_by(module) if one in names else ():
            other = target.split(".")[1] if "." in target else ""
            if other in names and other != one:
                found[one, other] = found.get((one, other), 0) + 1
    return found


def _rows(files: Mapping[str, int]) -> list[list[str]]:
    """Return the layers of pyproject.toml, from the top, as far as there is something in them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    rows = [[name for name in re.findall(r"\w+", layer) if name in files] for layer in layers]
    left = [name for name in files if name not in {one for row in rows for one in row}]
    return [row for row in [left, *rows] if row]


def _reduced(edges: Edges) -> dict[tuple[str, str], int]:
    """Return the edges that no longer way stands for."""
    below: dict[str, set[str]] = {}
    for one, other in edges:
        below.setdefault(one, set()).add(other)

    def reaches(start: str, end: str) -> bool:
        todo, seen = [start], set[str]()
        while todo:
            for each in below.get(todo.pop(), set()) - seen:
                if each == end:
                    return True
                seen.add(each)
                todo.append(each)
        return False

    return {
        (one, other): count
        for (one, other), count in edges.items()
        if not any(reaches(between, other) for between in below[one] - {other})
    }


def _placed(
    rows: Sequence[Sequence[str]], edges: Edges, files: Mapping[str, int]
) -> dict[str, tuple[float, float, float]]:
    """Return left, top and width of each box, near what it is connected to."""
    wide = {name: max(74.0, len(name) * 8 + 22) for name in files}
    middle: dict[str, float] = {}
    for number, row in enumerate(rows):
        above = {
            name: [middle[one] for one, other in edges if other == name and one in middle] for name in row
        }
        means = {name: sum(found) / len(found) if found else WIDTH / 2 for name, found in above.items()}
        ordered = sorted(row, key=lambda name: (means[name], name))
        if len(row) == 1:
            middle[row[0]] = WIDTH * (0.42 if number % 2 else 0.58)
        else:
            shift = 0.18 * (number % 3 - 1)
            middle |= {
                name: WIDTH * (place + 0.7 + shift) / (len(row) + 0.4) for place, name in enumerate(ordered)
            }
    return {
        name: (middle[name] - wide[name] / 2, TOP + ROW * number, wide[name])
        for number, row in enumerate(rows)
        for name in row
    }


def _arrow(
    drawing: Drawing,
    one: tuple[float, float, float],
    other: tuple[float, float, float],
    hint: str,
    count: int,
) -> None:
    x, y = one[0] + one[2] / 2, one[1] + BOX
    to_x, to_y = other[0] + other[2] / 2, other[1]
    shift = max(-0.35, min(0.35, (x - to_x) / WIDTH)) * other[2]
    end = to_x + shift
    bend = min(26 + 0.25 * (to_y - y), 90)
    drawing.line(
        f"M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {end:.0f} {to_y - bend:.0f} {end:.0f} {to_y - 1:.0f}",
        width=min(1.2 + count / 30, 2.6),
        arrow=True,
        opacity=0.8,
        hint=hint,
    )
