"""Numbers, ticks, colours and places of labels that all pictures share."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera import _plotting as units
from accelera._plotting import (
    DARK,
    LIGHT,
    OKABE_ITO,
    Box,
    contrast,
    dark_colours,
    ink_on,
    place_labels,
    policy_colours,
    shown_lines,
    text_colour,
)
from accelera.policy import POLICIES
from accelera.units import format_seconds

FINITE = st.floats(0, 1e18, allow_nan=False)


@given(FINITE, st.floats(1e-12, 1e18), st.integers(2, 10))
def test_ticks_are_round_and_around_the_values(low: float, span: float, most: int) -> None:
    high = low + span
    if not high > low * (1 + 1e-9):
        return
    ticks = units.round_ticks(low, high, most)
    power = 10.0 ** math.floor(math.log10(ticks.interval) + 1e-9)
    assert round(ticks.interval / power, 6) in (1, 2, 5)
    slack = ticks.interval * 1e-6
    assert ticks.low - slack <= low
    assert high <= ticks.high + slack
    assert 1 <= round((ticks.high - ticks.low) / ticks.interval) <= most


def test_equal_values_have_ticks_too() -> None:
    assert units.round_ticks(0, 0).values == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


@given(st.floats(0, 9e17))
def test_sizes_have_three_digits_and_the_right_unit(size: float) -> None:
    number, unit = units.format_size(size).split(" ")
    factor = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}[unit]
    assert float(number) * factor == pytest.approx(size, rel=0.05, abs=0.5)
    assert 1 <= float(number) < 1000 or unit in ("B", "PB")
    assert len(number.replace(".", "")) <= 3


@given(st.floats(1e-9, 1e9))
def test_times_are_near(seconds: float) -> None:
    factors = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400}
    words = format_seconds(seconds).split(" ")
    total = sum(float(number) * factors[unit] for number, unit in zip(words[::2], words[1::2], strict=True))
    assert total == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (units.format_budget(24e9), "24 GB"),
        (format_seconds(0), "0 s"),
        (format_seconds(math.inf), "never"),
        (units.format_ratio(7.23), "7.2×"),
        (units.format_ratio(1.04), "1.04×"),
        (units.format_ratio(math.inf), "∞×"),
        (units.format_share(0.784), "78 %"),
        (units.format_share(0.004), "0.4 %"),
        (units.format_count(1842), "1,842"),
    ],
)
def test_words(said: str, expected: str) -> None:
    assert said == expected


def test_text_is_readable_in_every_colour_on_both_pages() -> None:
    for theme in (LIGHT, DARK):
        for colour in (*OKABE_ITO, theme.least, theme.best, theme.excess):
            assert contrast(text_colour(colour, theme.background), theme.background) >= 4.5
        for colour in (theme.ink, theme.muted):
            for band in theme.bands:
                assert contrast(colour, band) >= 4.5, (theme.name, colour, band)
    assert min(contrast(ink_on(colour), colour) for colour in OKABE_ITO) >= 4.4


# Source: F. Viénot, H. Brettel, J. Mollon, "Digital video colourmaps for checking the legibility of displays
# by dichromats", Color Research and Application 24 (1999); on linear RGB.
PROTANOPE = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
DEUTERANOPE = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(seen @ linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize("seen", [np.eye(3), PROTANOPE, DEUTERANOPE], ids=["usual", "protan", "deutan"])
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_lines_differ_for_every_colour_vision(seen: np.ndarray, theme: object) -> None:
    colours = policy_colours(["lru", "belady", "arc", "gdsf", "planner"], theme)  # type: ignore[arg-type]
    pairs = itertools.combinations(colours.values(), 2)
    assert min(float(np.linalg.norm(lab(one, seen) - lab(other, seen))) for one, other in pairs) > 11


@given(st.lists(st.sampled_from(sorted(POLICIES)), min_size=1, max_size=5, unique=True))
def test_five_policies_have_five_colours(names: list[str]) -> None:
    assert len(set(policy_colours(names).values())) == len(names)


def test_dark_colours_are_one_for_each() -> None:
    assert not set(dark_colours()) & set(dark_colours().values()) - {"#0072b2"}


def test_lines_shown_are_the_best_the_known_and_the_different() -> None:
    values = {f"p{index}": [float(index)] for index in range(20)} | {"lru": [3.5]}
    shown = shown_lines(values)
    assert len(shown) == 5
    assert shown[0] == "p0"
    assert {"lru", "p19"} <= set(shown)
    assert shown_lines(values, ["p7", "p2"]) == ["p2", "p7"]


def own_names(lines: dict[str, np.ndarray]) -> dict[str, str]:
    return {name: name for name in lines}


def test_labels_lie_beside_their_lines_clear_of_all_else() -> None:
    x = np.linspace(0, 1, 30)
    lines = {"one": 0.9 - 0.8 * x, "two": 0.9 - 0.3 * x, "three": np.full(30, 0.95)}
    taken = [Box(0.4, 0.6, 0, 1)]
    found = {label.names: label for label in place_labels(x, lines, own_names(lines), taken=taken)}
    assert set(found) == {("one",), ("two",), ("three",)}
    boxes = [label.box for label in found.values()]
    assert not any(one.overlaps(other) for one, other in itertools.combinations([*boxes, *taken], 2))
    for (name,), label in found.items():
        distances = {other: abs(float(np.interp(label.x, x, lines[other])) - label.y) for other in lines}
        assert min(distances, key=lambda each: distances[each]) == name


def test_lines_that_lie_together_have_one_label() -> None:
    x = np.linspace(0, 1, 30)
    lines = {"one": 0.9 - 0.8 * x, "same": 0.91 - 0.8 * x, "other": np.full(30, 0.5)}
    found = place_labels(x, lines, own_names(lines))
    assert [label.names for label in found] == [("one", "same"), ("other",)]


@given(st.integers(0, 2**32 - 1))
def test_labels_stay_inside(seed: int) -> None:
    dice = np.random.default_rng(seed)
    x = np.sort(dice.random(12))
    lines = {f"line {index}": np.sort(dice.random(12))[::-1] * 0.85 for index in range(4)}
    for label in place_labels(x, lines, own_names(lines)):
        assert 0 <= label.box.left < label.box.right <= 1
        assert -1e-9 <= label.box.bottom < label.box.top <= 1 + 1e-9
