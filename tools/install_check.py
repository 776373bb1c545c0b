"""Check the wheel as users install it: fresh environments, extras, and the lowest allowed versions.

    make test-install
    make test-install ARGS="--wheel accelera_engine-0.1.0-cp312-abi3-linux_x86_64.whl --only core"
    make test-install ARGS="--all-extras"

Wheels are built as `pip install .` builds them, one for each interpreter on the PATH that no earlier wheel
supports; a build takes minutes. Environments are new and contain nothing of the checkout. A line is printed
per check; the exit status is 1 if one fails.
"""

from __future__ import annotations

import argparse
import email
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from email.message import Message
from functools import partial
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from tools.install_programs import COMPARISON, FILES, MODULES_OF_EXTRA, NOTHING_OPTIONAL, TRAINING, USES

ROOT = Path(__file__).resolve().parent.parent
NAME = "accelera-engine"
VERSIONS = tuple((3, minor) for minor in range(10, 15))
HEAVY_EXTRAS = {"all", "jax", "lightning", "llm", "onnx", "ray", "torch"}
DEVELOPMENT_EXTRAS = {"bench", "dev"}
LOWEST_EXTRAS = ("trace", "zarr", "hdf5", "plot")
NEWEST_WITH_LOWEST = (3, 12)
"""Last Python for which NumPy 2.0 has wheels."""
TEST_TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist", "safetensors")
LIMIT_S = 1800
RELATIVE_LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)\s]+)")


class CheckError(Exception):
    """A check failed; the message is the end of the output."""


class Skip(Exception):
    """A check does not apply; the message is the reason."""


class Interpreter(NamedTuple):
    """A Python that runs."""

    path: str
    version: tuple[int, int]

    @property
    def name(self) -> str:
        """Return the usual name of its executable."""
        return f"python{self.version[0]}.{self.version[1]}"


class Report:
    """Outcomes of the checks, printed as they are known."""

    def __init__(self) -> None:
        self.failures = 0

    def check(self, python: str, packages: str, name: str, action: Callable[[], object]) -> bool:
        """Run ``action`` and print its outcome; return whether the checks that need it can follow."""
        start, outcome, reason = time.monotonic(), "passed", ""
        try:
            action()
        except Skip as skip:
            outcome, reason = "skipped", str(skip)
        except (CheckError, OSError, subprocess.TimeoutExpired) as error:
            outcome, reason = "failed", str(error)
            self.failures += 1
        seconds = time.monotonic() - start
        print(f"{python:<11} {packages:<22} {name:<26} {outcome:<8} {seconds:6.1f} s", flush=True)
        if reason:
            print("    " + reason.strip().replace("\n", "\n    "), flush=True)
        return outcome == "passed"


class Environment:
    """A new virtual environment and an empty folder in which its commands run."""

    def __init__(self, python: str, folder: Path) -> None:
        self.bin = folder / "venv" / "bin"
        self.work = folder / "work"
        self.work.mkdir()
        self._variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ACCELERA_"))
        } | {"ACCELERA_CACHE": str(folder / "cache")}
        self.run(python, "-m", "venv", str(folder / "venv"))

    def run(self, program: str, *words: str, folder: Path | None = None) -> str:
        """Return the output of a program of the environment; raise CheckError if it fails."""
        local = self.bin / program
        ran = subprocess.run(
            [str(local) if local.exists() else program, *words],
            cwd=folder or self.work,
            env=self._variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        if ran.returncode:
            raise CheckError(
                f"{program} {' '.join(words)[:200]}: status {ran.returncode}\n{ran.stdout[-3000:]}"
            )
        return ran.stdout

    def code(self, text: str) -> str:
        """Return the output of a Python program."""
        return self.run("python", "-c", text)

    def install(self, *words: str) -> None:
        """Install packages, and check that the versions agree with one another."""
        self.run("python", "-m", "pip", "--disable-pip-version-check", "install", "-q", *words)
        self.run("python", "-m", "pip", "--disable-pip-version-check", "check")


def interpreters(own: str = sys.executable) -> list[Interpreter]:
    """Return ``own`` and the first Python of each other version on the PATH that runs."""
    names = [shutil.which(f"python{major}.{minor}") for major, minor in VERSIONS]
    candidates: dict[tuple[int, int], Interpreter] = {}
    for path in (own, *filter(None, names)):
        # A shim of a version manager is on the PATH although its interpreter is not active.
        ran = subprocess.run(
            [path, "-c", "import sys; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode == 0:
            major, minor = map(int, ran.stdout.split())
            candidates.setdefault((major, minor), Interpreter(path, (major, minor)))
    return list(candidates.values())


def supports(wheel: Path, version: tuple[int, int]) -> bool:
    """Return whether a CPython of this version can install the wheel."""
    own = f"cp{version[0]}{version[1]}"
    return any(
        tag.interpreter == own or (tag.abi == "abi3" and int(tag.interpreter[3:]) <= version[1])
        for tag in parse_wheel_filename(wheel.name)[3]
    )


def lowest_pins(
    requirements: Iterable[str], version: tuple[int, int], extras: Collection[str] = ()
) -> list[str]:
    """Return ``name==X`` for each requirement ``name>=X`` that applies to a Python and to extras.

    Raises
    ------
    CheckError
        A requirement has no lower bound.
    """
    base = {
        "python_version": f"{version[0]}.{version[1]}",
        "python_full_version": f"{version[0]}.{version[1]}.0",
    }
    pins = set()
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker and not any(marker.evaluate({**base, "extra": extra}) for extra in ("", *extras)):
            continue
        if canonicalize_name(requirement.name) == NAME:
            continue
        bounds = [bound.version for bound in requirement.specifier if bound.operator in (">=", "==", "~=")]
        if not bounds:
            raise CheckError(f"[lowest] no lower bound: '{requirement}' found, name>=version expected.")
        pins.add(f"{requirement.name}=={bounds[0]}")
    return sorted(pins)


def metadata_of(wheel: Path) -> Message:
    """Return the metadata of a wheel; its payload is the README."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode("utf-8"))


def build_wheel(folder: Path, python: Interpreter) -> Path:
    """Build the wheel as ``pip install .`` does, in an isolated environment; return its path."""
    defines = ("TENSORA=ON", "SHIM=OFF", "CUDA=OFF")
    settings = [f"--config-settings=cmake.define.ACCELERA_{define}" for define in defines]
    pip = [python.path, "-m", "pip", "--disable-pip-version-check", "wheel", "-q"]
    ran = subprocess.run([*pip, ".", "--no-deps", "-w", str(folder), *settings], cwd=ROOT, check=False)
    wheels = list(folder.glob("*.whl"))
    if ran.returncode or len(wheels) != 1:
        raise SystemExit(f"install-check: {python.name} built no wheel")
    return wheels[0]


def wheels_for(pythons: Sequence[Interpreter], folder: Path) -> list[Path]:
    """Build one wheel for each interpreter that no wheel before it supports."""
    wheels: list[Path] = []
    for python in pythons:
        if not any(supports(wheel, python.version) for wheel in wheels):
            target = folder / python.name
            target.mkdir()
            wheels.append(build_wheel(target, python))
    return wheels


def check_metadata(wheel: Path) -> None:
    """Check the fields that a package index and type checkers read."""
    fields = metadata_of(wheel)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.+)"', project, re.MULTILINE)
    expected = {
        "Name": NAME,
        "Version": version[1] if version else "",
        "Description-Content-Type": "text/markdown",
        "Requires-Python": ">=3.10",
    }
    differences = {key: fields[key] for key, value in expected.items() if fields[key] != value}
    if differences:
        raise CheckError(f"[metadata] wrong fields: {differences} found, {expected} expected.")
    if "Typing :: Typed" not in fields.get_all("Classifier", []):
        raise CheckError("[metadata] the classifier 'Typing :: Typed' is absent.")
    if len(str(fields.get_payload())) < 1000:
        raise CheckError("[metadata] the description is not the README.")


def check_contents(wheel: Path) -> None:
    """Check that types and licenses are in the wheel, and tests are not."""
    names = set(zipfile.ZipFile(wheel).namelist())
    information = next(name for name in names if name.endswith(".dist-info/METADATA")).removesuffix(
        "METADATA"
    )
    stubs = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "accelera").rglob("*.pyi")}
    licenses = {f"{information}licenses/{name}" for name in metadata_of(wheel).get_all("License-File", [])}
    missing = ({"accelera/py.typed", f"{information}licenses/LICENSE"} | stubs | licenses) - names
    surplus = {name for name in names if not name.startswith(("accelera/", information))}
    surplus |= {name for name in names if re.search(r"(^|/)(tests/|test_|conftest\.py)", name)}
    if missing or surplus:
        raise CheckError(f"[contents] missing: {sorted(missing)}; not expected: {sorted(surplus)}.")


def check_links(wheel: Path) -> None:
    """Check that links of the README work on the page of a package index, where no other file is."""
    links = RELATIVE_LINK.findall(str(metadata_of(wheel).get_payload()))
    if links:
        raise CheckError(
            f"[README] {len(links)} relative links: {links[:3]} and others found, URLs expected."
        )


def first_block(wheel: Path) -> str:
    """Return the first Python block of the README in the wheel."""
    block = re.search(
        r"^```python\n(.*?)^```", str(metadata_of(wheel).get_payload()), re.MULTILINE | re.DOTALL
    )
    if block is None:
        raise CheckError("[README] it has no block of Python.")
    return block[1]


def product_of_files(environment: Environment) -> None:
    """Multiply two files by the command, and compare with NumPy."""
    environment.code(FILES)
    environment.run("accelera", "matmul", "A.npy", "B.npy", "-o", "C.npy", "--budget", "64MiB", "--quiet")
    environment.code(COMPARISON)


def refuse_numpy_1(environment: Environment, wheel: Path) -> None:
    """Check that pip does not combine the wheel with NumPy 1."""
    words = ("install", "--dry-run", "--only-binary=numpy", str(wheel), "numpy<2")
    try:
        environment.run("python", "-m", "pip", "--disable-pip-version-check", *words)
    except CheckError as error:
        if "conflict" not in str(error) and "No matching distribution found for numpy<2" not in str(error):
            raise
    else:
        raise CheckError("[numpy] pip installs NumPy 1 with the wheel.")


def check_core(report: Report, python: Interpreter, wheel: Path, folder: Path) -> None:
    """Check an environment with the wheel and what it requires, and no more."""
    environment = Environment(python.path, folder)
    steps: dict[str, Callable[[], object]] = {
        "accelera info": lambda: environment.run("accelera", "info"),
        "accelera --help": lambda: environment.run("accelera", "--help"),
        "first block of the README": lambda: environment.code(first_block(wheel)),
        "product of files": lambda: product_of_files(environment),
        "training with Tensora": lambda: environment.code(TRAINING),
        "no optional import": lambda: environment.code(TRAINING + NOTHING_OPTIONAL),
        "NumPy 1 is refused": lambda: refuse_numpy_1(environment, wheel),
    }
    if report.check(python.name, "core", "install", lambda: environment.install(str(wheel))):
        for name, action in steps.items():
            report.check(python.name, "core", name, action)


def check_extra(report: Report, python: Interpreter, wheel: Path, extra: str, folder: Path) -> None:
    """Check an environment with one extra: its modules, a use, and that the core imports none of it."""
    environment = Environment(python.path, folder)
    words = (f"{wheel}[{extra}]", "-c", str(ROOT / "constraints.txt"))
    if not report.check(python.name, extra, "install", lambda: environment.install(*words)):
        return
    if extra != "all":
        report.check(
            python.name, extra, "import", lambda: environment.code(MODULES_OF_EXTRA.format(extra=extra))
        )
    if extra in USES:
        report.check(python.name, extra, "use", lambda: use_extra(environment, extra, python))
    report.check(
        python.name, extra, "no optional import", lambda: environment.code(TRAINING + NOTHING_OPTIONAL)
    )


def use_extra(environment: Environment, extra: str, python: Interpreter) -> None:
    """Run the program of an extra."""
    if extra == "zarr" and python.version < (3, 11):
        raise Skip("zarr 3 needs Python 3.11")
    environment.code(USES[extra])


def check_lowest(
    report: Report, python: Interpreter, wheel: Path, extras: Collection[str], folder: Path
) -> None:
    """Run tests against the wheel with the lowest version of each package that it requires."""
    label = f"lowest {'core' if not extras else ' '.join(extras)}"
    if python.version > NEWEST_WITH_LOWEST:
        reason = f"the lowest versions have no wheels for {python.name}"
        report.check(python.name, label, "install", partial(_skip, reason))
        return
    environment = Environment(python.path, folder)
    target = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)

    def install() -> None:
        pins = lowest_pins(metadata_of(wheel).get_all("Requires-Dist", []), python.version, extras)
        (folder / "lowest.txt").write_text("\n".join(pins) + "\n", encoding="utf-8")
        environment.install("--only-binary=:all:", "-c", str(folder / "lowest.txt"), target, *TEST_TOOLS)

    if report.check(python.name, label, "install", install):
        report.check(python.name, label, "tests", lambda: run_tests(environment, folder, bool(extras)))


def _skip(reason: str) -> None:
    raise Skip(reason)


def listed_tests(with_extras: bool) -> Iterator[str]:
    """Yield the test files of tests/installed.txt: those of the core, or those of the extras."""
    for line in (ROOT / "tests" / "installed.txt").read_text(encoding="utf-8").splitlines():
        name, _, mark = line.partition(" ")
        if name and (mark == "extras") == with_extras:
            yield name


def run_tests(environment: Environment, folder: Path, with_extras: bool) -> None:
    """Run the listed tests from a copy without src next to it."""
    copy = folder / "copy"
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    origin = environment.run("python", "-c", "import accelera; print(accelera.__file__)", folder=copy)
    if not Path(origin.strip()).is_relative_to(environment.bin.parent):
        raise CheckError(f"[tests] accelera is imported from {origin.strip()}, not from the environment.")
    # An old release and a new one of a package that it uses may warn of each other.
    options = ("-q", "-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning")
    environment.run("python", "-m", "pytest", *options, *listed_tests(with_extras), folder=copy)


def wheel_label(wheel: Path) -> str:
    """Return the tag of a wheel."""
    return "-".join(wheel.stem.split("-")[2:])[:22]


def check_wheel(report: Report, wheel: Path) -> None:
    """Check the wheel itself."""
    report.check("wheel", wheel_label(wheel), "metadata", lambda: check_metadata(wheel))
    report.check("wheel", wheel_label(wheel), "contents", lambda: check_contents(wheel))
    report.check("wheel", wheel_label(wheel), "links of the README", lambda: check_links(wheel))


def run(report: Report, wheels: list[Path], options: argparse.Namespace) -> None:
    """Run the selected checks."""
    if "wheel" in options.only:
        for path in wheels:
            check_wheel(report, path)
    for python in interpreters():
        wheel = next((wheel for wheel in wheels if supports(wheel, python.version)), None)
        if wheel is None:
            reason = f"none of the wheels is for {python.name}"
            report.check(python.name, "core", "install", partial(_skip, reason))
            continue
        for check in selected_checks(report, python, wheel, options):
            with tempfile.TemporaryDirectory(prefix="accelera-install-") as folder:
                check(folder=Path(folder))


def selected_checks(
    report: Report, python: Interpreter, wheel: Path, options: argparse.Namespace
) -> Iterator[Callable[..., None]]:
    """Yield the checks that the options select; each takes an empty folder."""
    declared = set(metadata_of(wheel).get_all("Provides-Extra", [])) - DEVELOPMENT_EXTRAS
    usual = declared if options.all_extras else declared - HEAVY_EXTRAS
    if "core" in options.only:
        yield partial(check_core, report, python, wheel)
    if "extras" in options.only:
        for extra in sorted(set(options.extra or usual)):
            yield partial(check_extra, report, python, wheel, extra)
    if "lowest" in options.only:
        yield partial(check_lowest, report, python, wheel, ())
        yield partial(check_lowest, report, python, wheel, LOWEST_EXTRAS)


def main(arguments: list[str] | None = None) -> int:
    """Run the checks; return the exit status."""
    parts = ("wheel", "core", "extras", "lowest")
    parser = argparse.ArgumentParser(
        prog="python tools/install_check.py", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--wheel", type=Path, action="append", help="use this wheel; may be repeated")
    parser.add_argument("--only", choices=parts, action="append", help="run this part; may be repeated")
    parser.add_argument("--extra", action="append", help="check this extra only; may be repeated")
    parser.add_argument("--all-extras", action="store_true", help="also torch and other large ones")
    options = parser.parse_args(arguments)
    options.only = options.only or parts
    report = Report()
    with tempfile.TemporaryDirectory(prefix="accelera-wheel-") as folder:
        wheels = [path.resolve() for path in options.wheel or ()]
        wheels = wheels or wheels_for(interpreters(), Path(folder))
        run(report, wheels, options)
    print(f"install-check: {report.failures} checks failed" if report.failures else "install-check: passed")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
