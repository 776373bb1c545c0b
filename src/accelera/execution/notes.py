"""Notes on exceptions, which tracebacks show."""

from __future__ import annotations


def add_note(error: BaseException, note: str) -> None:
    """Add ``note`` unless it is there, also to an exception whose class forbids to set attributes."""
    notes = [*getattr(error, "__notes__", ())]
    if note not in notes:
        error.__dict__["__notes__"] = [*notes, note]
