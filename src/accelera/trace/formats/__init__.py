"""Registry of trace formats, by name and file suffix, with the functions that read and write trace files.

A format is a module with ``read(path: Path) -> Trace``, ``write(trace: Trace, path: Path) -> None``, or both.
Adding one is that file and one line of the table.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelera._atomic import atomic_write
from accelera._extras import needed_for
from accelera._similar import files_like
from accelera._user_paths import user_path
from accelera.errors import MissingFileError, StoreError, TraceFormatError, UnknownNameError
from accelera.trace.formats.compressed import SUFFIX, compress, decompressed, is_compressed
from accelera.trace.trace import Trace


@dataclass(frozen=True)
class Format:
    """A kind of file that holds a trace."""

    name: str
    """What ``format=`` calls it."""
    suffixes: tuple[str, ...]
    """Ends of file names that mean it; the longest that fits counts."""
    module: str
    """Dotted name, imported when first needed."""

    def load(self) -> Any:
        """Return its module."""
        return importlib.import_module(self.module)


_HERE = "accelera.trace.formats"

FORMATS: dict[str, Format] = {}
"""Every format by its name."""


def register_format(name: str, suffixes: tuple[str, ...], module: str) -> None:
    """Let ``module`` (a dotted name) handle files that end in one of ``suffixes``."""
    FORMATS[name] = Format(name, suffixes, module)


register_format("parquet", (".parquet", ".pq"), f"{_HERE}.parquet")
register_format("csv", (".csv",), f"{_HERE}.csv")
register_format("json", (".json",), f"{_HERE}.json")
register_format("perfetto", (".perfetto.json", ".perfetto"), f"{_HERE}.perfetto")
register_format("torch_snapshot", (".pickle", ".pkl", ".snapshot.json"), f"{_HERE}.torch_snapshot")
register_format("oracle_general", (".oracleGeneral", ".oracleGeneral.bin"), f"{_HERE}.oracle_general")
register_format("libcachesim_csv", (".libcachesim.csv",), f"{_HERE}.libcachesim_csv")


def read_trace(path: str | os.PathLike[str], format: str | None = None) -> Trace:
    """Read a trace from a file.

    Parameters
    ----------
    path
        The file. One whose name ends in ``.zst`` is decompressed first.
    format
        A name of ``FORMATS``; by default the file's name decides.

    Raises
    ------
    TraceFormatError
        The file is malformed; the message names row and column, or the byte.
    UnknownNameError
        No such format, or no format for such a name.
    BackendMissingError
        Pandas or pyarrow is needed, and the extra ``trace`` is not installed.
    OSError
        There is no such file, or it cannot be read.
    """
    place = user_path(path, "read_trace")
    nbytes = _size(place)
    module = _chosen(place, format).load()
    if not hasattr(module, "read"):
        raise _one_way(place, "read", "written")
    if nbytes == 0:
        raise TraceFormatError(
            f"[read_trace] {place} is empty: it holds 0 bytes, and no format is that short"
        )
    with needed_for("read_trace"):
        return _read_compressed(module, place) if is_compressed(place) else _read(module, place)


def _read(module: Any, path: Path) -> Trace:
    trace: Trace = module.read(path)
    return trace


def _read_compressed(module: Any, path: Path) -> Trace:
    with decompressed(path) as uncompressed:
        try:
            return _read(module, uncompressed)
        except TraceFormatError as error:
            raise TraceFormatError(str(error).replace(str(uncompressed), str(path))) from error


def write_trace(trace: Trace, path: str | os.PathLike[str], format: str | None = None) -> None:
    """Write a trace to a file, which appears under its name when it is complete.

    Parameters
    ----------
    trace
        The trace to write.
    path
        The file. One whose name ends in ``.zst`` is compressed.
    format
        A name of ``FORMATS``; by default the file's name decides.

    Raises
    ------
    TraceFormatError
        When the format cannot hold the trace.
    UnknownNameError
        A name that there is not.
    BackendMissingError
        An optional package that is needed is not installed.
    OSError
        As ``read_trace`` does.
    """
    place = user_path(path, "write_trace")
    module = _chosen(place, format).load()
    if not hasattr(module, "write"):
        raise _one_way(place, "written", "read")
    if not place.parent.is_dir():
        raise MissingFileError(f"[write_trace] {place}: there is no folder {place.parent}; make it first")
    with needed_for("write_trace", "or write a .json file"), atomic_write(place) as partial:
        if not is_compressed(place):
            module.write(trace, partial)
            return
        uncompressed = partial.with_name(f"{partial.name}.uncompressed")
        try:
            module.write(trace, uncompressed)
            compress(uncompressed, partial)
        finally:
            uncompressed.unlink(missing_ok=True)


def _size(path: Path) -> int:
    """Return a file's bytes; raises MissingFileError with files of similar names, StoreError for a folder."""
    if os.path.isdir(path):  # also for names that no file has, at which Path.is_dir raises
        raise StoreError(f"[read_trace] {path} is a folder; give a trace file in it")
    if os.path.exists(path):
        return path.stat().st_size
    if not os.path.isdir(path.parent):
        raise MissingFileError(f"[read_trace] no file {path}: there is no folder {path.parent}")
    near = files_like(path)
    hint = f"; did you mean {' or '.join(near)}?" if near else f" in {path.parent.resolve()}"
    raise MissingFileError(f"[read_trace] no file {path}{hint}")


def _chosen(path: Path, name: str | None) -> Format:
    if name is not None:
        if name not in FORMATS:
            raise UnknownNameError.among("trace format", name, FORMATS)
        return FORMATS[name]
    name = path.stem if is_compressed(path) else path.name
    fitting = [
        (len(suffix), each)
        for each in FORMATS.values()
        for suffix in each.suffixes
        if name.lower().endswith(suffix.lower())
    ]
    if not fitting:
        known = ", ".join(sorted(suffix for each in FORMATS.values() for suffix in each.suffixes))
        raise UnknownNameError(
            f"[trace format] no trace format is called {path.suffix or str(path)!r}; files end in {known}, "
            f"or also in {SUFFIX}; give another name, or the format: {', '.join(FORMATS)}"
        )
    return max(fitting, key=lambda pair: pair[0])[1]


def _one_way(path: Path, wanted: str, possible: str) -> TraceFormatError:
    return TraceFormatError(
        f"[trace] {path} cannot be {wanted}: this format is only {possible}; Parquet does both"
    )
