"""``python -m benchmarks [NAME] [OPTIONS]``: run one benchmark, or all of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NAMES = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main(arguments: list[str]) -> None:
    """Dispatch to ``bench_<name>.main``; without a name run all with the same options."""
    arguments = [
        each.replace("-", "_") if i == 0 and each[:1] != "-" else each for i, each in enumerate(arguments)
    ]
    named = bool(arguments) and not arguments[0].startswith("-")
    if arguments[:1] in (["-h"], ["--help"]) or (named and arguments[0] not in NAMES):
        print(f"python -m benchmarks [NAME] [OPTIONS]; the names: {', '.join(NAMES)}; NAME --help tells more")
        sys.exit(f"{arguments[0]!r} is no benchmark" if named else 0)
    chosen, rest = (arguments[:1], arguments[1:]) if named else (NAMES, arguments)
    for name in chosen:
        print(f"== {name}", flush=True)
        importlib.import_module(f"benchmarks.bench_{name}").main(rest)


if __name__ == "__main__":
    main(sys.argv[1:])
