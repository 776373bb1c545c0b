"""What catching calls adds to those that are too small to be looked at: nanoseconds per call.

python -m benchmarks interception
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from accelera.interceptor import hooks
from benchmarks.machine import save

LEAST_BYTES, LEAST_SIZE = 1 << 30, 1024
PATCHED = ("mm", "bmm", "matmul", "addmm", "baddbmm", "add", "mul")
ROUNDS = 15

Way = Callable[[], AbstractContextManager[None]]


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save the nanoseconds that each way to catch calls adds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks interception")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    added = {name: _added_ns(call, 200 if options.small else 20_000) for name, call in calls().items()}
    torch.set_num_threads(threads)
    _print(added)
    figures = {"tier": hooks.tier(), "why": hooks.why(), "added_ns": added}
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def calls() -> dict[str, Callable[[], Any]]:
    """Return the small calls that are timed, by name."""
    a, b, layer = torch.randn(8, 8), torch.randn(8, 8), torch.nn.Linear(8, 8)
    weight = torch.randn(8, 8, requires_grad=True)
    return {
        "torch.mm": lambda: torch.mm(a, b),
        "a @ b": lambda: a @ b,
        "a + b": lambda: a + b,
        "a.cos(), never caught": lambda: a.cos(),
        "nn.Linear": lambda: layer(a),
        "mm, sum, backward": lambda: torch.mm(a, weight).sum().backward(),
    }


def ways() -> dict[str, Way]:
    """Return every way to catch calls, by name; the three of this package first."""
    tiers = {name: (lambda name=name: _armed(name)) for name in ("shim", "stable", "python") if _works(name)}
    return {
        "nothing": nullcontext,
        **tiers,
        "patched names": _patched,
        "TorchFunctionMode": lambda: _mode(_Functions()),
        "TorchDispatchMode": lambda: _mode(_Operators()),
    }


def _added_ns(call: Callable[[], Any], repetitions: int) -> dict[str, float]:
    """Return what one call takes by itself, and what each way adds; the least of interleaved rounds."""
    least = dict.fromkeys(ways(), float("inf"))
    for _ in range(ROUNDS):
        for name, way in ways().items():
            with way():
                least[name] = min(least[name], _ns(call, repetitions // ROUNDS + 1))
    alone = least.pop("nothing")
    return {"alone": alone, **{name: found - alone for name, found in least.items()}}


def _ns(call: Callable[[], Any], repetitions: int) -> float:
    call()
    began = time.perf_counter_ns()
    for _ in range(repetitions):
        call()
    return (time.perf_counter_ns() - began) / repetitions


@contextmanager
def _tier(name: str) -> Iterator[None]:
    before = os.environ.get("ACCELERA_INTERCEPTION")
    os.environ["ACCELERA_INTERCEPTION"] = name
    try:
        yield
    finally:
        os.environ.pop("ACCELERA_INTERCEPTION")
        if before is not None:
            os.environ["ACCELERA_INTERCEPTION"] = before


def _works(name: str) -> bool:
    with _tier(name):
        return hooks.tier() == name


@contextmanager
def _armed(name: str) -> Iterator[None]:
    with _tier(name):
        hooks.arm(dict.fromkeys(hooks.OPERATORS, _never), LEAST_BYTES, LEAST_SIZE)
        try:
            yield
        finally:
            hooks.disarm()


def _never(*_: Any, **__: Any) -> None:
    raise AssertionError("a small call was handed over")


@contextmanager
def _patched() -> Iterator[None]:
    """Put functions that look at sizes in the place of torch's, under the names that most calls use."""
    owners = [(torch, name) for name in PATCHED] + [
        (Tensor, name) for name in (*PATCHED, "__matmul__", "__add__")
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name in owners]
    for owner, name, function in before:
        setattr(owner, name, _with_size_check(function))
    linear, torch.nn.functional.linear = (
        torch.nn.functional.linear,
        _with_size_check(torch.nn.functional.linear),
    )
    try:
        yield
    finally:
        torch.nn.functional.linear = linear
        for owner, name, function in before:
            setattr(owner, name, function)


def _with_size_check(function: Callable[..., Any]) -> Callable[..., Any]:
    def patched(first: Any, second: Any, *args: Any, **kwargs: Any) -> Any:
        if first.nbytes + second.nbytes >= LEAST_BYTES:
            _never()
        return function(first, second, *args, **kwargs)

    return patched


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _check_sizes(args)
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _check_sizes(args)
        return func(*args, **(kwargs or {}))


def _check_sizes(args: Any) -> None:
    if sum(each.nbytes for each in args if isinstance(each, Tensor)) >= LEAST_BYTES:
        _never()


@contextmanager
def _mode(mode: Any) -> Iterator[None]:
    with mode:
        yield


def _print(added: dict[str, dict[str, float]]) -> None:
    names = list(next(iter(added.values())))
    print(f"{'ns':24}" + "".join(f"{name:>20}" for name in names))
    for call, figures in added.items():
        print(f"{call:24}" + "".join(f"{figures[name]:20.0f}" for name in names))


if __name__ == "__main__":
    main(sys.argv[1:])
