"""Names of PyTorch's OpInfo on whose samples Tensora has PyTorch's values, first and second gradients.

python -m benchmarks tensora-opinfo --save tensora-opinfo
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from benchmarks.machine import save
from tests import torch_samples
from tests.tensora import opinfo, opinfo_table


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save how many names agree on all samples, and what is missing for which reason."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tensora-opinfo")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true", help="two samples of a few names")
    options = parser.parse_args(arguments)
    names = opinfo_table.names()[::40] if options.small else opinfo_table.names()
    verdicts = [opinfo.check(name, 2 if options.small else None) for name in names]
    figures = counted(verdicts)
    report(figures, verdicts)
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def counted(verdicts: list[opinfo.Verdict]) -> dict[str, Any]:
    """Numbers of names, and the reasons of those that are missing."""
    known = set(torch_samples.operator_infos())
    agreeing = [each.name for each in verdicts if each.agrees()]
    levels = {
        level: sum(level in each.levels and each.agrees(level) for each in verdicts)
        for level in opinfo.LEVELS
    }
    return {
        "names": len(known),
        "agreeing": len(agreeing),
        "agreeing by shapes and types alone": len(opinfo_table.DRAWN.intersection(agreeing)),
        **{f"agreeing, {level}": n for level, n in levels.items()},
        "samples": sum(each.samples for each in verdicts),
        "samples left out": {each.name: each.excused for each in verdicts if each.excused},
        "disagreeing": {each.name: reason_of(each) for each in verdicts if not each.agrees()},
        "not there": sorted(known - set(opinfo_table.names())),
    }


def reason_of(verdict: opinfo.Verdict) -> str:
    """Return why a name does not agree: the entry of the table, else the first problem."""
    if verdict.name in opinfo_table.DISAGREEING:
        return opinfo_table.DISAGREEING[verdict.name]
    found = [f"{level}: {text}" for level, texts in verdict.problems.items() for text in texts]
    return " ".join(found[0].split())[:200] if found else "no sample was compared"


def report(figures: dict[str, Any], verdicts: list[opinfo.Verdict]) -> None:
    """Print the figures, then the missing names."""
    for key in list(figures)[:7]:
        print(f"{key:40} {figures[key]:6}")
    reasons = Counter(reason for each in verdicts for reason in each.excused)
    for reason in reasons:
        total = sum(each.excused.get(reason, 0) for each in verdicts)
        print(f"{total:5} samples of {reasons[reason]} names left out: {reason}")
    print(f"\ndisagreeing ({len(figures['disagreeing'])}):")
    for name, reason in figures["disagreeing"].items():
        print(f"  {name}: {reason}")
    print(f"\nnot there ({len(figures['not there'])}):\n  {' '.join(figures['not there'])}")
