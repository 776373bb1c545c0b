"""A bar on the terminal for work of many equal parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def with_bar(items: Iterable[T], total: int, name: str, *, shown: bool) -> Iterator[T]:
    """Yield ``items``; where ``shown`` and stderr is a terminal, a bar says how many of ``total`` came."""
    if not shown:
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        yield from bar.track(items, total=total, description=name)
