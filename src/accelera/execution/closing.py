"""Leaving a ``with`` block closes what was opened for it."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import TypeVar

Self = TypeVar("Self", bound="Closing")


class Closing(abc.ABC):
    """Something that holds processes or connections until it is closed."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of them."""

    def __enter__(self: Self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
