"""Builds of the C++ code that observe it, and the tests that run on them.

``python tools/instrumented.py sanitize`` builds with the address and undefined-behavior sanitizers and again
with the thread sanitizer, and runs the C++ tests and the Python tests of ``tests/sanitized.txt`` on each.
``python tools/instrumented.py coverage`` runs the C++ tests and all Python tests, and prints the lines and
branches of csrc that they execute, by folder, with the files below the goals.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILDS = {
    "address": ["-DACCELERA_SANITIZE=address,undefined"],
    "thread": ["-DACCELERA_SANITIZE=thread"],
    "coverage": ["-DACCELERA_COVERAGE=ON"],
}
RUNTIMES = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",), "coverage": ()}
"""Libraries of a sanitizer that a process loads before all others."""
LINE_GOAL, BRANCH_GOAL = 90.0, 75.0
"""Percent of the lines and branches of a file."""


def build(name: str) -> Path:
    """Configure and compile one instrumented build; return its folder."""
    folder = ROOT / "build" / name
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *BUILDS[name]]
    options = ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", f"-DPython_EXECUTABLE={sys.executable}"]
    _run([*configure, *options, "-DACCELERA_TENSORA=ON"])
    _run(["cmake", "--build", str(folder), "--target", "all", "accelera_tests"])
    return folder


def environment(name: str, folder: Path) -> tuple[str, dict[str, str]]:
    """Return a Python whose ``accelera`` has the instrumented modules, and the variables for it.

    It is a virtual environment over this one: the package's files are links next to the modules, and the
    ``.pth`` files of this environment, which lead to the usual modules, are not read.
    """
    overlay = folder / "site"
    _run(["cmake", "--install", str(folder), "--prefix", str(overlay)])
    for source in (ROOT / "src" / "accelera").iterdir():
        link = overlay / "accelera" / source.name
        if not link.exists():
            link.symlink_to(source)
    python = folder / "python"
    if not python.exists():
        venv.create(python, symlinks=True)
    site = python / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    (site / "overlay.pth").write_text(f"{overlay}\n{sysconfig.get_path('purelib')}\n")
    variables = {
        "LD_PRELOAD": " ".join(_library(each) for each in (*RUNTIMES[name], "libstdc++.so.6")),
        # The interpreter keeps memory until its end. Tests ask for more than there is, and get an error.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": f"suppressions={ROOT / 'tools' / 'thread_sanitizer.txt'}:"
        "ignore_noninstrumented_modules=1:halt_on_error=1:history_size=4:die_after_fork=0",
        "PYTHONMALLOC": "malloc",
    }
    if name == "coverage":
        variables = {}
    return str(python / "bin" / "python"), variables


def _library(name: str) -> str:
    """Return the path of a library of the compiler."""
    output = subprocess.run(["c++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return str(Path(output.stdout.strip()).resolve())


def _run(command: list[str], variables: dict[str, str] | None = None) -> None:
    print("+", shlex.join(command), flush=True)
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, **(variables or {})})


def sanitize(only: str | None, arguments: list[str]) -> None:
    """Run the tests on the builds with sanitizers; a report ends the process that it is of."""
    lines = (ROOT / "tests" / "sanitized.txt").read_text().splitlines()
    chosen = [line for line in lines if not line.startswith("#")]
    for name in ("address", "thread"):
        if only not in (None, name):
            continue
        folder = build(name)
        python, variables = environment(name, folder)
        native = {key: value for key, value in variables.items() if key.endswith("SAN_OPTIONS")}
        native["ASAN_OPTIONS"] = "detect_leaks=1"
        _run([str(folder / "accelera_tests")], native)
        pytest = [python, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
        _run([*pytest, *(arguments or chosen)], variables)


def coverage(arguments: list[str]) -> None:
    """Run all tests on the build that counts, and print the coverage."""
    folder = build("coverage")
    for counts in folder.rglob("*.gcda"):
        counts.unlink()
    python, variables = environment("coverage", folder)
    _run([str(folder / "accelera_tests")])
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    print("+", shlex.join(tests), flush=True)
    subprocess.run(tests, cwd=ROOT, check=False, env={**os.environ, **variables})
    report = folder / "coverage.json"
    # Paths in some files start below csrc. Counts of inner loops exceed what gcovr takes for an overflow.
    csrc = str(ROOT / "csrc")
    filters = ["--filter", csrc, "--exclude-throw-branches", "--exclude-unreachable-branches"]
    options = ["--gcov-suspicious-hits-threshold", "0", "--json-summary", str(report)]
    _run([sys.executable, "-m", "gcovr", "--root", csrc, *filters, *options, str(folder)])
    print_coverage(json.loads(report.read_text())["files"])


def print_coverage(files: list[dict[str, float]]) -> None:
    """Print a line for each folder, and for each file below a goal."""
    folders: dict[str, list[dict[str, float]]] = {}
    for file in files:
        folders.setdefault(str(Path(str(file["filename"])).parent), []).append(file)
    print(f"{'folder':<34}{'lines':>9}{'branches':>10}")
    for name, members in sorted(folders.items()):
        lines, branches = _percent(members, "line"), _percent(members, "branch")
        print(f"{name:<34}{lines:>8.1f}%{branches:>9.1f}%")
    for file in files:
        lines, branches = _percent([file], "line"), _percent([file], "branch")
        if lines < LINE_GOAL or branches < BRANCH_GOAL:
            print(f"below the goal: {file['filename']}: {lines:.1f}% of lines, {branches:.1f}% of branches")


def _percent(files: list[dict[str, float]], kind: str) -> float:
    total = sum(file[f"{kind}_total"] for file in files)
    return 100.0 * sum(file[f"{kind}_covered"] for file in files) / total if total else 100.0


def main(words: list[str]) -> None:
    """Run the command of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("command", choices=["sanitize", "coverage"])
    parser.add_argument("--only", choices=["address", "thread"], help="one of the two builds of sanitize")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest in place of the usual tests")
    chosen = parser.parse_args(words)
    if chosen.command == "sanitize":
        sanitize(chosen.only, chosen.pytest)
    else:
        coverage(chosen.pytest)


if __name__ == "__main__":
    main(sys.argv[1:])
