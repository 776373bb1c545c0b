"""Values of untrusted origin raise one exception, and are cut in messages."""

from __future__ import annotations

from typing import Any

import pytest

from accelera._json_values import is_finite_number, parse_json, shown
from accelera._user_paths import user_path
from accelera.errors import ArgumentError


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", "[" * 100_000, "9" * 5000, b'{"a": ' * 20_000])
def test_parse_json_raises_one_exception(text: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^\[json\] "):
        parse_json(text)


def test_parse_json_returns_values() -> None:
    assert parse_json(b'{"a": [1, null]}') == {"a": [1, None]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, True), (-1.5, True), (True, False), ("1", False), (float("nan"), False), (10**400, False)],
)
def test_is_finite_number(value: Any, expected: bool) -> None:
    assert is_finite_number(value) is expected


def test_shown_cuts_long_values() -> None:
    nested: list[Any] = ["x"]
    for _ in range(60):
        nested = [nested, nested]
    assert len(shown(nested)) < 100
    assert shown("x" * 100).endswith("… (100 characters)")
    assert shown(10**5000) == "a number of thousands of digits"


def test_user_path_names_the_operation() -> None:
    for path in ("~no-such-user-here/a", "a\0b", "~\0/a"):
        with pytest.raises(ArgumentError, match=r"^\[load\] path "):
            user_path(path, "load")
