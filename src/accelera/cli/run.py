"""``accelera run``: an unchanged program whose large PyTorch calls keep to a budget."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from accelera._text_table import text_table
from accelera.capture._internal import UserProgram, is_own
from accelera.cli import options
from accelera.cli.failures import exit_code_of
from accelera.errors import AcceleraError
from accelera.settings import current
from accelera.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from accelera.cli.sampling import Samples
    from accelera.interceptor._internal import OpStats, Stats


@contextmanager
def when_loaded(name: str, act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` once the module ``name`` is loaded: at once if it is, else when somebody imports it.

    The program can thus still set environment variables that the module reads when it is loaded.
    """
    if name in sys.modules:
        act()
        yield
        return
    finder = _ImportWatcher(name, act)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _ImportWatcher(MetaPathFinder):
    """Finder of one module that delegates to the usual finders, and wraps the loader to notify."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name, self._act = name, act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of the module that is waited for; None for others."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _NotifyingLoader(spec.loader, self._act)
        return spec


class _NotifyingLoader(Loader):
    """Loader that delegates to ``loader``, and then calls ``act``."""

    def __init__(self, loader: Loader, act: Callable[[], None]) -> None:
        self._loader, self._act = loader, act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return a new module, or None for the usual one."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, then call ``act``."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._act()


_COUNTS = ("direct", "chunked", "spilled", "refused", "passed")


class RunProgramReport(NamedTuple):
    """A program that has ended."""

    program: str
    budget: str | None
    exit_code: int
    seconds: float
    """From its first line to its last."""
    stats: Stats | None
    """None when it never loaded torch."""
    peak_bytes: int
    """The most private memory above the process with torch loaded, as sampled."""
    without_bytes: int
    """The same as predicted for a run without interception."""
    device_peaks: Mapping[str, int]
    """The most that torch allocated on each accelerator."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        calls = None if self.stats is None else self.stats.as_dict()
        return {
            "program": self.program,
            "budget": self.budget,
            "exit_code": self.exit_code,
            "seconds": self.seconds,
            "peak_bytes": self.peak_bytes,
            "predicted_peak_without_bytes": self.without_bytes,
            "device_peak_bytes": dict(self.device_peaks),
            "calls": calls,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines for people."""
        within = f" within {self.budget} per call" if self.budget else ""
        duration = format_seconds(self.seconds)
        yield f"accelera: {self.program} ran{within}, {duration}, exit code {self.exit_code}"
        if self.stats is None:
            yield "nothing was intercepted: it did not load torch"
            return
        yield from _call_lines(self.stats)
        yield (
            f"peak above the idle process: {format_bytes(self.peak_bytes)} measured, "
            f"{format_bytes(self.without_bytes)} predicted without"
        )
        for name, peak in self.device_peaks.items():
            yield f"peak of {name}: {format_bytes(peak)} measured"


def _call_lines(stats: Stats) -> Iterator[str]:
    if not stats.by_op:
        yield "no call was large enough to be looked at"
        return
    named = [*sorted(stats.by_op.items()), ("all", stats.total)]
    head = ("call", *_COUNTS, "operands and results", "in files", "in pieces")
    yield from text_table([head, *(_row(op, each) for op, each in named)]).splitlines()
    for op, each in sorted(stats.by_op.items()):
        yield from (f"{op}: {count} passed, {why}" for why, count in each.passed.items())
        yield from (f"{op}: {count} went on {what}" for what, count in each.fallbacks.items())


def _row(op: str, each: OpStats) -> tuple[str, ...]:
    counts = (each.direct, each.chunked, each.spilled, each.refused, each.passed.total())
    sizes = (format_bytes(each.looked_bytes), format_bytes(each.spilled_bytes))
    return (op, *(str(count) if count else "-" for count in counts), *sizes, format_seconds(each.seconds))


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PROGRAM [ARGUMENTS]...",
        help="A script, -m MODULE, -c CODE, or - for standard input, and its own arguments.",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        callback=options.checked_budget,
        help="Most memory one call may add: 4GiB, or a share such as 25%. Without it ACCELERA_BUDGET, "
        "else what is free.",
    ),
]
MinSize = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Longest dimension from which a call is looked at.")
]
Threshold = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        callback=options.checked_budget,
        help="Operands and result together from which a call is looked at; by default 1/8 of the budget.",
    ),
]
SpillFolder = Annotated[
    Path | None,
    typer.Option(
        "--spill-dir",
        "--spill",
        metavar="FOLDER",
        exists=True,
        file_okay=False,
        help="Folder on a disk for results that do not fit in memory.",
    ),
]
Compute = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="What computes products of operands in RAM.")
]
Report = Annotated[bool, typer.Option("--report", help="Say at the end, on stderr, what was done.")]
Json = Annotated[bool, typer.Option("--json", help="The same as one JSON object in one line.")]


class ProgramCommand(TyperCommand):
    """Takes its own options before and after the program, and leaves the program all others.

    A program's ``--help`` is the program's, and so is everything after ``--``.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command's own options first, so that the rest is not read."""
        with_value, flags = set[str](), set[str]()
        for each in self.params:
            if each.param_type_name == "option":
                (flags if getattr(each, "is_flag", False) else with_value).update(each.opts)
        own, program = _split_words(args, with_value, flags, set(ctx.help_option_names))
        return super().parse_args(ctx, [*own, "--", *program])


def run(
    words: Words = None,
    budget: Budget = None,
    min_size: MinSize = None,
    memory_threshold: Threshold = None,
    spill_dir: SpillFolder = None,
    device: Compute = None,
    report: Report = False,
    as_json: Json = False,
) -> None:
    """Run an unchanged Python program; its large PyTorch calls keep to the budget.

    The program runs as with python: its output, errors and exit code are its own. The options below are
    taken wherever they stand, also after the program's name; all others are the program's, its --help too,
    and so is everything after --, as in: accelera run --report -- train.py --json
    """
    try:
        program = UserProgram.of(words or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if program.kind == "file" and not Path(program.what).exists():
        raise typer.BadParameter(f"there is no file {program.what}")
    ran = carry_out(
        program,
        budget=budget,
        min_size=min_size,
        memory_threshold=memory_threshold,
        spill_dir=None if spill_dir is None else str(Path(spill_dir).absolute()),
        device=device,
    )
    if as_json:
        typer.echo(json.dumps(ran.to_dict()), err=True)
    elif report:
        typer.echo("\n".join(ran.lines()), err=True)
    raise typer.Exit(ran.exit_code)


def carry_out(program: UserProgram, **limits: Any) -> RunProgramReport:
    """Run ``program``, its large calls within ``limits`` from the moment it has loaded torch.

    Raises SettingError for an ``ACCELERA_*`` variable that cannot be read, before the program runs, and what
    ``enable`` raises for ``limits`` that cannot be kept, when it loads torch.
    """
    current()
    samples: list[Samples] = []
    refused: list[AcceleraError] = []

    def begin() -> None:
        try:
            samples.append(_intercept(stack, limits))
        except AcceleraError as error:
            refused.append(error)
            raise

    with ExitStack() as stack:
        stack.enter_context(when_loaded("torch", begin))
        began = time.perf_counter()
        error = program.run()
        seconds = time.perf_counter() - began
    sys.stdout.flush()
    if refused:
        raise refused[0]
    exit_code = exit_code_of(error, is_own)
    if not samples:
        return RunProgramReport(program.name, limits.get("budget"), exit_code, seconds, None, 0, 0, {})
    from accelera.interceptor import stats

    (measured,) = samples
    return RunProgramReport(
        program.name,
        limits.get("budget"),
        exit_code,
        seconds,
        stats(),
        measured.peak_bytes,
        measured.without_bytes,
        dict(_device_peaks()),
    )


def _intercept(stack: ExitStack, limits: dict[str, Any]) -> Samples:
    from accelera.cli.sampling import Samples
    from accelera.interceptor import intercepted, stats

    stats(reset=True)
    stack.enter_context(intercepted(**limits))
    return stack.enter_context(Samples())


def _device_peaks() -> Iterator[tuple[str, int]]:
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for index in range(torch.cuda.device_count()):
            peak = torch.cuda.max_memory_allocated(index)
            if peak:
                yield f"cuda:{index}", peak


def _split_words(
    words: list[str], with_value: set[str], flags: set[str], helping: set[str]
) -> tuple[list[str], list[str]]:
    """Split the command line into the command's own words and those of the program.

    ``helping``: help flags, which are the command's own only before the program is named.
    """
    own: list[str] = []
    program: list[str] = []
    rest = iter(words)
    for word in rest:
        name, has_value, _ = word.partition("=")
        if word == "--":
            program.extend(rest)
        elif word in flags or (word in helping and not program) or (name in with_value and has_value):
            own.append(word)
        elif word in with_value:
            own.extend([word, *islice(rest, 1)])
        else:
            program.append(word)
            if program in (["-m"], ["-c"]):
                program.extend(islice(rest, 1))
    return own, program
