"""Configurations in links: they come back as they were, and what is none is refused."""

from __future__ import annotations

import base64
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.ui.questions import MOST_LETTERS, packed, unpacked

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=20,
)


def letters(content: bytes) -> str:
    return base64.urlsafe_b64encode(zlib.compress(content)).decode()


@given(st.dictionaries(st.text(max_size=20), VALUES, max_size=12))
def test_a_configuration_comes_back_as_it_was(config: dict[str, object]) -> None:
    text = packed(config)
    assert text is not None
    assert unpacked(text) == json.loads(json.dumps(config))


@given(st.text(max_size=60) | st.binary(max_size=60).map(letters))
def test_what_is_no_configuration_is_none(text: str) -> None:
    assert unpacked(text) is None or isinstance(unpacked(text), dict)


@pytest.mark.parametrize(
    "content", [b"[1]", b'{"a": ', b"[" * 90_000, b'{"a": "' + b" " * 10_000_000 + b'"}', b"\xff"]
)
def test_a_bomb_or_another_value_in_a_link_is_none(content: bytes) -> None:
    assert unpacked(letters(content)) is None


def test_a_configuration_that_is_too_long_for_a_link_has_none() -> None:
    noise = "".join(f"{number * 7919 % 104_729:x}" for number in range(9_000))
    assert packed({"noise": noise}) is None
    assert unpacked("A" * (MOST_LETTERS + 1)) is None
