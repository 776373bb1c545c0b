"""Run clang-tidy over csrc with the checks of ``.clang-tidy``: ``python tools/clang_tidy.py [FILE ...]``.

It reads the compile commands that the build has written. A file without a finding is not checked again until
it, a header, the checks or the version of clang-tidy change.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "clang-tidy"
LEFT_OUT = ("csrc/torch/", "csrc/cuda/")
"""Sources that need the headers of PyTorch or CUDA."""


def compile_commands() -> dict[Path, dict[str, str]]:
    """Return one compile command for each file of csrc; kernels have one for each instruction set."""
    databases = sorted(ROOT.glob("build/cp*/compile_commands.json"))
    if not databases:
        sys.exit("[clang-tidy] no compile commands in build/: run `make lint`, which builds first")
    commands: dict[Path, dict[str, str]] = {}
    for entry in json.loads(databases[-1].read_text(encoding="utf-8")):
        path = Path(entry["file"])
        if path.is_relative_to(ROOT / "csrc") and not path.relative_to(ROOT).as_posix().startswith(LEFT_OUT):
            # Clang does not know all of GCC's options. Findings in headers of nanobind are not ours.
            command = re.sub(r"-f(tree|vect)-\S+", "", entry["command"])
            entry["command"] = re.sub(r"-I(?=\S*nanobind)", "-isystem ", command)
            commands.setdefault(path, entry)
    return commands


def common_digest() -> bytes:
    """Return a digest of the headers, the checks and the version of clang-tidy."""
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(version)
    headers = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in {".h", ".cuh", ".def"}]
    for path in [ROOT / ".clang-tidy", *sorted(headers)]:
        digest.update(path.read_bytes())
    return digest.digest()


def check(path: Path, mark: Path) -> str:
    """Return the findings in a file; without any, write the mark of its contents."""
    options = ["--quiet", "-p", str(FOLDER), "--extra-arg=-Wno-everything"]
    ended = subprocess.run(["clang-tidy", *options, str(path)], capture_output=True, text=True, check=False)
    if ended.returncode == 0:
        mark.touch()
        return ""
    return ended.stdout or ended.stderr


def main(names: list[str]) -> int:
    """Check the files, or all of csrc, and return the exit status."""
    commands = compile_commands()
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "compile_commands.json").write_text(json.dumps(list(commands.values())), encoding="utf-8")
    chosen = [Path(name).resolve() for name in names] or sorted(commands)
    common = common_digest()
    marks = {path: FOLDER / hashlib.sha256(common + path.read_bytes()).hexdigest() for path in chosen}
    outdated = [path for path in chosen if not marks[path].exists()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        findings = [text for text in pool.map(lambda path: check(path, marks[path]), outdated) if text]
    print("\n".join(findings), end="")
    print(f"clang-tidy: {len(outdated)} of {len(chosen)} files checked, {len(findings)} with findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
