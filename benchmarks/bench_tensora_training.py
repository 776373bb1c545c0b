"""Training steps of an MLP, a CNN and a transformer in Tensora, PyTorch, torch.compile, JAX and tinygrad.

Shapes, first weights, batches and optimizers are the same, two threads each, every contender in a process
of its own. All are ready before the first is timed, and they run in turn. Where the machine is not quiet, the
turns count in which others used the processors least. JAX and tinygrad may live in another environment;
tinygrad needs clang, torch.compile a C++ compiler:

    python -m venv /tmp/peers && /tmp/peers/bin/pip install jax tinygrad
    python -m benchmarks tensora-training --peers /tmp/peers/bin/python --save tensora_training
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import save
from benchmarks.training_contenders import CONTENDERS, THREADS
from benchmarks.training_models import MODELS

PEERS = ("jax", "tinygrad")
"""Contenders of the interpreter that ``--peers`` names."""
OPTIONAL = ("torch.compile", *PEERS)
"""Contenders that may be absent: not installed, or without a compiler."""
REST = 0.15
"""Seconds before each turn: threads of the one before spin for more work."""
CALM = 1 / 3
"""Share of the turns that count, of each contender those in which others used the processors least."""


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save the milliseconds of a step of each contender, and its share of eager PyTorch's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tensora-training")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true", help="tiny networks, one round, no torch.compile")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--models", nargs="+", choices=MODELS, help="default: all; the MLP with --small")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--peers", default=sys.executable, help="interpreter that has JAX and tinygrad")
    options = parser.parse_args(arguments)
    if options.small:
        options.rounds = 1
        options.contenders = [name for name in options.contenders if name != "torch.compile"]
    models = options.models or (["mlp"] if options.small else MODELS)
    figures = {model: compared(model, options) for model in models}
    if options.save:
        print("saved", save(options.save, {"threads": THREADS, "rounds": options.rounds, "models": figures}))
    return figures


def compared(model: str, options: Any) -> dict[str, Any]:
    """Return the figures of all contenders that train one network, and why the others are absent."""
    workers, absent = {}, {}
    try:
        for name in options.contenders:
            interpreter = options.peers if name in PEERS else sys.executable
            try:
                workers[name] = Worker(interpreter, name, model, small=options.small)
            except WorkerError as error:
                if name not in OPTIONAL:
                    raise
                absent[name] = str(error)
                print(f"{model:12} {name:14} absent: {error}", flush=True)
        seconds = in_turns(workers, options.rounds)
    finally:
        for worker in workers.values():
            worker.end()
    found = {name: figures_of(worker, seconds[name]) for name, worker in workers.items()}
    first = next(iter(found))
    for name, each in found.items():
        each["of_" + first] = each["best_ms"] / found[first]["best_ms"]
        each["median_of_" + first] = each["median_ms"] / found[first]["median_ms"]
        print(
            f"{model:12} {name:14} best {each['best_ms']:8.2f} ms, median {each['median_ms']:8.2f}, "
            f"{each['of_' + first]:.2f} of {first} (medians {each['median_of_' + first]:.2f}), "
            f"loss {each['losses'][-1]:.5f}, others {each['others_share']:.0%}",
            flush=True,
        )
        if not np.allclose(each["losses"], found[first]["losses"], rtol=1e-3):
            raise AssertionError(f"{model}: {name} learns otherwise: {each['losses']}")
    return {"contenders": found, "absent": absent}


@dataclass(frozen=True)
class Turn:
    """Seconds of single steps, and the share of all processors that others used meanwhile."""

    seconds: list[float]
    others: float


def in_turns(workers: dict[str, Worker], rounds: int) -> dict[str, list[Turn]]:
    """Run all contenders in turn; return their turns by name."""
    turns: dict[str, list[Turn]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            time.sleep(REST)
            turns[name].append(worker.turn())
    return turns


def figures_of(worker: Worker, turns: list[Turn]) -> dict[str, Any]:
    """Return best and median step (ms) of the turns in which other processes were least busy."""
    calm = sorted(turns, key=lambda each: each.others)[: max(1, round(len(turns) * CALM))]
    steps = [seconds for each in calm for seconds in each.seconds]
    return {
        "best_ms": min(steps) * 1e3,
        "median_ms": statistics.median(steps) * 1e3,
        "steps": len(steps),
        "others_share": statistics.mean(each.others for each in calm),
        "losses": worker.ready["losses"],
        "version": worker.ready["version"],
    }


def machine_seconds() -> tuple[float, float]:
    """Return the seconds of all processors since the start: busy (or taken by the host), and idle."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, idle, waiting, *others = (int(each) / os.sysconf("SC_CLK_TCK") for each in fields)
    return user + nice + system + sum(others), idle + waiting


class WorkerError(RuntimeError):
    """A contender that cannot train; the message is the last line of what it wrote."""


class Worker:
    """A process with one contender and one network, past its first steps."""

    def __init__(self, interpreter: str, name: str, model: str, *, small: bool) -> None:
        command = [interpreter, "-m", "benchmarks.training_contenders", name, model]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(THREADS))
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(
            [*command, *(["--small"] if small else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=Path(__file__).parents[1],
            env={**os.environ, **threads},
        )
        try:
            self.ready: dict[str, Any] = self._read_reply()
        except WorkerError:
            self.end()
            raise

    def turn(self) -> Turn:
        """Let the process run some steps, and return their times."""
        assert self._process.stdin
        before = machine_seconds()
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        reply = self._read_reply()
        busy, idle = (now - then for now, then in zip(machine_seconds(), before, strict=True))
        return Turn(reply["steps"], max(0.0, busy - reply["cpu_s"]) / max(busy + idle, 1e-9))

    def end(self) -> None:
        """End the process and close its files."""
        self._process.communicate()
        self._errors.close()

    def _read_reply(self) -> Any:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("told "):
                return json.loads(line.removeprefix("told "))
        self._process.wait()
        self._errors.seek(0)
        written = [line.strip() for line in self._errors if line.strip()]
        raise WorkerError(written[-1][:200] if written else "ended without a word")


if __name__ == "__main__":
    main(sys.argv[1:])
