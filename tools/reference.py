"""Write docs/reference.md: every public name, setting, policy and command, from the code itself.

    python tools/reference.py [--check]

``--check`` writes nothing and fails when the page is not what the code says.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "accelera"
PAGE = ROOT / "docs" / "reference.md"

HEAD = """# Reference

Written by `make reference` from the docstrings: change those, not this page.
"""


def page() -> str:
    """Return the whole page."""
    inner = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    sections = [HEAD, top_level(), settings(), commands(), *(package(f"accelera.{n}") for n in inner)]
    return "\n".join(section for section in sections if section)


def top_level() -> str:
    """Return the table of names that ``import accelera`` offers, and the small modules behind it."""
    import accelera

    rows = [
        f"| `{name}` | {cell(summary(getattr(accelera, name)))} |"
        for name in accelera.__all__
        if not name.startswith("__") and hasattr(accelera, name)
    ]
    head = ["## `accelera`", "", paragraph(accelera.__doc__), "", "| name | what it is |", "|---|---|"]
    return "\n".join([*head, *rows, ""])


def settings() -> str:
    """Return the table of environment variables."""
    from accelera.settings import SETTINGS

    rows = [
        f"| `{s.variable}` | {'unset' if s.default is None else f'`{s.default}`'} | {cell(s.allowed)} | "
        f"{cell(s.sentence)} |"
        for s in SETTINGS
    ]
    head = ["## Settings", "", "| variable | default | may be | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def commands() -> str:
    """Return the command-line verbs with their options, or nothing while there is no command line."""
    if not (PACKAGE / "cli" / "__init__.py").exists():
        return ""
    from typer.main import get_command

    from accelera.cli import app

    verbs: dict[str, Any] = getattr(get_command(app), "commands", {})
    return "\n".join(
        ["## Commands", "", *(line for n, verb in sorted(verbs.items()) for line in command(n, verb))]
    )


def command(name: str, verb: Any) -> Iterator[str]:
    """Yield the lines of one command."""
    yield from (f"### `accelera {name}`", "", paragraph(verb.help), "")
    for parameter in verb.params:
        written = ", ".join(parameter.opts) if parameter.opts[0].startswith("-") else parameter.name.upper()
        yield f"- `{written}`: {flat(getattr(parameter, 'help', None) or '')}"
    yield ""


def package(name: str) -> str:
    """Return the section of one package: what its front door offers."""
    module = importlib.import_module(name)
    lines = [f"## `{name}`", "", paragraph(module.__doc__), ""]
    for export in sorted(getattr(module, "__all__", ()), key=str.lower):
        title = f"{export}{signature(getattr(module, export))}"
        lines += [f"### `{f'{name}.{title}' if title in ambiguous() else title}`", ""]
        lines += [describe(module, export), ""]
    return "\n".join(lines)


@functools.cache
def ambiguous() -> frozenset[str]:
    """Return the titles that several packages have: links could not tell one from the other."""
    modules = [
        importlib.import_module(f"accelera.{path.parent.name}") for path in PACKAGE.glob("*/__init__.py")
    ]
    found = Counter(
        f"{export}{signature(getattr(module, export))}"
        for module in modules
        for export in getattr(module, "__all__", ())
    )
    return frozenset(title for title, count in found.items() if count > 1)


def describe(module: ModuleType, export: str) -> str:
    """Return the text under one exported name."""
    value = getattr(module, export)
    if inspect.isclass(value):
        return "\n".join([paragraph(value.__doc__), *methods(value)])
    if inspect.isroutine(value):
        return paragraph(value.__doc__)
    return constant_docs(module).get(export, "A constant.")


def methods(value: type) -> list[str]:
    """Return one line per public field, method and property that the class itself defines."""
    lines = [f"- `{name}`: {text}" for name, text in fields(value)]
    for name, member in vars(value).items():
        function = getattr(member, "fget", getattr(member, "__func__", member))
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        written = "" if isinstance(member, property) else signature(function)
        lines.append(f"- `{name}{written}`: {paragraph(function.__doc__)}")
    return ["", *lines] if lines else []


def fields(value: type) -> Iterator[tuple[str, str]]:
    """Yield name and text of the fields of a dataclass or named tuple that have one."""
    if not (dataclasses.is_dataclass(value) or hasattr(value, "_fields")):
        return
    try:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    except (OSError, TypeError):
        return
    assert isinstance(body, ast.ClassDef)
    for node, after in itertools.pairwise(body.body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        told = after.value if isinstance(after, ast.Expr) else None
        if not node.target.id.startswith("_") and isinstance(told, ast.Constant):
            yield node.target.id, paragraph(str(told.value))


def signature(value: Any) -> str:
    """Return ``(a, b, *, c=1)`` without annotations; nothing for what cannot be called."""
    if inspect.isclass(value) and not has_own_constructor(value):
        return ""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return ""
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:
        return "(…)"
    return f"({', '.join(written(list(parameters)))})"


def has_own_constructor(value: type) -> bool:
    """Whether a class is constructed by its user: not an error, not abstract, not a protocol."""
    made_by_us = (
        issubclass(value, BaseException) or inspect.isabstract(value) or getattr(value, "_is_protocol", False)
    )
    return not made_by_us and value.__init__ is not object.__init__


def written(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Yield each parameter as it is written in a ``def``."""
    starred = False
    for p in parameters:
        if p.name in ("self", "cls"):
            continue
        if p.kind is p.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        starred = starred or p.kind is p.VAR_POSITIONAL
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        yield f"{star}{p.name}" + ("" if p.default is p.empty else f"={default(p.default)}")


def default(value: Any) -> str:
    """Return a default as source where that is short and the same on every machine."""
    return repr(value) if value is None or isinstance(value, bool | int | float | str | tuple) else "…"


def summary(value: Any) -> str:
    """Return the first sentence-like line of a docstring, flattened."""
    return paragraph(value.__doc__) if inspect.isclass(value) or inspect.isroutine(value) else ""


def paragraph(text: str | None) -> str:
    """Return the first paragraph of a docstring on one line, as Markdown."""
    return flat(inspect.cleandoc(text or "").partition("\n\n")[0])


def flat(text: str) -> str:
    """Return ``text`` on one line, with the docstrings' double backticks as Markdown's single ones."""
    return re.sub(r"\s+", " ", text.replace("``", "`")).strip()


def cell(text: str) -> str:
    """Return ``text`` fit for a table cell."""
    return text.replace("|", "\\|")


def constant_docs(module: ModuleType) -> dict[str, str]:
    """Return the docstrings written under module-level assignments of a package."""
    folder = Path(str(module.__file__)).parent
    docs: dict[str, str] = {}
    for path in sorted(folder.glob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, after in itertools.pairwise(body):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(after, ast.Expr):
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and isinstance(after.value, ast.Constant):
                docs[target.id] = paragraph(str(after.value.value))
    return docs


def main(arguments: list[str]) -> int:
    """Write the page, or compare it with ``--check``."""
    fresh = page()
    if "--check" not in arguments:
        PAGE.write_text(fresh, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == fresh:
        return 0
    print("docs/reference.md is not what the code says; run: make reference", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
