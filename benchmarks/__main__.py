"""``python -m benchmarks [NAME] [OPTIONS]``: run one benchmark, or all of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NAMES = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main(arguments: list[str]) -> None:
    """Dispatch to ``bench_<name>.main``; without a name run all with the same options."""
    chosen = [arguments[0]] if arguments and arguments[0] in NAMES else NAMES
    rest = arguments[1:] if chosen != NAMES else arguments
    for name in chosen:
        print(f"== {name}", flush=True)
        importlib.import_module(f"benchmarks.bench_{name}").main(rest)


if __name__ == "__main__":
    main(sys.argv[1:])
