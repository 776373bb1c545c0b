"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def published(path: Path) -> Iterator[Path]:
    """Yield a new name beside ``path`` to write to; it becomes ``path`` when all went well.

    Otherwise the partial file is removed, and what was at ``path`` stays.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    os.close(descriptor)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(0o666 & ~_umask())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
