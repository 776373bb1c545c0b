"""Draw the pictures of the documentation into ``docs/pictures``.

    python -m tools.pictures [NAME ...] [--check]

``--check`` draws nothing and fails when a chart of saved benchmarks is not what they say. Without names all
are drawn.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.pictures import curves, house, imports, overview, product_timeline, ratios, training_occupancy

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
FROM_RESULTS: Mapping[str, Callable[[], str]] = {
    "overview": overview.overview,
    "ratios_product": ratios.product,
    "ratios_offload": ratios.offload,
    "ratios_training": ratios.training,
    "ratios_tensora": ratios.tensora,
    "ratios_batches": ratios.batches,
    "ratios_cache": ratios.cache,
    "ratios_bound": ratios.bound,
    "ratios_interception": ratios.interception,
    "house": house.house,
}
"""Charts of the saved results, which are the same at every run."""
FROM_RUNS: Mapping[str, Callable[[], str]] = {
    "product_timeline": product_timeline.product_timeline,
    "training_occupancy": training_occupancy.training_occupancy,
    "miss_ratios": curves.miss_ratios,
    "predictions": curves.predictions,
    "imports": imports.imports,
}
"""Drawn from runs, replays and sources."""


def main(arguments: list[str]) -> int:
    """Draw the pictures, or check them; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures")
    parser.add_argument("names", nargs="*", choices=[[], *FROM_RESULTS, *FROM_RUNS])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    if options.check:
        return check()
    drawn = {**FROM_RESULTS, **FROM_RUNS}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in options.names or drawn:
        (FOLDER / f"{name}.svg").write_text(drawn[name](), encoding="utf-8")
        print(FOLDER / f"{name}.svg")
    return 0


def check() -> int:
    """Return 1 and print which pictures differ from the saved results; 0 when none does."""
    old = [name for name, draw in FROM_RESULTS.items() if _saved_texts(name) != _texts_of(draw())]
    if old:
        sys.stderr.write(f"draw again: python -m tools.pictures {' '.join(old)}\n")
    return int(bool(old))


def _saved_texts(name: str) -> list[str]:
    path = FOLDER / f"{name}.svg"
    return _texts_of(path.read_text(encoding="utf-8")) if path.exists() else []


def _texts_of(svg: str) -> list[str]:
    """Return the texts of a picture: figures and labels, whatever the drawing looks like."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
