"""Miss-ratio curves of a training step, from replays; and predictions beside what was measured."""

from __future__ import annotations

import numpy as np

from accelera import generate_synthetic_trace, simulate_cache
from accelera._plotting import LIGHT, policy_colours
from tools.pictures.drawing import BLUE, GREEN, ORANGE, figure_svg, plain_figure, words_in
from tools.pictures.ratios import saved

POLICIES = {"lru": "LRU", "gdsf": "GDSF", "arc": "ARC", "belady": "Belady"}
SHARES = np.linspace(0.02, 0.4, 60)


def miss_ratios() -> str:
    """Replay a training step in caches of many sizes and return the picture."""
    trace = generate_synthetic_trace("Transformer", num_layers=12, batch_size=4, mode="training", steps=3)
    footprint = int(trace.size_bytes.sum())
    colours = policy_colours(POLICIES)
    figure, axes = plain_figure(800, 360)
    figure.subplots_adjust(left=0.085, right=0.88, top=0.82, bottom=0.14)
    ends = {}
    for name, label in POLICIES.items():
        ratios = []
        for share in SHARES:
            ratios.append(
                simulate_cache(trace, capacity_bytes=int(share * footprint), policy=name).miss_ratio
            )
        axes.plot(SHARES, ratios, color=colours[name], linewidth=1.8)
        ends[name] = (label, float(np.interp(0.05, SHARES, ratios)))
    for place, (name, (label, _)) in enumerate(sorted(ends.items(), key=lambda each: -each[1][1])):
        axes.text(
            1.02,
            0.82 - 0.11 * place,
            label,
            transform=axes.transAxes,
            color=words_in(colours[name]),
            size=9.5,
            weight="bold",
        )
    axes.set_xlim(SHARES[0], SHARES[-1])
    axes.set_ylim(0, 1)
    axes.set_xticks([0.1, 0.2, 0.3, 0.4], ["10 %", "20 %", "30 %", "40 %"])
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.grid(color=LIGHT.grid, linewidth=0.8)
    axes.set_xlabel("capacity, of all distinct bytes")
    axes.set_ylabel("accesses that miss")
    figure.text(0.02, 0.93, "What a cache of each size misses in training steps", size=12, weight="bold")
    figure.text(
        0.02,
        0.865,
        f"three steps of a transformer, {len(trace.buffer):,} events; Belady knows the order, not the sizes",
        size=9,
        color=LIGHT.muted,
    )
    return figure_svg(figure, "Miss-ratio curves of a training step under four eviction policies")


def predictions() -> str:
    """Return seconds that the simulator predicted against those measured."""
    rows = saved("prediction")["rows"]
    figure, axes = plain_figure(800, 360)
    figure.subplots_adjust(left=0.085, right=0.62, top=0.82, bottom=0.14)
    low, high = 0.15, 4.0
    line = np.array([low, high])
    axes.fill_between(line, line / 1.15, line * 1.15, color=LIGHT.bands[2], linewidth=0)
    axes.plot(line, line, color=LIGHT.muted, linewidth=1)
    kinds = {
        "product": ("products", BLUE, "o"),
        "a * b": ("sums of arrays", ORANGE, "s"),
        "files": ("of files", GREEN, "D"),
    }
    for label, (name, colour, mark) in kinds.items():
        own = [row for row in rows if _kind(row["case"]) == label]
        axes.plot(
            [row["predicted_s"] for row in own],
            [row["measured_s"] for row in own],
            mark,
            color=colour,
            markersize=6,
            label=name,
            linestyle="",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [0.25, 0.5, 1, 2, 4]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.grid(color=LIGHT.grid, linewidth=0.8)
    axes.set_xlabel("predicted seconds")
    axes.set_ylabel("measured seconds")
    axes.legend(
        loc="center left", bbox_to_anchor=(1.04, 0.72), frameon=False, fontsize=9.5, labelcolor=LIGHT.ink
    )
    within = sum(row["total_error"] <= 0.15 for row in rows)
    axes.text(
        1.06,
        0.42,
        f"{within} of {len(rows)} runs within 15 %",
        transform=axes.transAxes,
        size=10.5,
        weight="bold",
    )
    axes.text(
        1.06,
        0.33,
        "(the grey band), from replays of\ntheir own records at the speeds\nthat probes found",
        transform=axes.transAxes,
        size=9,
        color=LIGHT.muted,
        va="top",
    )
    figure.text(0.02, 0.93, "Runs out of core: predicted against measured", size=12, weight="bold")
    figure.text(0.02, 0.865, "two cores; python -m benchmarks prediction", size=9, color=LIGHT.muted)
    return figure_svg(figure, "Predicted and measured seconds of runs out of core")


def _kind(case: str) -> str:
    return "files" if "files" in case else "a * b" if case.startswith("a *") else "product"
