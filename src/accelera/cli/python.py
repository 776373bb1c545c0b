"""``accelera-python``: takes the place of ``python``, with large PyTorch calls within a budget.

The budget and everything else is said by ``ACCELERA_*`` variables; the command line is Python's.
"""

from __future__ import annotations

import code
import os
import sys
from collections.abc import Sequence

_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_ENDS = ("-V", "-VV", "--version", "-h", "-?", "--help", "--help-env", "--help-xoptions", "--help-all")
"""Flags of the interpreter after which nothing runs."""


def main() -> None:
    """Run what the command line names, as ``python`` would, and exit as it does."""
    flags, words = interpreter_flags(sys.argv[1:])
    if flags:
        own = [] if any(flag in _ENDS for flag in flags) else ["-m", "accelera.cli.python", *words]
        os.execv(sys.executable, [sys.executable, *flags, *own])
    from accelera.capture._internal import UserProgram
    from accelera.cli.failures import tell
    from accelera.cli.run import carry_out
    from accelera.errors import AcceleraError

    try:
        if words or not sys.stdin.isatty():
            sys.exit(carry_out(UserProgram.of(words or ["-"])).exit_code)
        _interact()
    except AcceleraError as error:
        sys.exit(tell(error, as_json=False))


def interpreter_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flags that are for the interpreter itself, and the words from the program on."""
    count = 0
    while count < len(words) and words[count][:1] == "-" and words[count][:2] not in ("-m", "-c", "-"):
        count += 2 if words[count] in _WITH_VALUE else 1
    return list(words[:count]), list(words[count:])


def _interact() -> None:
    from accelera.interceptor import intercepted

    with intercepted():
        code.interact(local={"__name__": "__main__", "__doc__": None}, exitmsg="")


if __name__ == "__main__":
    main()
