"""The first picture: what the project does, and what that was measured to cost."""

from __future__ import annotations

from tools.pictures.drawing import Drawing
from tools.pictures.ratios import saved

WIDTH, HEIGHT = 860, 470
INPUTS = (
    ("Matrix files", ".npy, Zarr, HDF5, safetensors"),
    ("A PyTorch model", "inference or training"),
    ("A program of tensors", "Tensora, or PyTorch as it is"),
    ("A batch of tasks", "CPU, GPU, processes, cluster"),
)
OUTPUTS = (
    ("The result", "in files or memory"),
    ("A report", "planned = moved, to the byte"),
    ("A trace", "replayed on paper: what if?"),
)
READS = ((0, 40), (42, 34), (78, 36), (116, 40), (158, 30), (190, 36))
COMPUTES = ((40, 44), (86, 46), (134, 44), (180, 42), (224, 36))
WRITES = ((134, 26), (182, 24), (262, 26))


def overview() -> str:
    """Return the picture."""
    drawing = Drawing(
        WIDTH, HEIGHT, "What Accelera does: a plan inside a budget, then a run that keeps to it"
    )
    _stack(drawing, 16, "you have", INPUTS, 44)
    _middle(drawing)
    _stack(drawing, 654, "you get", OUTPUTS, 61)
    for y in (66, 117, 168, 219):
        drawing.line(f"M204 {y}h18", arrow=True)
    for y in (83, 142, 201):
        drawing.line(f"M632 {y}h18", arrow=True)
    _measured(drawing, 278)
    return drawing.svg()


def _stack(
    drawing: Drawing, left: float, heading: str, items: tuple[tuple[str, str], ...], pitch: int
) -> None:
    drawing.text(left, 28, heading, colour="muted", size=12)
    step = pitch + 7 if pitch < 50 else pitch - 2
    for place, (name, more) in enumerate(items):
        top = 42 + place * step
        drawing.box((left, top, 188, step - 7))
        drawing.text(left + 12, top + step / 2 - 7, name, bold=True)
        drawing.text(left + 12, top + step / 2 + 8, more, colour="muted", size=11)


def _middle(drawing: Drawing) -> None:
    drawing.text(226, 28, "Accelera", colour="muted", size=12)
    drawing.box((226, 42, 402, 74))
    drawing.text(240, 64, "Plan, before anything is allocated", bold=True)
    drawing.text(240, 83, "peak, bytes and seconds of every way to cut the work;", colour="muted", size=12)
    drawing.text(
        240, 101, "what cannot fit is refused with the smallest budget that does", colour="muted", size=12
    )
    drawing.line("M427 116v12", arrow=True)
    drawing.box((226, 130, 402, 116))
    drawing.text(240, 151, "Run: read, compute and write overlap", bold=True)
    for row, (name, colour, spans) in enumerate(
        (("read", "read", READS), ("compute", "compute", COMPUTES), ("write", "write", WRITES))
    ):
        top = 162 + row * 20
        drawing.text(298, top + 12, name, colour="muted", size=11.5, anchor="end")
        for begin, length in spans:
            drawing.box((306 + begin, top, length, 15), colour, stroke=None, radius=2)
    drawing.line("M306 226h200", "least", width=2)
    drawing.text(512, 230, "your budget", colour="least", size=11, bold=True)
    drawing.line("M306 240v-6h36v-4h44v-2h60v1h40v1h20", "edge", width=1.5)
    drawing.text(298, 237, "memory", colour="muted", size=11.5, anchor="end")


def _measured(drawing: Drawing, top: int) -> None:
    drawing.line(f"M16 {top - 18}H{WIDTH - 16}", "grid")
    drawing.text(16, top + 4, "measured, beside the same work in memory", size=13, bold=True)
    drawing.text(330, top + 28, "memory", colour="muted", size=12)
    drawing.text(592, top + 28, "time", colour="muted", size=12)
    for row, (label, memory, time) in enumerate(_rows()):
        y = top + 36 + row * 34
        drawing.text(316, y + 17, label, anchor="end", size=12.5)
        for left, share, per_one in ((330, memory, 170), (592, time, 110)):
            drawing.box((left, y + 5, per_one, 17), "plain", stroke=None, radius=2)
            drawing.box((left, y + 5, share * per_one, 17), "best", stroke=None, radius=2)
            words = f"{share:.0%}" if left == 330 else f"{share:.2f} ×"
            drawing.text(left + max(share, 1) * per_one + 8, y + 18, words, size=12.5, bold=True)


def _rows() -> list[tuple[str, float, float]]:
    """Return label, share of memory, and share of time."""
    files = {run["contender"]: run for run in saved("matmul_16384_512MiB_peers")["runs"]}
    numpy, ours = files["numpy-whole-job"], files["accelera"]
    passes = {r["contender"]: r for r in saved("offload")["runs"] if not r["capped"] and r["rows"] == 512}
    plain, streamed = passes["in memory"], passes["accelera"]
    steps = saved("training")["cases"]["steps"]
    gpt = saved("tensora_budget")["contenders"]
    return [
        (
            "product of two 1 GiB files",
            ours["peak_bytes"] / numpy["peak_bytes"],
            ours["seconds"] / numpy["seconds"],
        ),
        (
            "inference with 1.6 GB of weights, batch of 512",
            (streamed["peak_bytes"] - streamed["idle_bytes"]) / (plain["peak_bytes"] - plain["idle_bytes"]),
            streamed["best_s"] / plain["best_s"],
        ),
        (
            "training step of a GPT-2 in PyTorch",
            steps["offloaded 2"]["growth_bytes"] / steps["in memory"]["growth_bytes"],
            steps["offloaded 2"]["of_in_memory"],
        ),
        (
            "training step of a small GPT in Tensora",
            gpt["tensora 65 MB"]["peak_mb"] / gpt["tensora"]["peak_mb"],
            gpt["tensora 65 MB"]["seconds"] / gpt["tensora"]["seconds"],
        ),
    ]
