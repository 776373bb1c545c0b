"""Charts of saved benchmarks: how many times the time or the memory of something else, never seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.pictures.drawing import Drawing

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
WIDTH, ROW, HEAD = 800, 25, 78
LABELS, GAP, VALUE = 250, 24, 74


class Bar(NamedTuple):
    """One contender in one panel."""

    value: float | None
    """A ratio; None: it failed."""
    failed: str = ""


class Panel(NamedTuple):
    """One measure of all contenders."""

    heading: str
    bars: Sequence[Bar]
    as_percent: bool = False


def saved(name: str) -> dict[str, Any]:
    """Return a file of ``benchmarks/results``."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def chart(title: str, note: str, labels: Sequence[str], panels: Sequence[Panel]) -> str:
    """Return bars in panels side by side; contenders of ours are those whose label begins with Accelera."""
    drawing = Drawing(WIDTH, HEAD + ROW * len(labels) + 16, title)
    drawing.text(16, 26, title, size=15, bold=True)
    drawing.text(16, 45, note, colour="muted", size=11.5)
    wide = (WIDTH - LABELS - 16 - GAP * (len(panels) - 1)) / len(panels)
    for place, panel in enumerate(panels):
        left = LABELS + place * (wide + GAP)
        drawing.text(left, 69, panel.heading, colour="muted", size=11.5)
        longest = max(bar.value or 0 for bar in panel.bars)
        for row, (label, bar) in enumerate(zip(labels, panel.bars, strict=True)):
            _bar(drawing, (left, HEAD + ROW * row), bar, (wide - VALUE) / longest, (label, panel.as_percent))
    for row, label in enumerate(labels):
        ours = _is_ours(label)
        drawing.text(LABELS - 12, HEAD + ROW * row + 16, label, anchor="end", size=12.5, bold=ours)
    return drawing.svg()


def _bar(
    drawing: Drawing, place: tuple[float, float], bar: Bar, per_one: float, said: tuple[str, bool]
) -> None:
    left, top = place
    label, as_percent = said
    if bar.value is None:
        drawing.text(left, top + 16, bar.failed, colour="excess", size=12)
        return
    ours = _is_ours(label)
    drawing.box((left, top + 4, bar.value * per_one, 16), "best" if ours else "plain", stroke=None, radius=2)
    words = f"{bar.value:.0%}" if as_percent else f"{_digits(bar.value)} ×"
    drawing.text(left + bar.value * per_one + 6, top + 16, words, size=12, bold=ours)


def _is_ours(label: str) -> bool:
    return label.startswith(("Accelera", "Tensora"))


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 3 else f"{value:.1f}" if value < 20 else f"{value:.0f}"


def product() -> str:
    """Return a product of files beside what else multiplies files."""
    found = {run["contender"]: run for run in saved("matmul_16384_512MiB_peers")["runs"]}
    names = {
        "accelera": "Accelera, budget 512 MiB",
        "numpy-whole-job": "NumPy: load, multiply, save",
        "numpy-memmap": "NumPy on memory maps",
        "dask": "dask, chunks of 2048",
        "cubed": "Cubed, allowed 512 MiB",
    }
    base = found["numpy-whole-job"]
    return chart(
        "Two files of 1 GiB multiplied into a third",
        "16384 × 16384 float32 on two cores; python -m benchmarks matmul",
        list(names.values()),
        [
            Panel("time, over NumPy's", [Bar(found[n]["seconds"] / base["seconds"]) for n in names]),
            Panel(
                "peak memory, of NumPy's",
                [Bar(found[n]["peak_bytes"] / base["peak_bytes"]) for n in names],
                as_percent=True,
            ),
        ],
    )


def offload() -> str:
    """Return a model in less memory than its weights beside what else runs such models."""
    runs = [run for run in saved("offload")["runs"] if run["capped"]]
    found = {(run["contender"], run["rows"]): run.get("best_s") for run in runs}
    names = {
        "accelera": "Accelera, budget 400 MB",
        "double buffer": "a double buffer by hand",
        "mapped file": "weights in a mapped file",
        "accelerate disk_offload": "accelerate disk_offload",
        "in memory": "weights in memory",
    }

    def bars(rows: int) -> list[Bar]:
        ours = found["accelera", rows]
        times = [found[name, rows] for name in names]
        return [Bar(None, "killed") if each is None else Bar(each / ours) for each in times]

    return chart(
        "A model of 1.6 GB where 700 MB are allowed: time over Accelera's",
        "one pass of 24 linear layers in a control group, two cores; python -m benchmarks offload",
        list(names.values()),
        [Panel(f"batch of {rows}" if rows > 1 else "batch of one", bars(rows)) for rows in (1, 64, 512)],
    )


def training() -> str:
    """Return steps of a GPT-2 in less and less memory beside checkpointing."""
    cases = saved("training")["cases"]["steps"]
    names = {
        "in memory": "in memory",
        "checkpointing": "torch.utils.checkpoint",
        "offloaded 4": "Accelera, 4 × the weights",
        "offloaded 2": "Accelera, 2 × the weights",
        "offloaded 1.5": "Accelera, 1.5 × the weights",
    }
    base = cases["in memory"]
    return chart(
        "A training step of a GPT-2 in less memory",
        "29 M parameters, AdamW, 4 × 256 tokens, two cores; python -m benchmarks training",
        list(names.values()),
        [
            Panel("time, over the step in memory", [Bar(cases[n]["of_in_memory"]) for n in names]),
            Panel(
                "memory that the process grows by",
                [Bar(cases[n]["growth_bytes"] / base["growth_bytes"]) for n in names],
                as_percent=True,
            ),
        ],
    )


def tensora() -> str:
    """Return a step of Tensora in budgets beside PyTorch's ways to save memory."""
    found = saved("tensora_budget")["contenders"]
    names = {
        "torch": "PyTorch",
        "torch, a checkpoint per block": "PyTorch, checkpoint per block",
        "torch, compiled 0.1": "torch.compile, memory budget 0.1",
        "tensora": "Tensora, no budget",
        "tensora 0.5": "Tensora, half of its peak",
        "tensora 65 MB": "Tensora, 65 MB",
        "tensora 45 MB": "Tensora, 45 MB",
    }
    base = found["torch"]
    return chart(
        "A training step of a small GPT: Tensora in budgets",
        "two cores; python -m benchmarks tensora-budget",
        list(names.values()),
        [
            Panel("time, over PyTorch's", [Bar(found[n]["seconds"] / base["seconds"]) for n in names]),
            Panel(
                "peak memory, of PyTorch's",
                [Bar(found[n]["peak_mb"] / base["peak_mb"]) for n in names],
                as_percent=True,
            ),
        ],
    )


def batches() -> str:
    """Return batches of work beside the pools that a user would otherwise take."""
    cases = saved("executors")["cases"]
    labels = {
        "one": "one tiny task",
        "ten": "ten tiny tasks",
        "tiny": "10,000 tiny tasks",
        "products": "200 products of NumPy",
        "loops": "200 loops of Python",
        "arrays": "100 arrays of 4 MiB",
    }
    names = ("ThreadPoolExecutor", "ProcessPoolExecutor", "joblib", "Dask", "Ray")
    ours = {case: cases[case]["seconds"]["accelera"] for case in labels}
    return _table(
        "Batches of tasks: time over Accelera's",
        "the default executor, two cores, pools open before the clock starts; python -m benchmarks executors",
        names,
        {
            label: [cases[case]["seconds"][name] / ours[case] for name in names]
            for case, label in labels.items()
        },
    )


def _table(title: str, note: str, columns: Sequence[str], rows: dict[str, list[float]]) -> str:
    """Return ratios as a table; those below one, where the other is faster, are red."""
    drawing = Drawing(WIDTH, HEAD + 28 * len(rows) + 16, title)
    drawing.text(16, 26, title, size=15, bold=True)
    drawing.text(16, 45, note, colour="muted", size=11.5)
    wide = (WIDTH - 180 - 16) / len(columns)
    for place, name in enumerate(columns):
        drawing.text(180 + wide * (place + 0.5), 69, name, colour="muted", size=11.5, anchor="middle")
    for row, (label, values) in enumerate(rows.items()):
        top = HEAD + 28 * row
        drawing.text(168, top + 18, label, anchor="end", size=12.5)
        for place, value in enumerate(values):
            drawing.box((180 + wide * place + 2, top + 1, wide - 4, 25), "box", stroke=None, radius=3)
            words = f"{value:,.0f} ×" if value >= 20 else f"{_digits(value)} ×"
            colour = "excess" if value < 0.995 else "ink"
            drawing.text(
                180 + wide * (place + 0.5), top + 18, words, anchor="middle", colour=colour, size=12.5
            )
    return drawing.svg()


def cache() -> str:
    """Return requests per second of the simulator of a cache over libCacheSim's."""
    rows = sorted(saved("cache")["rows"], key=lambda row: -row["ratio"])
    return chart(
        "A cache simulated: requests per second over libCacheSim's",
        "ten million requests, Zipf, sizes differ, one core, equal misses; python -m benchmarks cache",
        [f"Accelera, {row['policy'].upper()}" for row in rows],
        [Panel("speed, over libCacheSim's on the same trace", [Bar(row["ratio"]) for row in rows])],
    )


def bound() -> str:
    """Return what policies move over the least that anyone could."""
    means = saved("bound")["geometric_mean"]
    names = {
        "planner": "Accelera, planner",
        "belady": "Belady",
        "iteration_replay": "last iteration replayed",
        "gdsf": "GDSF",
        "lru": "LRU",
        "arc": "ARC",
    }
    return chart(
        "Bytes that policies move over the least possible",
        "six captured training steps in 30, 50 and 75 % of their peaks; python -m benchmarks bound",
        list(names.values()),
        [Panel("bytes moved, over the lower bound (geometric mean)", [Bar(means[n]) for n in names])],
    )


def interception() -> str:
    """Return what looking at every call of PyTorch adds to a small one."""
    found = saved("interception")["added_ns"]["torch.mm"]
    names = {
        "shim": "Accelera, compiled shim",
        "stable": "Accelera, stable C functions",
        "patched names": "patched names (forward only)",
        "TorchFunctionMode": "TorchFunctionMode",
        "python": "Accelera, in Python",
        "TorchDispatchMode": "TorchDispatchMode",
    }
    return chart(
        "What interception adds to a small torch.mm that it lets pass",
        "two cores; python -m benchmarks interception",
        list(names.values()),
        [
            Panel(
                "added time, of the call's own",
                [Bar(found[n] / found["alone"]) for n in names],
                as_percent=True,
            )
        ],
    )
