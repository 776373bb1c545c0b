"""Run the code blocks of one Markdown file, in order, in the current directory.

    python markdown.py FILE [NUMBER]

With a number only the runnable block of that number runs, from 0, as if it had been pasted alone.
Blocks marked ```python share one namespace; a one-line HTML comment ``not run: reason`` directly above a
block leaves it out. A shell block runs when the comment above it says ``run``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--\s*(.*?)\s*-->")
SHELLS = {"bash", "sh", "shell", "console"}


class Block(NamedTuple):
    """A fenced block."""

    language: str
    code: str
    line: int
    """Line of its first line of code in the file, from 1."""
    comment: str
    """Text of the HTML comment directly above, or ""."""


def blocks(text: str) -> Iterator[Block]:
    """Every fenced block of a Markdown text."""
    for match in BLOCK.finditer(text):
        above = COMMENT.fullmatch(text[: match.start()].rstrip().rpartition("\n")[2])
        line = text.count("\n", 0, match.start(2)) + 1
        yield Block(match[1], match[2], line, above[1] if above else "")


def runnable(text: str) -> list[Block]:
    """Blocks that are to be run."""
    return [
        block
        for block in blocks(text)
        if (block.language == "python" and not block.comment.startswith("not run:"))
        or (block.language in SHELLS and block.comment == "run")
    ]


def run(path: Path, only: slice = slice(None)) -> None:
    """Run the blocks of ``path``; raises what the first failing block raises."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in runnable(path.read_text(encoding="utf-8"))[only]:
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.code, str(path), "exec"), namespace)
        else:
            subprocess.run(["bash", "-euo", "pipefail", "-c", block.code], check=True)


if __name__ == "__main__":
    first = int(sys.argv[2]) if len(sys.argv) > 2 else None
    run(Path(sys.argv[1]), slice(None) if first is None else slice(first, first + 1))
