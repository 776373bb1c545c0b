"""How the parts of Accelera work together: paper above, running below, one set of policies between."""

from __future__ import annotations

from tools.pictures.drawing import Drawing

WIDTH, HEIGHT = 860, 436


def house() -> str:
    """Return the picture."""
    drawing = Drawing(WIDTH, HEIGHT, "The parts of Accelera, and how they work together")
    _band(drawing, 16, "what you call")
    for left, name, more in (
        (16, "MatrixEngine", "files and arrays"),
        (184, "offload", "models in less memory"),
        (352, "intercepted", "a program as it is"),
        (520, "tensora.budget", "steps in a budget"),
        (688, "StrategyManager", "batches of tasks"),
    ):
        _box(drawing, (left, 34, 156, 50), name, more)
    for middle in (94, 262, 430):
        drawing.line(f"M{middle} 84v24", arrow=True)
    drawing.line("M598 84v10H540v14", arrow=True)
    _band(drawing, 93, "on paper: nothing is allocated", 608)
    _box(drawing, (16, 110, 548, 62), "plan", "every way to cut the work, walked on paper: peak, bytes, time")
    _box(drawing, (588, 110, 256, 62), "simulator, estimate", "any memories, any policy; advice")
    drawing.line("M588 141h-22", arrow=True)
    drawing.line("M150 172v30", arrow=True)
    drawing.line("M640 202v-28", arrow=True)
    _box(
        drawing,
        (16, 204, 828, 46),
        "policy",
        "21 eviction policies, compiled once: the run and the simulator use the same",
        fill="background",
    )
    drawing.line("M150 250v28", arrow=True)
    _band(drawing, 261, "in the run: inside the budget", 166)
    _box(
        drawing,
        (16, 280, 548, 62),
        "memory",
        "one pool with a hard capacity: pin, prefetch, evict, write back, and a record of it all",
    )
    _box(drawing, (576, 280, 268, 62), "trace", "every access, in order")
    drawing.line("M564 311h12", arrow=True)
    drawing.line("M710 280V172", arrow=True, dashes="4 3")
    drawing.text(702, 268, "replayed", colour="muted", size=11.5, anchor="end")
    for left, name, more in (
        (16, "devices", "CPU, CUDA, simulated"),
        (296, "stores", "where bytes live: RAM, npy, Zarr, HDF5 …"),
        (576, "executors", "threads, processes, GPU, Ray"),
    ):
        _box(drawing, (left, 370, 268, 50), name, more)
    drawing.line("M150 342v28", arrow=True)
    drawing.line("M430 342v28", arrow=True)
    drawing.line("M852 59V395H844", arrow=True)
    drawing.line("M844 59h8")
    return drawing.svg()


def _band(drawing: Drawing, y: float, words: str, left: float = 16) -> None:
    drawing.text(left, y + 8, words, colour="muted", size=11.5)


def _box(
    drawing: Drawing, place: tuple[float, float, float, float], name: str, more: str, fill: str = "box"
) -> None:
    left, top, width, height = place
    drawing.box(place, fill)
    drawing.text(left + width / 2, top + height / 2 - 3, name, anchor="middle", bold=True)
    drawing.text(left + width / 2, top + height / 2 + 14, more, anchor="middle", colour="muted", size=11.5)
