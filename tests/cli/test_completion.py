"""Completion of commands and options in a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ACCELERA = Path(sys.executable).parent / "accelera"


def completed(words: str, count: int) -> list[str]:
    environment = {**os.environ, "_ACCELERA_COMPLETE": "complete_bash", "COMP_WORDS": words}
    ran = subprocess.run(
        [ACCELERA],
        env={**environment, "COMP_CWORD": str(count)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("words", "count", "expected"),
    [
        ("accelera pl", 1, ["plan"]),
        ("accelera serve --tok", 2, ["--token-file"]),
        ("accelera trace gen", 2, ["generate"]),
    ],
)
def test_words_are_completed(words: str, count: int, expected: list[str]) -> None:
    assert completed(words, count) == expected
