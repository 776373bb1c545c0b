"""List of the test files that `make check` runs: the quickest of each folder, by the times of a whole run.

make test ARGS="--junitxml=times.xml" && python tools/fast_tests.py times.xml
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
LIST = TESTS / "fast.txt"
SECONDS = 80.0
"""Of all files together, of which two processes run half each."""
MOST = 2.5
"""Seconds of one file."""


def main(report: str) -> None:
    """Write the list from a report of pytest in JUnit's format."""
    chosen = fast(seconds_by_file(Path(report)))
    LIST.write_text("".join(f"{name}\n" for name in sorted(chosen)), encoding="utf-8")
    print(f"{len(chosen)} files in {LIST}")


def seconds_by_file(report: Path) -> dict[str, float]:
    """Return the seconds that the tests of each file took, fixtures included."""
    seconds: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        path = Path(*case.attrib["classname"].split("."))
        while len(path.parts) > 1 and not (TESTS.parent / path).with_suffix(".py").is_file():
            path = path.parent  # the classes of a file
        if path.parts:
            seconds[str(path.with_suffix(".py"))] += float(case.attrib["time"])
    return {name: each for name, each in seconds.items() if name.startswith("tests/")}


def fast(seconds: Mapping[str, float]) -> list[str]:
    """Return the quickest files, a file of each folder in turn, until their time is up."""
    folders: dict[Path, list[str]] = defaultdict(list)
    for name in sorted(seconds, key=lambda name: seconds[name]):
        if seconds[name] <= MOST:
            folders[Path(name).parent].append(name)
    turns = sorted(
        ((turn, name) for names in folders.values() for turn, name in enumerate(names)),
        key=lambda each: (each[0], seconds[each[1]]),
    )
    chosen, spent = [], 0.0
    for _, name in turns:
        spent += seconds[name]
        if spent > SECONDS:
            break
        chosen.append(name)
    return chosen


if __name__ == "__main__":
    main(sys.argv[1])
