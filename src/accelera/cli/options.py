"""Options that several verbs share: files, budgets, memories to replay a trace in, and objects of Python."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from accelera.units import parse_limit, parse_share

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from accelera.memory import Hierarchy
    from accelera.trace import Trace


def checked_budget(text: str | None) -> str | None:
    """Return an amount of memory as it was written; raises BadParameter for what is none."""
    if text is not None:
        try:
            parse_share(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return text


def _checked_out(text: str) -> str:
    if not Path(text).name:
        raise typer.BadParameter(f"{text!r} names no file; write for example C.npy")
    return text


def _numbers(text: str, what: str, example: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.lower().replace("x", ",").split(",") if part.strip())
    except ValueError:
        found = ()
    if not found:
        raise typer.BadParameter(f"{text!r} is not {what}; write for example {example}")
    return found


def _parsed_shape(text: str) -> tuple[int, ...]:
    return _numbers(text, "a shape", "4096x1024")


def parsed_axes(text: str) -> tuple[int, ...]:
    """Read ``"1,0"``; raises BadParameter."""
    return _numbers(text, "an order of axes", "1,0")


def _parsed_chunks(text: str) -> tuple[int, ...]:
    return _numbers(text, "a chunk shape", "512x512")


_RAW = "Files without a header"
_ZARR = "Zarr results"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        "-b",
        metavar="SIZE",
        callback=checked_budget,
        help="Most memory to take: 512MiB, 2GB, or a share such as 25%. "
        "Without it what ACCELERA_BUDGET or the memory threshold allows.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What computes: cpu, cuda, cuda:1, xpu, mps, sim:512MiB. "
        "Without it ACCELERA_DEVICE, else an accelerator, else the CPU.",
    ),
]
A = Annotated[
    str, typer.Argument(metavar="A", help="A file: .npy, .zarr, .bin, file.h5::name, file.safetensors::key.")
]
B = Annotated[str, typer.Argument(metavar="B", help="Another file.")]

Out = Annotated[
    str,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        callback=_checked_out,
        help="Where the result goes: .npy, .zarr, .bin, x.h5::name, x.safetensors::key.",
    ),
]

Chunks = Annotated[
    Any,
    typer.Option(
        "--chunks",
        metavar="MxN",
        parser=_parsed_chunks,
        help="Shape of a chunk; without it at most 4 MiB.",
        rich_help_panel=_ZARR,
    ),
]
Codec = Annotated[
    str | None,
    typer.Option(
        "--codec",
        metavar="NAME",
        help="How chunks are compressed: zstd, gzip, blosc-lz4, blosc-zstd, with a level zstd:9. "
        "Without it they are not.",
        rich_help_panel=_ZARR,
    ),
]

Objective = Annotated[
    Literal["time", "bytes"],
    typer.Option(help="What to save first: time, or bytes moved even if that takes longer."),
]
Policy = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Who leaves memory when it is full: belady, lru, planner … belady, the default, knows the plan.",
    ),
]
PlanFile = Annotated[
    str | None,
    typer.Option("--plan", metavar="FILE", help="Follow a plan that `accelera plan matmul --save` wrote."),
]
Save = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write the plan to a file, for `accelera matmul --plan`.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run, if there is one.")]
Restart = Annotated[bool, typer.Option("--restart", help="Throw away what an interrupted run has stored.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no table; errors only.")]


def _shape(name: str) -> Any:
    return typer.Option(metavar="MxN", parser=_parsed_shape, help=f"Shape of {name}.", rich_help_panel=_RAW)


def _dtype(name: str) -> Any:
    return typer.Option(metavar="NAME", help=f"Element type of {name}.", rich_help_panel=_RAW)


def _offset(name: str) -> Any:
    return typer.Option(metavar="BYTES", min=0, help=f"Bytes of {name} to skip.", rich_help_panel=_RAW)


AShape = Annotated[Any, _shape("A")]
ADtype = Annotated[str | None, _dtype("A")]
AOffset = Annotated[int, _offset("A")]
BShape = Annotated[Any, _shape("B")]
BDtype = Annotated[str | None, _dtype("B")]
BOffset = Annotated[int, _offset("B")]


From = Annotated[str, typer.Argument(metavar="SOURCE", help="The file to read.")]
To = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", callback=_checked_out, help="The file to write: .npy, .zarr, .h5, .bin …"
    ),
]
SourceShape = Annotated[Any, _shape("the source")]
SourceDtype = Annotated[str | None, _dtype("the source")]
SourceOffset = Annotated[int, _offset("the source")]


class FileOperand(NamedTuple):
    """An operand as it was named on the command line."""

    path: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    offset: int = 0

    def open(self) -> Any:
        """Return its store."""
        from accelera.stores import open_store

        return open_store(self.path, shape=self.shape, dtype=self.dtype, offset=self.offset)


TraceFile = Annotated[str, typer.Argument(metavar="TRACE", help="The trace: .parquet, .csv, .json …")]
TraceFormat = Annotated[
    str | None, typer.Option("--format", metavar="NAME", help="Its format, where its name does not tell.")
]
Machine = Annotated[
    str | None,
    typer.Option(
        "--hierarchy", metavar="NAME", help="The tiers: laptop, gpu-24gb, h200, or copilot (the seed's)."
    ),
]
Lookahead = Annotated[
    int, typer.Option(metavar="STEPS", min=0, help="How many further steps are admitted while one computes.")
]
Recompute = Annotated[
    bool, typer.Option("--recompute", help="Make buffers again where that is faster than moving them.")
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Seed of random policies.")]
Bound = Annotated[
    bool,
    typer.Option(
        "--bound/--no-bound", help="Work out the least bytes any schedule moves; seconds on long traces."
    ),
]


def opened(path: str, source_format: str | None) -> Trace:
    """Return the trace in a file."""
    from accelera.trace import read_trace

    return read_trace(path, source_format)


def capacity_of(text: str, trace: Trace, option: str = "--budget") -> int:
    """Return ``"8GiB"``, or a share such as ``"50%"`` of the trace's peak, in bytes; raises BadParameter."""
    from accelera.trace import Occupancy

    try:
        return parse_limit("capacity", text, lambda: Occupancy(trace).peak_bytes)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from error


def score_for(policy: str, trace: Trace) -> NDArray[np.float64] | None:
    """Return the score of a policy that makes none of its own, per access; None for all others.

    Raises BackendMissingError when the trained scorer's library is absent.
    """
    if policy.lower() != "learned":
        return None
    from accelera.simulator import score

    return score(trace, "learned")


def machine_of(name: str | None, capacity: str | None, trace: Trace) -> Hierarchy:
    """Return the tiers meant by ``--hierarchy``, ``--budget`` or both; raises BadParameter for neither."""
    from accelera.memory import Hierarchy
    from accelera.simulator._internal import hierarchy_of

    if name is None and capacity is None:
        raise typer.BadParameter("give --budget, for example 8GiB or 50%, or --hierarchy, or both")
    size = None if capacity is None else capacity_of(capacity, trace)
    if name is None:
        return Hierarchy.of(size or 0)
    machine = hierarchy_of(name)
    return machine if size is None else machine.with_capacity(size)


def is_python_name(text: str) -> bool:
    """Return whether ``text`` names something in Python rather than a file."""
    place, colon, name = text.rpartition(":")
    return bool(colon and place) and name.replace(".", "").isidentifier()


def python_object(text: str) -> Any:
    """Return what ``text`` names; its module is run.

    Raises
    ------
    BadParameter
        There is no such file, module or name, or ``text`` names none.
    """
    if not is_python_name(text):
        wanted = f"{text}:name" if text.endswith(".py") else "file.py:name or package.module:name"
        raise typer.BadParameter(f"{text!r} names nothing in a file or module; write {wanted}")
    place, _, name = text.rpartition(":")
    found: Any = _file(Path(place)) if place.endswith(".py") else _module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise typer.BadParameter(f"{place} has no {name}; write file.py:name or package.module:name")
        found = getattr(found, part)
    return found


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {path}")
    _search_first(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    _search_first(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise typer.BadParameter(f"there is no module {name} to import from {Path.cwd()}") from error


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
