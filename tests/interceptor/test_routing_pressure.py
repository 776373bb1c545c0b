"""Memory that runs out while a call is computed; what is counted and logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

import accelera
from accelera.interceptor import api, elementwise, gemm, hooks
from accelera.interceptor.config import RouteOverride, config_of
from accelera.interceptor.router import route
from tests.interceptor.forcing import counted, forced

NO_MEMORY = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."


def failing(kernel: Callable[..., Any], times: int, most: int | None = None) -> Callable[..., Any]:
    """Return ``kernel`` out of memory ``times``, or for every tensor of over ``most`` elements."""
    left = [times]

    def called(*args: Any, **kwargs: Any) -> Any:
        too_large = (
            most is not None and max(each.numel() for each in args if isinstance(each, torch.Tensor)) > most
        )
        if left[0] > 0 or too_large:
            left[0] -= 1
            raise RuntimeError(NO_MEMORY)
        return kernel(*args, **kwargs)

    return called


def test_a_direct_call_goes_on_in_pieces(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(200, 300)
    call = elementwise.ElementwiseCall("exp", elementwise.schema_of("exp"), (x,), {})
    with counted() as seen:
        found = route(call, config_of("1GiB", 0, 0), failing(torch.exp, 1), (x,), {})
    assert torch.equal(found, x.exp())
    stats = seen[0].by_op["exp"]
    assert stats.chunked == 1
    assert stats.fallbacks == {"in pieces after running out of memory": 1}
    assert "exp goes on in pieces after running out of memory" in caplog.text
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_tiles_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(200, 300)
    original = hooks.original
    monkeypatch.setattr(elementwise, "original", lambda name: failing(original(name), 0, most=64))
    with forced("chunked", 1024), counted() as seen:
        found = torch.sin(x) * 0 + x
    assert torch.equal(found, x)
    assert seen[0].by_op["add.Tensor"].fallbacks["in half the tile after running out of memory"] > 100


def test_in_place_tiles_are_not_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(1000)
    original = hooks.original
    monkeypatch.setattr(elementwise, "original", lambda name: failing(original(name), 0, most=100))
    with forced("chunked", 1024):
        x.add_(1)
    assert torch.equal(x, torch.full((1000,), 2.0))


def test_products_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.randn(60, 50).bfloat16(), torch.randn(50, 70).bfloat16()
    original = hooks.original
    monkeypatch.setattr(gemm, "original", lambda name: failing(original(name), 0, most=1500))
    with forced("chunked", 1 << 20), counted() as seen:
        found = a @ b
    torch.testing.assert_close(found, a @ b)
    assert seen[0].by_op["mm"].fallbacks["in half the tile after running out of memory"] >= 2


def test_a_result_for_which_there_is_no_memory_goes_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(200, 300)
    whole = torch.empty_strided

    def none_left(shape: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if tuple(shape) == (200, 300):
            raise RuntimeError(NO_MEMORY)
        return whole(shape, *args, **kwargs)

    monkeypatch.setattr(torch, "empty_strided", none_left)
    with forced("chunked"), counted() as seen:
        found = x + 1
    monkeypatch.undo()
    assert torch.equal(found, x + 1)
    assert seen[0].by_op["add.Tensor"].fallbacks == {"into a file after running out of memory": 1}
    assert seen[0].by_op["add.Tensor"].spilled == 1


def test_other_errors_are_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(20, 30)
    call = elementwise.ElementwiseCall("exp", elementwise.schema_of("exp"), (x,), {})

    def broken(*_: Any) -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        route(call, config_of("1GiB", 0, 0), broken, (x,), {})


def test_every_decision_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "accelera.interceptor")
    x = torch.randn(100, 30)
    with accelera.intercepted("1MiB", 0, 0):
        x + 1
        torch.add(x, 1, out=torch.empty(0))
    with accelera.intercepted(8000, 0, 0):
        x * 2
    said = [record.getMessage() for record in caplog.records if record.name == "accelera.interceptor"]
    assert said == [
        "add.Tensor: direct, adds 11.7 KiB",
        "add.out: direct, adds 11.7 KiB",
        "mul.Tensor: spilled within 7.8 KiB, 11.7 KiB in one piece",
    ]


def test_the_counts_are_true() -> None:
    x = torch.randn(100, 30)
    with counted() as seen:
        with accelera.intercepted("1MiB", 0, 0):
            x + 1
            x + 2
            x.exp()
        with accelera.intercepted(13_000, 0, 0):
            x.long() + x
        with accelera.intercepted(8000, 0, 0):
            x * 2
        with accelera.intercepted(8000, 0, 0, spill_dir=False), pytest.raises(MemoryError):
            x * 2
        with accelera.intercepted("1MiB", 101, 0):
            x - 1
    stats = seen[0]
    assert stats.by_op["add.Tensor"].direct == 2
    assert stats.by_op["add.Tensor"].chunked + stats.by_op["add.Tensor"].spilled == 1
    assert stats.by_op["add.Tensor"].largest_without_bytes == 24_000
    assert stats.by_op["exp"].looked_bytes == 24_000
    assert (stats.by_op["mul.Tensor"].spilled, stats.by_op["mul.Tensor"].refused) == (1, 1)
    assert stats.by_op["mul.Tensor"].spilled_bytes == 12_000
    assert "sub.Tensor" not in stats.by_op
    assert stats.total.calls == 6
    assert stats.as_dict()["total"]["direct"] == 3
    assert "mul.Tensor: 2 calls: 1 spilled, 1 refused" in str(stats)
    assert "add.Tensor: 3 calls: 2 direct" in str(stats)


def test_there_is_a_handler_for_every_operator_below_autograd() -> None:
    from accelera.interceptor.hooks.operators import BELOW_AUTOGRAD

    assert set(BELOW_AUTOGRAD) <= set(api.handlers())


def test_the_override_is_for_tests_only() -> None:
    assert config_of("1GiB", 0, 0).override == RouteOverride("direct", None)
