"""Readers of text that users type: sizes, fractions, names of types, devices, policies and settings."""

from __future__ import annotations

import functools
import os
from typing import Any
from unittest import mock

import typer

from accelera import settings
from accelera.chunking._internal import create_chunking_strategy
from accelera.cli.options import parsed_axes
from accelera.devices import get_device
from accelera.execution.strategy.strategy import named_strategy
from accelera.memory import MemoryManager
from accelera.memory._internal import Budget
from accelera.policy import create_policy
from accelera.simulator._internal import hierarchy_of
from accelera.stores.dtypes import parse_dtype
from accelera.stores.urls import is_url, parse_url
from accelera.stores.zarr import compressors_of
from accelera.trace import Trace
from accelera.units import format_bytes, parse_bytes, parse_fraction, parse_limit, parse_share
from tests.fuzz.harness import fuzz_target, parts_of, text_of

LARGEST = 1 << 62


@fuzz_target(examples=300)
def size_text(data: bytes) -> None:
    count = parse_bytes(text_of(data))
    assert type(count) is int
    assert 0 <= count <= LARGEST
    format_bytes(count)


@fuzz_target(examples=300)
def share_text(data: bytes) -> None:
    share = parse_share(text_of(data))
    assert 0 < share <= 1 if isinstance(share, float) else 0 <= share <= LARGEST


@fuzz_target(examples=200)
def fraction_text(data: bytes) -> None:
    assert 0 < parse_fraction(text_of(data)) <= 1


@fuzz_target(examples=300)
def store_url(data: bytes) -> None:
    text = text_of(data)
    if is_url(text):
        url = parse_url(text)
        assert text.startswith(url.address)
        assert url.suffix == url.suffix.lower()
        assert "@" not in url.name.partition("://")[2].partition("/")[0].partition("::")[0]


@functools.cache
def _memory() -> MemoryManager:
    return MemoryManager()


@fuzz_target(examples=300)
def budget_text(data: bytes) -> None:
    amount = text_of(data)
    assert 0 <= Budget.parse(amount, _memory()).limit_bytes <= LARGEST
    assert 0 < parse_limit("budget", amount, lambda: 1000) <= LARGEST


@functools.cache
def _trace() -> Trace:
    return Trace.from_arrays([0, 1, 0], 100)


@fuzz_target(examples=200)
def hierarchy_text(data: bytes) -> None:
    hierarchy_of(text_of(data))
    hierarchy_of(text_of(data), _trace())


@fuzz_target(examples=100)
def policy_name(data: bytes) -> None:
    create_policy(text_of(data))


@fuzz_target(examples=200)
def dtype_name(data: bytes) -> None:
    parse_dtype(text_of(data))


@fuzz_target(examples=100)
def device_name(data: bytes) -> None:
    get_device(text_of(data))


@fuzz_target(examples=100)
def strategy_name(data: bytes) -> None:
    name: Any = text_of(data)
    named_strategy(name)


@fuzz_target(examples=100)
def chunking_name(data: bytes) -> None:
    create_chunking_strategy(text_of(data))


@fuzz_target(examples=150)
def codec_text(data: bytes) -> None:
    for version in (2, 3):
        compressors_of(text_of(data), version)


@fuzz_target(examples=100)
def command_line_axes(data: bytes) -> None:
    """A shape, a chunk shape or an order of axes; the command line reports BadParameter."""
    try:
        parsed_axes(text_of(data))
    except typer.BadParameter:
        return


@fuzz_target(examples=200)
def setting_value(data: bytes) -> None:
    """The name of a setting and the text of its variable, without what no environment can hold."""
    name, text = parts_of(data, 2)
    by_name = {setting.name.encode(): setting for setting in settings.SETTINGS}
    setting = by_name.get(name.strip(), settings.SETTINGS[0])
    with mock.patch.dict(os.environ, {setting.variable: text_of(text).replace("\0", "")}):
        settings.current_value(setting.name)
