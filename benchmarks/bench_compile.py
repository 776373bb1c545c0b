"""What ``predict_compile`` says beside what ``torch.compile`` does on this CPU: kernels, bytes, seconds.

python -m benchmarks compile [--small]

Kernels and bytes are counted in inductor's scheduler after fusion, so they need no C++ compiler; times do,
and are left out with the reason where there is none. Times are CPU seconds of one thread (``--threads 0``:
wall clock of all), so that other programs count little: as traced from speeds probed on this machine alone;
compiled from these, and from the time as traced where that is measured. The small form counts one model only.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from accelera.capture import capture
from accelera.capture._internal import quickest_s
from accelera.estimate._internal import local_machine
from accelera.memory import Hierarchy
from accelera.simulator.compiling import CompilePrediction, predict_trace
from accelera.simulator.compiling.timing import StepTime
from benchmarks.machine import save
from benchmarks.models import small_references


class Perceptron(nn.Module):
    """Two linear layers with a residual and a norm."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(functional.gelu(self.up(x))))


class Block(nn.Module):
    """A transformer block with attention written out."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2)) * (width // self.heads) ** -0.5
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Convolutional(nn.Module):
    """Two convolutions with batch norms, a residual, pooling and a classifier."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)])
        self.classify = nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norms[0](self.first(x)))
        x = functional.relu(self.norms[1](self.second(x)) + x)
        return self.classify(functional.max_pool2d(x, 2).mean((2, 3)))


class WithLoss(nn.Module):
    """A model and its loss in one graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any, **named: Any) -> torch.Tensor:
        found = self.model(*inputs, **named)
        if isinstance(found, torch.Tensor):
            return found.square().mean()
        loss = getattr(found, "loss", None)
        assert loss is not None
        return loss


TUNED = {
    "mlp": (Perceptron, lambda: torch.randn(256, 512)),
    "block": (Block, lambda: torch.randn(4, 64, 256)),
    "cnn": (Convolutional, lambda: torch.randn(8, 3, 32, 32)),
}
"""Models that the rules of fusion were written with."""
HELD_OUT = ("resnet34", "gpt2", "bert", "llama")
"""Small models of reference that nothing was adjusted to."""


ROUNDS = 15
TIMES = ("eager_s", "compiled_s", "compiled_from_run_s")
"""As traced from probed speeds; compiled from these; compiled from a timed run as traced."""


class _KernelsCountedError(Exception):
    """Ends a compilation once its kernels are counted."""


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save predictions beside what inductor did, with the errors."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compile")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--threads", type=int, default=1, help="of torch; 0: as many as it takes")
    options = parser.parse_args(arguments)
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads or threads)
    try:
        return _measured(options)
    finally:
        torch.set_num_threads(threads)


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    machine = local_machine(small=options.small)
    timed, reason = _may_time(options.small)
    rows = [
        _row(name, build, inputs, train, machine, timed)
        for name, build, inputs, train in _cases(options.small)
    ]
    figures = {
        "rows": rows,
        "errors": _errors(rows),
        "inside": _inside(rows),
        "not_timed": reason,
        "threads": torch.get_num_threads(),
    }
    _print(figures)
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def _cases(small: bool) -> Iterator[tuple[str, Callable[[], nn.Module], Callable[[], Any], bool]]:
    for name, (build, inputs) in TUNED.items():
        for train in (False, True):
            if not small or (name == "mlp" and not train):
                yield name, build, inputs, train
    for name in () if small else HELD_OUT:
        reference = small_references()[name]
        for train in (False, True):
            yield f"{name} (held out)", reference.build, reference.inputs, train


def _may_time(small: bool) -> tuple[bool, str]:
    if small:
        return False, "the small form only counts"
    if not (shutil.which("g++") or shutil.which("clang++")):
        return False, "no C++ compiler was found"
    return True, ""


def _row(
    name: str,
    build: Callable[[], nn.Module],
    make_inputs: Callable[[], Any],
    train: bool,
    machine: Hierarchy,
    timed: bool,
) -> dict[str, Any]:
    torch.manual_seed(0)
    model = build().train(train)
    inputs = make_inputs()
    program = WithLoss(model) if train else model
    predicted = _predicted(program, inputs, train, machine)
    counted, seconds = _compiled(program, inputs, train, timed)
    row: dict[str, Any] = {
        "model": name,
        "train": train,
        "kernels": {"predicted": predicted.fusion.launches.value, "inductor": len(counted)},
        "bytes": {"predicted": predicted.fusion.traffic.value, "inductor": sum(counted)},
        "eager_launches": predicted.fusion.eager_launches.value,
        "eager_bytes": predicted.fusion.eager_traffic.value,
    }
    if timed:
        from_run = _predicted(program, inputs, train, machine, timed=ROUNDS).time
        row["eager_s"] = _compared(predicted.time.eager, from_run.eager.total.value)
        row["compiled_s"] = _compared(predicted.time.compiled, seconds)
        row["compiled_from_run_s"] = _compared(from_run.compiled, seconds)
    return row


def _compared(predicted: StepTime, measured: float | None) -> dict[str, float | None]:
    return {
        "predicted": predicted.total.value,
        "measured": measured,
        "low": predicted.low.value,
        "high": predicted.high.value,
    }


def _predicted(
    program: nn.Module, inputs: Any, train: bool, machine: Hierarchy, timed: int = 0
) -> CompilePrediction:
    loss = (lambda found: found) if train else None
    trace = capture(program, inputs, train, optimizer=None, loss=loss, timed=timed)
    return predict_trace(trace, hierarchy=machine, budgets=[1.0])


def _compiled(program: nn.Module, inputs: Any, train: bool, timed: bool) -> tuple[list[int], float | None]:
    """Return the bytes of each kernel that inductor makes, and the seconds of a step."""
    with _counting(stop=not timed) as counted:
        torch._dynamo.reset()
        compiled = torch.compile(program)
        try:
            _run(compiled, inputs, train)
        except Exception as error:
            if timed or "_KernelsCountedError" not in repr(error):
                raise
        seconds = _seconds(compiled, inputs, train) if timed else None
    program.zero_grad()
    return counted, seconds


@contextmanager
def _counting(*, stop: bool) -> Iterator[list[int]]:
    """Collect the bytes of the scheduler's nodes after fusion; parts of a result are no kernels."""
    from torch._functorch import config as graphs
    from torch._inductor import config

    counted: list[int] = []

    def after_fusion(nodes: list[Any]) -> list[Any]:
        counted.extend(nbytes for node in nodes if (nbytes := node.get_read_write_buffers_sizes()))
        if stop:
            raise _KernelsCountedError
        return nodes

    fresh = config.patch(_post_fusion_custom_pass=after_fusion, fx_graph_cache=False)
    with warnings.catch_warnings(), graphs.patch(enable_autograd_cache=False), fresh:
        warnings.simplefilter("ignore")
        yield counted


def _run(program: Any, inputs: Any, train: bool) -> None:
    arguments, named = _arguments(inputs)
    with torch.set_grad_enabled(train):
        if train:
            program.zero_grad(set_to_none=True)
        found = program(*arguments, **named)
        if train:
            found.backward()


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def _seconds(program: Any, inputs: Any, train: bool) -> float:
    """Return the seconds of the quickest step, after two that warm up."""
    return quickest_s(lambda: _run(program, inputs, train), ROUNDS)


def _errors(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the geometric mean and the largest ratio by which predictions miss, both ways, per figure."""
    found = {}
    for what, held_out in ((w, h) for w in ("kernels", "bytes", *TIMES) for h in (False, True)):
        chosen = [row[what] for row in rows if what in row and held_out == ("held out" in row["model"])]
        ratios = [abs(math.log(each["predicted"] / list(each.values())[1])) for each in chosen]
        if ratios:
            key = f"{what}, {'held out' if held_out else 'tuned'}"
            found[key] = {"mean": math.exp(statistics.mean(ratios)), "largest": math.exp(max(ratios))}
    return found


def _inside(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Return per figure how many measured times lie in the range that was given for them, and of how many."""
    found = {}
    for what, held_out in ((w, h) for w in TIMES for h in (False, True)):
        chosen = [row[what] for row in rows if what in row and held_out == ("held out" in row["model"])]
        if chosen:
            inside = sum(each["low"] <= each["measured"] <= each["high"] for each in chosen)
            found[f"{what}, {'held out' if held_out else 'tuned'}"] = inside, len(chosen)
    return found


def _print(figures: dict[str, Any]) -> None:
    for row in figures["rows"]:
        kernels, nbytes = row["kernels"], row["bytes"]
        line = (
            f"{row['model']:<22}{'train' if row['train'] else 'infer':<7}"
            f"kernels {kernels['predicted']:>5.0f} of {kernels['inductor']:>4} "
            f"(eager {row['eager_launches']:>4.0f})   MB {nbytes['predicted'] / 1e6:>8.2f} of "
            f"{nbytes['inductor'] / 1e6:>8.2f} (eager {row['eager_bytes'] / 1e6:.2f})"
        )
        for what in TIMES:
            if what in row:
                both = row[what]
                line += f"   {what[:-2]} ms {both['predicted'] * 1e3:.2f} of {both['measured'] * 1e3:.2f}"
        print(line)
    for what, error in figures["errors"].items():
        print(f"{what:<24} off by {error['mean']:.2f}x on average, {error['largest']:.2f}x at most")
    for what, (count, of) in figures["inside"].items():
        print(f"{what:<32} measured inside the expected range for {count} of {of}")
    if figures["not_timed"]:
        print("no times:", figures["not_timed"])


if __name__ == "__main__":
    main(sys.argv[1:])
