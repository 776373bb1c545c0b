"""Fuzzing of every reader of untrusted bytes: ``python -m tests.fuzz [--seconds N] [TARGET ...]``.

Each target runs in a separate process, by Atheris where it is installed, else by Hypothesis. Inputs that
break a rule are in ``build/fuzz/TARGET/finding-*``; the exit status is 1 if there are any.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.fuzz.harness import FuzzTarget, all_targets
from tests.fuzz.worker import CURRENT, HANG_S, SUMMARY

ROOT = Path(__file__).parents[2]
LOG = "log"
START_S = 120
"""Seconds that a process may take to load the package, in addition to its time."""


def arguments() -> argparse.Namespace:
    """Return the command line, parsed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help="names or parts of names; all by default"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="time per target (60)")
    parser.add_argument("--engine", choices=("atheris", "hypothesis"), help="Atheris where it is installed")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz", help="where findings go")
    parser.add_argument("--list", action="store_true", help="print the names of the targets")
    return parser.parse_args()


def selected(words: list[str]) -> list[FuzzTarget]:
    """Return the targets whose names contain one of ``words``; all of them without words."""
    every = all_targets().values()
    targets = [target for target in every if not words or any(word in target.name for word in words)]
    if not targets:
        sys.exit(f"no target is called {' or '.join(words)}; --list prints the names")
    return targets


def run(target: FuzzTarget, seconds: float, engine: str, folder: Path) -> int:
    """Run a target, print its summary, and return the number of findings."""
    name, place = target.name, folder / target.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.worker",
        target.family,
        name,
        str(seconds),
        engine,
        str(place),
    ]
    limit_s = seconds + HANG_S + START_S
    with (place / LOG).open("wb") as log:
        try:
            status = subprocess.run(command, cwd=ROOT, stderr=log, timeout=limit_s, check=False).returncode
        except subprocess.TimeoutExpired:
            status = None
    summary = place / SUMMARY
    findings: dict[str, str] = {}
    if summary.exists():
        report = json.loads(summary.read_text(encoding="utf-8"))
        findings = report["findings"]
        print(
            f"{name}: {report['executions']:,} executions in {report['seconds']} s, {len(findings)} findings"
        )
    crashed = status != 0
    if crashed:
        shutil.copy(place / CURRENT, place / "finding-crash")
        print(f"{name}: the process ended with status {status}; see {LOG} and finding-crash in {place}")
    return len(findings) + crashed


def main() -> int:
    """Run the selected targets in order."""
    options = arguments()
    targets = selected(options.targets)
    if options.list:
        print("\n".join(target.name for target in targets))
        return 0
    engine = options.engine or ("atheris" if importlib.util.find_spec("atheris") else "hypothesis")
    findings = sum(run(target, options.seconds, engine, options.folder) for target in targets)
    print(f"{len(targets)} targets by {engine}, {findings} findings")
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
