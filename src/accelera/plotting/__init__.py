"""Colours, ticks, number formats and places of labels that all pictures share; nothing here draws."""

from accelera.plotting.line_labels import Box, LineLabel, TextSize, place_labels
from accelera.plotting.numbers import (
    Scale,
    format_budget,
    format_count,
    format_ratio,
    format_seconds,
    format_share,
    format_size,
    size_scale,
    time_scale,
)
from accelera.plotting.palette import (
    DARK,
    LIGHT,
    OKABE_ITO,
    THEMES,
    Theme,
    contrast,
    dark_colours,
    ink_on,
    policy_colours,
    role_colours,
    text_colour,
    theme_of,
)
from accelera.plotting.selection import MOST_LINES, shown_lines
from accelera.plotting.ticks import Ticks, round_ticks, whole_ticks

__all__ = [
    "DARK",
    "LIGHT",
    "MOST_LINES",
    "OKABE_ITO",
    "THEMES",
    "Box",
    "LineLabel",
    "Scale",
    "TextSize",
    "Theme",
    "Ticks",
    "contrast",
    "dark_colours",
    "format_budget",
    "format_count",
    "format_ratio",
    "format_seconds",
    "format_share",
    "format_size",
    "ink_on",
    "place_labels",
    "policy_colours",
    "role_colours",
    "round_ticks",
    "shown_lines",
    "size_scale",
    "text_colour",
    "theme_of",
    "time_scale",
    "whole_ticks",
]
