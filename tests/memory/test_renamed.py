"""Names of the version before: they warn, and are the new ones."""

from __future__ import annotations

import pytest

from accelera import memory


@pytest.mark.parametrize(
    ("old", "new"), [("Home", "BackingStore"), ("Books", "BufferTable"), ("Stream", "Prefetcher")]
)
def test_an_older_name_warns_and_works(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"accelera.memory.{old} is called accelera.memory.{new} now"):
        assert getattr(memory, old) is getattr(memory, new)
