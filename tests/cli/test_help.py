"""Help of every verb: an example that its parser accepts, groups, and hints for unknown verbs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer

from accelera.cli import app
from accelera.cli.examples import EXAMPLES

Run = Callable[..., Any]
ROOT: Any = typer.main.get_command(app)


def commands(group: Any = ROOT, before: str = "") -> Iterator[tuple[str, Any]]:
    context = group.make_context("accelera", [], resilient_parsing=True)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name, command


def test_every_verb_has_an_example() -> None:
    assert sorted(name for name, _ in commands()) == sorted(EXAMPLES)


@pytest.mark.parametrize("verb", EXAMPLES)
def test_examples_are_accepted_and_printed(verb: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    _, *words = shlex.split(EXAMPLES[verb])
    command, context = ROOT, ROOT.make_context("accelera", [], resilient_parsing=True)
    for name in verb.split():
        assert words.pop(0) == name
        command = command.get_command(context, name)
    command.make_parser(context).parse_args(list(words))
    said = run(*verb.split(), "--help").stdout
    assert EXAMPLES[verb] in said
    assert "<bool>" not in said


def test_verbs_stand_in_groups(run: Run) -> None:
    said = run("--help").stdout
    panels = re.findall(r"[╭+][─-]+ (.+?) [─-]", said)
    assert panels == [
        "Options",
        "PyTorch models and programs",
        "Matrices in files",
        "Traces of memory accesses",
        "This machine, batches and the service",
    ]
    assert "<bool>" not in said


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["multiply", "A.npy"], "Did you mean 'matmul'?"),
        (["mutliply", "A.npy"], "Did you mean 'matmul'?"),
        (["matmull"], "Did you mean 'matmul'?"),
        (["capture"], "Did you mean 'trace capture'?"),
        (["plan", "xyzzy"], "Known: matmul, gram, evaluate."),
        (["plan", "multiply"], "Did you mean 'matmul'?"),
        (["trace", "statistics"], "'stats'"),
        (["xyzzy"], "Known: "),
    ],
)
def test_unknown_verbs(run: Run, words: list[str], hint: str) -> None:
    ran = run(*words)
    assert ran.exit_code == 2
    assert hint in ran.output


def test_memory_of_every_verb_is_given_by_one_option() -> None:
    """``--budget`` with ``-b``; a program that ``run`` starts keeps a ``-b`` of its own."""
    for verb, command in commands():
        names = {name for option in command.params for name in option.opts}
        assert not names & {"--capacity", "--memory", "--limit"}, verb
        assert "--budget" not in names or "-b" in names or verb == "run", verb
