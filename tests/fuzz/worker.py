"""One target in a separate process: ``python -m tests.fuzz.worker FAMILY NAME SECONDS ENGINE FOLDER``.

Findings are written to the folder; the input in progress too, so that the parent has it if the process dies.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import shutil
import sys
import time
import warnings
from pathlib import Path
from types import FunctionType

from tests.fuzz.harness import (
    CORPUS,
    RESOURCES,
    FuzzFinding,
    FuzzTarget,
    all_targets,
    check,
    load,
    memory_limit,
)

HANG_S = 60
"""Seconds after which an input counts as a hang and the process ends."""
BATCH = 500
"""Examples of Hypothesis per seed of its generator."""
CURRENT, SUMMARY = "current-input", "summary.json"
SUMMARY_INTERVAL = 64
_LIBFUZZER_MEMORY_MB = 8192


class FindingCollector:
    """Executes a target, keeps the shortest input of each defect, and counts executions."""

    def __init__(self, target: FuzzTarget, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._start_s = time.monotonic()
        self._descriptor = os.open(folder / CURRENT, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        self.executions = 0
        self.findings: dict[str, tuple[bytes, str]] = {}

    def execute(self, data: bytes) -> FuzzFinding | None:
        """Return the finding on ``data``, None if every rule is kept."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        self.executions += 1
        if self.executions % SUMMARY_INTERVAL == 0:  # libFuzzer ends the process itself
            self.write_summary()
        try:
            check(self._target, data)
        except FuzzFinding as finding:
            self._keep(finding, data)
            return finding
        finally:
            faulthandler.cancel_dump_traceback_later()
        return None

    def _keep(self, finding: FuzzFinding, data: bytes) -> None:
        shortest = self.findings.get(finding.key)
        if shortest is None:
            print(f"  finding {finding.key}: {str(finding)[:300]}", flush=True)
        if shortest is None or len(data) < len(shortest[0]):
            self.findings[finding.key] = data, str(finding)
            name = "".join(letter if letter.isalnum() else "-" for letter in finding.key)
            (self._folder / f"finding-{name}").write_bytes(data)

    def write_summary(self) -> None:
        """Write executions, seconds and findings as JSON."""
        findings = {key: message[:500] for key, (_, message) in self.findings.items()}
        summary = {
            "executions": self.executions,
            "seconds": round(time.monotonic() - self._start_s, 1),
            "findings": findings,
        }
        (self._folder / SUMMARY).write_text(json.dumps(summary), encoding="utf-8")


def run_hypothesis(target: FuzzTarget, collector: FindingCollector, seconds: float) -> None:
    """Execute mutated corpus files until the time is over; findings are reduced by Hypothesis."""
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis.errors import Flaky

    from tests.fuzz.mutations import mutated

    deadline_s = time.monotonic() + seconds
    corpus = target.corpus
    for data in corpus:
        collector.execute(data)
    reduced: set[str] = set()
    number = int(time.time())
    while time.monotonic() < deadline_s:
        number += 1

        @seed(number)
        @settings(
            max_examples=BATCH,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            report_multiple_bugs=False,
        )
        @given(mutated(corpus))
        def batch(data: bytes) -> None:
            if time.monotonic() > deadline_s:
                return
            finding = collector.execute(data)
            if finding is not None and finding.key not in reduced:
                raise finding

        try:
            batch()
        except FuzzFinding as finding:
            reduced.add(finding.key)
        except Flaky:  # the time was over while Hypothesis reduced an input; the collector has the shortest
            return


def run_atheris(target: FuzzTarget, collector: FindingCollector, seconds: float, folder: Path) -> None:
    """Execute inputs that libFuzzer derives from the corpus by the coverage of the Python code."""
    import atheris

    instrument_package()
    working = folder / "corpus"
    shutil.copytree(CORPUS / target.name, working, dirs_exist_ok=True)

    def execute(data: bytes) -> None:
        collector.execute(data)

    options = [
        f"-max_total_time={int(seconds)}",
        f"-artifact_prefix={folder}/",
        f"-rss_limit_mb={_LIBFUZZER_MEMORY_MB}",
        f"-timeout={HANG_S}",
        "-max_len=16384",
        "-verbosity=0",
        "-print_final_stats=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(working)], execute)
    atheris.Fuzz()


def instrument_package() -> None:
    """Let every loaded function of the package count its branches.

    Atheris instruments modules as they are imported, but not those of an editable installation.
    """
    import atheris

    for function in [each for each in gc.get_objects() if type(each) is FunctionType]:
        if (function.__module__ or "").startswith("accelera."):
            atheris.instrument_func(function)


def main(family: str, name: str, seconds: str, engine: str, folder: str) -> None:
    """Run one target."""
    faulthandler.enable()
    warnings.simplefilter("error")
    logging.disable(logging.CRITICAL)
    target = all_targets([family])[name]
    load(target)
    collector = FindingCollector(target, Path(folder))
    with memory_limit():
        if engine == "atheris":
            run_atheris(target, collector, float(seconds), Path(folder))
        else:
            run_hypothesis(target, collector, float(seconds))
    collector.write_summary()
    RESOURCES.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
