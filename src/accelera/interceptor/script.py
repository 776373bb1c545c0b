"""A user's script, recorded from its first line to its last."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from accelera.extras import require

if TYPE_CHECKING:
    from accelera.trace import Trace


class CapturedScript(NamedTuple):
    """Result of a captured script: its trace, and how it ended."""

    trace: Trace
    """Every tensor access that it made."""
    error: BaseException | None
    """What it raised, ``SystemExit`` and ``KeyboardInterrupt`` too; None when it ran to its end."""


def capture_script(path: str | Path, arguments: Sequence[str] = (), *, names: bool = True) -> CapturedScript:
    """Run a Python script as ``__main__`` and record every tensor access it makes.

    Parameters
    ----------
    path
        The script.
    arguments
        Its ``sys.argv[1:]``.
    names
        Whether activations are named after the module that makes them.

    Returns
    -------
    CapturedScript
        The trace, also of a script that failed, and what it raised.
    """
    require("capture_script", "torch")
    from accelera.capturing import Recording, peak_live_bytes

    recording = Recording(names=names, follow_optimizer=True)
    error: BaseException | None = None
    with _as_main(Path(path), arguments):
        try:
            with recording:
                runpy.run_path(str(path), run_name="__main__")
        except BaseException as raised:
            error = raised
    trace = recording.trace(model_type=Path(path).stem, script=Path(path).name, fake=False)
    return CapturedScript(trace.with_meta(peak_live_bytes=peak_live_bytes(trace)), error)


@contextmanager
def _as_main(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Give the script its arguments and its folder to import from, as Python does."""
    argv, search = sys.argv, sys.path
    sys.argv = [str(path), *arguments]
    sys.path = [str(path.resolve().parent), *search]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, search
