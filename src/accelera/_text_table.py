"""Aligned tables of text: how every report of the project prints rows and columns."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Return rows of cells as lines with columns of equal width, the first ``left`` flush left, others right.

    >>> print(text_table([("policy", "moved"), ("lru", "12 B")]))
    policy  moved
    lru      12 B
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
