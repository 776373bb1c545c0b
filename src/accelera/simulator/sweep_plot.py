"""A sweep as a picture, or as a page that stands alone."""

from __future__ import annotations

from pathlib import Path

from accelera.extras import needed_for
from accelera.simulator.curves import Curves
from accelera.simulator.sweep_page import sweep_page

GIB = 2**30
SIZE_INCHES = (9, 5.5)


def plot_sweep(curves: Curves, path: Path) -> Path:
    """Write ``curves`` to ``path``, a ``.png`` or ``.html`` file; return it.

    Raises BackendMissingError when a picture is asked for and matplotlib is absent, ValueError for another
    ending.
    """
    if path.suffix == ".html":
        path.write_text(sweep_page(curves), encoding="utf-8")
    elif path.suffix == ".png":
        _draw(curves, path)
    else:
        raise ValueError(f"[sweep] a plot cannot be written to {path.name}; end the name in .png or .html")
    return path


def _draw(curves: Curves, path: Path) -> None:
    with needed_for("sweep", "or plot to a .html file"):
        from matplotlib import colormaps
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_prop_cycle(color=colormaps["tab20"](range(20)))
    capacities = [size / GIB for size in curves.capacities]
    for policy in curves.ranking():
        axes.plot(
            capacities,
            curves.moved[policy] / GIB,
            label=policy,
            linewidth=2.5 if policy == curves.best else 1,
        )
    if curves.bounds is not None:
        axes.fill_between(capacities, curves.bounds / GIB, color="0.85", label="impossible")
    axes.axvline(curves.knee / GIB, color="0.4", linestyle=":", label="knee")
    axes.set(xlabel="capacity of the first tier, GiB", ylabel="moved, GiB", ylim=(0, None))
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(path, dpi=150)
