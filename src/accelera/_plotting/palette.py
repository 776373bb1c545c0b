"""Colours of every picture: those of Okabe and Ito, which people with any colour vision tell apart.

Source: M. Okabe and K. Ito, "Color Universal Design", 2008.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal

from accelera.errors import ArgumentError

ThemeName = Literal["light", "dark"]

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8A939E"
OKABE_ITO = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, YELLOW)

_ROLES = {
    "weight": BLUE,
    "optimizer_state": SKY,
    "gradient": GREEN,
    "activation": ORANGE,
    "kv_cache": PURPLE,
    "input": YELLOW,
    "output": VERMILLION,
    "other": GREY,
}
_POLICIES = {
    "lru": VERMILLION,
    "gdsf": ORANGE,
    "belady": BLUE,
    "arc": PURPLE,
    "planner": SKY,
}
_FREE = (BLUE, VERMILLION, ORANGE, PURPLE, SKY)
BLACK = "#0f1b2c"
"""Of text on a colour, in either theme."""
MIN_CONTRAST = 4.5
"""Of text on its background, as WCAG 2.1 asks for (level AA)."""


@dataclass(frozen=True)
class Theme:
    """Colours of a picture's parts on a light or a dark page."""

    name: ThemeName
    background: str
    ink: str
    """Text and lines that matter."""
    muted: str
    """Axis labels and titles; readable on the background."""
    grid: str
    bands: tuple[str, ...]
    """Pale backgrounds of forward, backward, update."""
    excess: str
    """What does not fit."""
    best: str
    plain: str
    """Bars other than the best."""
    least: str
    """The least anyone could move."""


# Within a theme no colour of a part is that of another, or of a role: see ``dark_colours``.
LIGHT = Theme(
    "light",
    background="#fffffe",
    ink="#0f1b2d",
    muted="#4d5968",
    grid="#dfe3e8",
    bands=("#fffffd", "#f3f4f7", "#e8eaef"),
    excess="#b3261e",
    best="#0072b3",
    plain="#b3bfcc",
    least="#00755a",
)
DARK = Theme(
    "dark",
    background="#0e1117",
    ink="#f2f5f9",
    muted="#b3bcc8",
    grid="#2b323d",
    bands=("#0e1118", "#171c25", "#20262f"),
    excess="#e5484d",
    best="#3d9bdc",
    plain="#4f5b69",
    least="#2fbf94",
)
THEMES: dict[str, Theme] = {"light": LIGHT, "dark": DARK}


def theme_of(name: str) -> Theme:
    """Return the theme ``"light"`` or ``"dark"``; raises ValueError for another name."""
    if name not in THEMES:
        raise ArgumentError(f"[theme] {name!r} is no theme; take 'light' or 'dark'")
    return THEMES[name]


def role_colours(roles: Iterable[str]) -> dict[str, str]:
    """Return a colour per role; a known role has the same one in every picture."""
    return _assigned(roles, _ROLES, OKABE_ITO)


def policy_colours(policies: Iterable[str], theme: Theme = LIGHT) -> dict[str, str]:
    """Return a colour per policy, each different up to five; a well-known one keeps its own if it can."""
    found = _assigned(policies, _POLICIES, _FREE)
    return {name: theme.best if colour == BLUE else colour for name, colour in found.items()}


def dark_colours() -> dict[str, str]:
    """Return for each colour of a light picture that differs in a dark one the colour there."""
    found: dict[str, str] = {}
    for part in fields(Theme):
        if part.name != "name":
            pair = getattr(LIGHT, part.name), getattr(DARK, part.name)
            found |= dict(zip(*pair, strict=True)) if part.name == "bands" else {pair[0]: pair[1]}
    for colour in (LIGHT.best, *OKABE_ITO, GREY):
        there = found.get(colour, colour)
        found[text_colour(colour, LIGHT.background)] = text_colour(there, DARK.background)
    return {light: dark for light, dark in found.items() if light != dark}


def _assigned(names: Iterable[str], known: dict[str, str], free: tuple[str, ...]) -> dict[str, str]:
    names = list(dict.fromkeys(names))
    found = {name: known[name] for name in names if name in known}
    left = [colour for colour in free if colour not in found.values()] or list(free)
    for index, name in enumerate(name for name in names if name not in found):
        found[name] = left[index % len(left)]
    return {name: found[name] for name in names}


def text_colour(colour: str, background: str) -> str:
    """Return ``colour`` made darker or lighter until text in it is readable on ``background``."""
    towards = 0.0 if luminance(background) > 0.18 else 255.0
    red, green, blue = _channels(colour)
    for step in range(21):
        share = step / 20
        mixed = [round(one + (towards - one) * share) for one in (red, green, blue)]
        found = "#{:02x}{:02x}{:02x}".format(*mixed)
        if contrast(found, background) >= MIN_CONTRAST:
            break
    return found


def ink_on(colour: str) -> str:
    """Return the ink, nearly black or white, that is more readable on ``colour``."""
    return max((BLACK, "#ffffff"), key=lambda ink: contrast(ink, colour))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21, as WCAG 2.1 defines it."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """Return the relative luminance of ``"#rrggbb"``, 0 to 1, as WCAG 2.1 defines it."""
    linear = [
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
        for share in (channel / 255 for channel in _channels(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
