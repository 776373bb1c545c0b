"""Trace files compressed with Zstandard, as libCacheSim publishes its traces: ``web.oracleGeneral.zst``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelera.errors import TraceFormatError

SUFFIX = ".zst"
"""End of the names of such files, in any case."""
_BUFFER_BYTES = 1 << 20


def is_compressed(path: Path) -> bool:
    """Return whether the name of a file means that it is compressed."""
    return path.suffix.lower() == SUFFIX


@contextmanager
def decompressed(path: Path) -> Iterator[Path]:
    """Yield a temporary file with the decompressed contents of ``path``, under its name without ``.zst``.

    Raises TraceFormatError when the contents are not a complete Zstandard stream, and ModuleNotFoundError
    without pyarrow.
    """
    import pyarrow

    with tempfile.TemporaryDirectory(prefix="accelera-trace-") as folder:
        target = Path(folder) / path.stem
        try:
            with pyarrow.input_stream(path, compression="zstd") as source, target.open("wb") as output:
                shutil.copyfileobj(source, output, _BUFFER_BYTES)
        except OSError as error:
            if error.errno is not None:  # of the file system
                raise
            raise TraceFormatError(
                f"[read_trace] {path} is no complete Zstandard file: {error}; get it again, or decompress it "
                "with zstd -d to see which part is readable"
            ) from error
        yield target


def compress(source: Path, target: Path) -> None:
    """Write the contents of ``source``, compressed, to ``target``."""
    import pyarrow

    with source.open("rb") as content, pyarrow.output_stream(target, compression="zstd") as stream:
        shutil.copyfileobj(content, stream, _BUFFER_BYTES)
