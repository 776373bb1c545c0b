"""Hypothesis strategies for damaged files: corpus files with bytes, numbers and JSON values changed."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][A-Za-z_0-9]*")
EXTREME_NUMBERS = (
    b"0", b"-0", b"-1", b"1", b"2", b"127", b"255", b"65536", b"2147483647", b"2147483648", b"-2147483648",
    b"4294967296", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808",
    b"18446744073709551615", b"18446744073709551616", b"1e308", b"1e309", b"-1e309", b"1e-320", b"NaN",
    b"Infinity", b"-Infinity", b"0.1", b"1.0", b"nan", b"inf", b"1_000", b" 7", b"+7", b"0x10", b"1" * 40,
    b"9" * 400, b"9" * 5000, b"\xd9\xa3", b"\xc2\xb2",
)  # fmt: skip
"""The last two are digits of other scripts, which some parsers of numbers accept."""
EXTREME_INTEGERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
EXTREME_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, 1.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "a", "\0", "\ud800", "é", "1", "float32", "/", "..", [], [[]], [None], {}, {"": None},
    [0] * 40, ["x"] * 3, [[0, 1]], [1, 2], {"a": {"b": {}}}, [[[[[[[[]]]]]]]],
)  # fmt: skip
TOKENS = (
    b"\0", b"\n", b"\r\n", b"\r", b",", b'"', b"'", b"{", b"}", b"[", b"]", b":", b"::", b"\xff",
    b"\xef\xbb\xbf", b"\\u0000", b"\\ud800", b"null", b"true", b"NaN", b"%", b"/", b"../", b"~", b"~x/",
    b"[" * 30000,
    b'{"a":' * 10000, b"(" * 300, b"-" * 2000, b"9" * 4301, b" " * 5000,
)  # fmt: skip
_LONGEST = 1 << 16

Draw = Callable[[st.SearchStrategy[Any]], Any]


def _position(draw: Draw, size: int) -> int:
    return int(draw(st.integers(0, max(size, 0))))


def _range(draw: Draw, size: int) -> tuple[int, int]:
    start = _position(draw, size)
    return start, min(start + int(draw(st.sampled_from((1, 1, 2, 4, 8, 16, 64, 256)))), size)


def _flip_bit(draw: Draw, data: bytes, seeds: list[bytes]) -> bytes:
    if not data:
        return data
    place = _position(draw, len(data) - 1)
    return data[:place] + bytes([data[place] ^ 1 << draw(st.integers(0, 7))]) + data[place + 1 :]


def _set_byte(draw: Draw, data: bytes, seeds: list[bytes]) -> bytes:
    place = _position(draw, len(data))
    return data[:place] + bytes([draw(st.integers(0, 255))]) + data[place + 1 :]


def _insert(draw: Draw, data: bytes, seeds: list[bytes]) -> bytes:
    place = _position(draw, len(data))
    text = draw(st.one_of(st.sampled_from(TOKENS), st.binary(min_size=1, max_size=8)))
    return data[:place] + text + data[place:]


def _delete(draw: Draw, data: bytes, seeds: list[bytes]) -> bytes:
    start, stop = _range(draw, len(data))
    return data[:start] + data[stop:]


def _duplicate(draw: Draw, data: bytes, seeds: list[bytes]) -> bytes:
    start, stop = _range(draw, len(data))
    return data[:stop] + data[start:stop] * draw(st.sampled_from((1, 2, 50))) + data[stop:]


def _truncate(draw: Draw, data: bytes, seeds: list[bytes]) -> bytes:
    return data[: _position(draw, len(data))]


def _splice(draw: Draw, data: bytes, seeds: list[bytes]) -> bytes:
    other = draw(st.sampled_from(seeds))
    return data[: _position(draw, len(data))] + other[_position(draw, len(other)) :]


def _replace_number(draw: Draw, data: bytes, seeds: list[bytes]) -> bytes:
    return _replace_match(draw, data, _NUMBER, EXTREME_NUMBERS)


def _replace_word(draw: Draw, data: bytes, seeds: list[bytes]) -> bytes:
    words = tuple(sorted({match.group() for seed in seeds for match in _WORD.finditer(seed)})) or (b"x",)
    return _replace_match(draw, data, _WORD, words)


def _replace_match(draw: Draw, data: bytes, pattern: re.Pattern[bytes], values: tuple[bytes, ...]) -> bytes:
    matches = list(pattern.finditer(data))
    if not matches:
        return data
    match = draw(st.sampled_from(matches))
    return data[: match.start()] + draw(st.sampled_from(values)) + data[match.end() :]


def _replace_integer(draw: Draw, data: bytes, seeds: list[bytes]) -> bytes:
    width, code = draw(st.sampled_from(((1, "B"), (2, "H"), (4, "I"), (8, "Q"))))
    if len(data) < width:
        return data
    place = _position(draw, len(data) - width)
    value = draw(st.sampled_from(EXTREME_INTEGERS)) & (1 << 8 * width) - 1
    order = draw(st.sampled_from("<>"))
    return data[:place] + struct.pack(order + code, value) + data[place + width :]


def _change_json(draw: Draw, data: bytes, seeds: list[bytes]) -> bytes:
    """Change one value of the first JSON object or list; an 8-byte length before it is kept right."""
    begin = min((place for place in (data.find(b"{"), data.find(b"[")) if place >= 0), default=-1)
    if begin < 0:
        return data
    try:
        document, length = json.JSONDecoder().raw_decode(data[begin:].decode("latin-1"))
    except (ValueError, RecursionError):
        return data
    changed = _changed(draw, document)
    try:
        text = json.dumps(changed, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return data
    head = data[:begin]
    if begin == 8 and int.from_bytes(head, "little") >= length:
        head = len(text).to_bytes(8, "little")
        length = int.from_bytes(data[:8], "little")
    return head + text + data[begin + length :]


def _changed(draw: Draw, value: Any) -> Any:
    """Return a document in which one value, at a random depth, is replaced, removed, doubled or renamed."""
    if not isinstance(value, (dict, list)) or not value or draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from(EXTREME_VALUES))
    action = draw(st.sampled_from(("descend", "descend", "descend", "remove", "double", "swap")))
    if isinstance(value, dict):
        return _changed_object(draw, value, action)
    place = draw(st.integers(0, len(value) - 1))
    if action == "remove":
        return value[:place] + value[place + 1 :]
    if action == "double":
        return [*value[:place], value[place], *value[place:]]
    if action == "swap":
        return [*value[place:], *value[:place]]
    return [*value[:place], _changed(draw, value[place]), *value[place + 1 :]]


def _changed_object(draw: Draw, value: dict[str, Any], action: str) -> dict[str, Any]:
    key, other = draw(st.sampled_from(list(value))), draw(st.sampled_from(list(value)))
    if action == "remove":
        return {name: each for name, each in value.items() if name != key}
    if action == "double":
        return {**value, f"{key}2": value[key]}
    if action == "swap":
        return {**value, key: value[other], other: value[key]}
    return {**value, key: _changed(draw, value[key])}


_MUTATIONS = (
    _flip_bit,
    _set_byte,
    _insert,
    _delete,
    _duplicate,
    _truncate,
    _splice,
    _replace_number,
    _replace_number,
    _replace_word,
    _replace_integer,
    _change_json,
    _change_json,
    _change_json,
)


@st.composite
def mutated(draw: Draw, seeds: list[bytes]) -> bytes:
    """Draw one of ``seeds`` with one to four changes."""
    data: bytes = draw(st.sampled_from(seeds))
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3, 4)))):
        data = draw(st.sampled_from(_MUTATIONS))(draw, data, seeds)[:_LONGEST]
    return data
