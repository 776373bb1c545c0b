"""Draw docs/speed_and_memory.svg, the chart of the README, from the saved results.

    python -m benchmarks.chart [--check]

``--check`` writes nothing and fails when the picture is not what the results say.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"
PICTURE = Path(__file__).parents[1] / "docs" / "speed_and_memory.svg"

WIDTH, ROW, HEAD, FOOT = 800, 24, 52, 20
LABEL_END, TIME_FROM, MEMORY_FROM, LONGEST = 230, 242, 540, 190
OURS, OTHERS, TEXT, FAINT = "#2563eb", "#9ca3af", "#111827", "#4b5563"


class Row(NamedTuple):
    """What one contender took."""

    label: str
    seconds: float | None
    """None: it was killed."""
    peak_bytes: int
    """The most memory above the idle process."""


class Panel(NamedTuple):
    """Contenders at one task."""

    title: str
    measured: str
    rows: list[Row]


def product() -> Panel:
    """Return the product of two files beside what else multiplies files."""
    saved = _saved("matmul_16384_512MiB_peers")
    found = {run["contender"]: run for run in saved["runs"]}
    labels = {
        "accelera": "Accelera, budget 512 MiB",
        "numpy-whole-job": "NumPy: load, multiply, save",
        "numpy-memmap": "NumPy on memory maps",
        "dask": "dask, chunks of 2048",
        "cubed": "Cubed, allowed 512 MiB",
    }
    rows = [Row(label, found[name]["seconds"], found[name]["peak_bytes"]) for name, label in labels.items()]
    title = "16384 × 16384 float32, from two files into a third (1 GiB each)"
    return Panel(title, _measured(saved, "one round"), rows)


def offload() -> Panel:
    """Return a model bigger than its memory beside what else runs such models."""
    saved = _saved("offload")
    found = {run["contender"]: run for run in saved["runs"] if run["capped"] and run["rows"] == 64}
    labels = {
        "accelera": "Accelera, budget 400 MB",
        "accelerate disk_offload": "accelerate disk_offload",
        "mapped file": "weights in a mapped file",
        "in memory": "weights in memory",
    }
    title = "A model of 1.6 GB in a control group of 700 MB: one pass over 64 rows"
    return Panel(title, _measured(saved, "best of four"), [_offloaded(found[n], labels[n]) for n in labels])


def _offloaded(run: dict[str, Any], label: str) -> Row:
    if "failed" in run:
        return Row(label, None, 0)
    return Row(label, run["best_s"], run["peak_bytes"] - run["idle_bytes"])


def _saved(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _measured(saved: dict[str, Any], rounds: str) -> str:
    machine = saved["machine"]
    date, cores = machine["date"].partition("T")[0], machine["cores"]
    return f"{rounds}, {cores} cores without a GPU, {date}, commit {machine['commit'][:7]}"


def svg() -> str:
    """Return the picture."""
    lines, top = [], 0
    for panel in (product(), offload()):
        lines += _panel(panel, top)
        top += HEAD + ROW * len(panel.rows) + FOOT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" font-size="13"'
            ' font-family="system-ui, sans-serif" role="img">',
            "<title>Time and peak memory of a product of files and of a model bigger than its memory</title>",
            f'<rect width="{WIDTH}" height="{top}" rx="8" fill="#ffffff"/>',
            *lines,
            "</svg>\n",
        ]
    )


def _panel(panel: Panel, top: int) -> Iterator[str]:
    yield _text(12, top + 20, panel.title, TEXT, weight="bold")
    yield _text(12, top + 36, panel.measured, FAINT, size=11)
    yield _text(TIME_FROM, top + 48, "seconds", FAINT, size=11)
    yield _text(MEMORY_FROM, top + 48, "peak memory above the idle process", FAINT, size=11)
    slowest = max(row.seconds or 0 for row in panel.rows)
    largest = max(row.peak_bytes for row in panel.rows)
    for index, row in enumerate(panel.rows):
        y = top + HEAD + ROW * index
        colour = OURS if row.label.startswith("Accelera") else OTHERS
        yield _text(LABEL_END, y + 16, row.label, TEXT, anchor="end")
        if row.seconds is None:
            yield _text(TIME_FROM, y + 16, "killed: it does not fit", TEXT)
            continue
        yield from _bar(TIME_FROM, y, row.seconds / slowest, f"{row.seconds:.3g} s", colour)
        yield from _bar(MEMORY_FROM, y, row.peak_bytes / largest, _size(row.peak_bytes), colour)


def _bar(x: int, y: int, share: float, value: str, colour: str) -> Iterator[str]:
    length = round(LONGEST * share, 1)
    yield f'<rect x="{x}" y="{y + 4}" width="{length}" height="16" rx="2" fill="{colour}"/>'
    yield _text(x + length + 6, y + 16, value, TEXT)


def _text(x: float, y: int, text: str, colour: str, **more: Any) -> str:
    """Return a text; ``more``: ``size``, ``weight``, ``anchor``."""
    names = {"size": "font-size", "weight": "font-weight", "anchor": "text-anchor"}
    said = "".join(f' {names[name]}="{value}"' for name, value in more.items())
    return f'<text x="{x:g}" y="{y}" fill="{colour}"{said}>{text}</text>'


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"


def main() -> int:
    """Write or check the picture."""
    if "--check" not in sys.argv:
        PICTURE.write_text(svg(), encoding="utf-8")
    elif not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != svg():
        sys.stderr.write(f"{PICTURE.name} is not what the results say; run python -m benchmarks.chart\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
