"""Exchange of two names in one folder, at once, where the system can."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_CURRENT_FOLDER = -100
"""``AT_FDCWD``: names are relative to the current folder."""
_EXCHANGE = 2
"""``RENAME_EXCHANGE`` of Linux' ``renameat2``."""
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def exchange(one: Path, other: Path) -> bool:
    """Give each of two files or folders the other's name, atomically; return False where that cannot be.

    Raises OSError when the system can, and refuses.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    first, second = (ctypes.c_char_p(os.fsencode(each)) for each in (one, other))
    done = rename(_CURRENT_FOLDER, first, _CURRENT_FOLDER, second, ctypes.c_uint(_EXCHANGE))
    code = 0 if done == 0 else ctypes.get_errno()
    if code and code not in _UNSUPPORTED:
        raise OSError(code, os.strerror(code), os.fspath(one))
    return code == 0
