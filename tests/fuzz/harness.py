"""Fuzz targets, and the rules that each execution must keep.

A target is a function of bytes that calls one public reader. Only an ``AcceleraError`` may leave it. Any
other exception, an allocation above the limit of the target, or a run above its time limit is a finding.
"""

from __future__ import annotations

import importlib
import math
import resource
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from accelera.errors import AcceleraError, BudgetExceededError, OutOfMemoryError

CORPUS = Path(__file__).parent / "corpus"
FAMILIES = ("arrays", "configuration", "plans", "programs", "requests", "tensora_files", "text", "traces")
"""Modules of ``tests.fuzz.targets``."""

TIME_LIMIT_S = 5.0
MEMORY_LIMIT_BYTES = 1 << 30
"""Address space that one input may add: thread stacks and arenas of allocators are part of it."""
PACKAGE = "/accelera/"


@dataclass(frozen=True)
class FuzzTarget:
    """One public reader of untrusted bytes."""

    name: str
    execute: Callable[[bytes], None]
    family: str
    """Module that defines it."""
    examples: int
    """Mutated inputs that ``make test`` executes."""

    @property
    def corpus(self) -> list[bytes]:
        """Seeds and regressions, in the order of their file names."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())]


class FuzzFinding(AssertionError):
    """An input on which a target breaks a rule."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key
        """Rule and source position: equal for inputs that show the same defect."""


RESOURCES = ExitStack()
"""What targets have opened for all inputs, such as a service; close it at the end."""
_TARGETS: dict[str, FuzzTarget] = {}


def fuzz_target(*, examples: int = 100) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Register a function as the target of its name."""

    def register(function: Callable[[bytes], None]) -> Callable[[bytes], None]:
        name = function.__name__
        _TARGETS[name] = FuzzTarget(name, function, function.__module__.rpartition(".")[2], examples)
        return function

    return register


def all_targets(families: Sequence[str] = FAMILIES) -> dict[str, FuzzTarget]:
    """Return every target of ``families`` by name, sorted."""
    for family in families:
        importlib.import_module(f"tests.fuzz.targets.{family}")
    return dict(sorted(_TARGETS.items()))


def check(target: FuzzTarget, data: bytes) -> None:
    """Execute ``target`` on ``data``; raises FuzzFinding if a rule is broken.

    The time limit is of processor time: other programs of a busy machine do not count.
    """
    start_s = time.process_time()
    try:
        target.execute(data)
    except AcceleraError as error:
        if isinstance(error, OutOfMemoryError) and not isinstance(error, BudgetExceededError):
            raise FuzzFinding(_key(error), f"{len(data)} bytes exhaust memory: {error}") from error
    except Exception as error:
        raise FuzzFinding(_key(error), f"{type(error).__name__} leaves the reader: {error}") from error
    seconds = time.process_time() - start_s
    if seconds > TIME_LIMIT_S:
        raise FuzzFinding(
            "time", f"{len(data)} bytes take {seconds:.1f} s, at most {TIME_LIMIT_S} are allowed"
        )


def load(target: FuzzTarget) -> None:
    """Execute the seeds once, whatever they raise: imports and caches are no cost of an input."""
    for data in target.corpus:
        with suppress(Exception):
            target.execute(data)


def _key(error: BaseException) -> str:
    """Return the class of an exception and the innermost line of the package that it passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if PACKAGE in frame.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "target"
    return f"{type(error).__name__}@{place}"


@contextmanager
def memory_limit(nbytes: int = MEMORY_LIMIT_BYTES) -> Iterator[None]:
    """Let this process add at most ``nbytes`` of address space within the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + nbytes
    bounds = [each for each in (limit, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def temporary_file(data: bytes, name: str) -> Iterator[Path]:
    """Write ``data`` to a file of this name, in a folder that is removed afterwards."""
    with temporary_folder({name: data}) as folder:
        yield folder / name


@contextmanager
def temporary_folder(files: dict[str, bytes]) -> Iterator[Path]:
    """Write files by relative path into a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="accelera-fuzz-") as folder:
        for name, data in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        yield Path(folder)


SEPARATOR = b"\n--part--\n"
"""Separates the parts of an input that represents several files."""


def parts_of(data: bytes, count: int) -> list[bytes]:
    """Return ``count`` parts of an input; parts that are absent are empty."""
    parts = data.split(SEPARATOR, count - 1)
    return parts + [b""] * (count - len(parts))


def text_of(data: bytes) -> str:
    """Return an input as text in which every byte counts."""
    return data.decode("utf-8", "replace")


def is_small(shape: tuple[int, ...], itemsize: int = 8, limit_bytes: int = 1 << 22) -> bool:
    """Return whether an array of this shape may be read as a whole in a law."""
    return math.prod(shape) * itemsize <= limit_bytes
