"""Pages of the site that are made while it is built: the reference, and what lies beside ``docs/``.

A hook of MkDocs, named in ``mkdocs.yml``. Every front door gets a page with exactly its public names;
settings and commands get theirs from the code; ``ARCHITECTURE.md`` and its neighbours become pages, too.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.front_doors import constant_docs, doors, home_of, names_of, value_of  # noqa: E402
from tools.pictures.imports import imports  # noqa: E402

REPOSITORY_PAGES = {
    "architecture.md": "ARCHITECTURE.md",
    "benchmarks.md": "benchmarks/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
"""Pages that are files of the checkout outside of ``docs/``."""
STABLE = (
    "",
    "chunking",
    "devices",
    "engine",
    "errors",
    "memory",
    "plan",
    "policy",
    "simulator",
    "stores",
    "trace",
    "units",
)
PROVISIONAL = (
    "callbacks",
    "capture",
    "charts",
    "estimate",
    "execution",
    "interceptor",
    "offload",
    "report",
    "service",
    "tensora",
    "testing",
    "views",
)
STABILITY = {**dict.fromkeys(STABLE, "stable"), **dict.fromkeys(PROVISIONAL, "provisional")}
"""Label of each package; docs/status.md explains the labels, and names the experimental parts."""

KINDS = ("Functions", "Classes", "Errors", "Constants")
REPOSITORY = "https://github.com/accelera/accelera/blob/main"
FLAT = {"accelera.tensora.nn", "accelera.tensora.optim", "accelera.tensora.data"}
"""Doors whose classes all have the methods of one base class, which are shown there alone."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put a page for each front door into the navigation, after the first page of the reference."""
    assert config.nav is not None
    for section in config.nav:
        if isinstance(section, dict) and "Reference" in section:
            section["Reference"] += [{door: path} for door, path in pages().items()]
            section["Reference"] += [
                {"Settings": "reference/settings.md"},
                {"Commands": "reference/commands.md"},
            ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    texts = {path: page(door) for door, path in pages().items()}
    texts |= {"reference/settings.md": settings(), "reference/commands.md": commands()}
    texts |= {path: repository_page(source) for path, source in REPOSITORY_PAGES.items()}
    texts["pictures/imports.svg"] = imports()
    for path, text in texts.items():
        if drawn := files.get_file_from_path(path):
            files.remove(drawn)
        files.append(File.generated(config, path, content=text))
    return files


def pages() -> dict[str, str]:
    """Return the path of the page of each front door."""
    return {door: f"reference/{door.removeprefix('accelera.')}.md" for door in doors()}


def page(door: str) -> str:
    """Return the page of one front door: what it is, a table of its names, and each in full."""
    text = inspect.cleandoc(importlib.import_module(door).__doc__ or "")
    names = names_of(door)
    elsewhere = {name: found for name in names if (found := _other_page(door, name))}
    own = [name for name in names if name not in elsewhere]
    label = f"**Stability**: [{STABILITY[door.split('.')[1] if '.' in door else '']}](../status.md#stability)"
    lines = [f"# {door}", "", text.replace("``", "`"), "", label, "", *_table(door, names, elsewhere), ""]
    for kind in KINDS:
        members = [name for name in own if kind_of(door, name) == kind]
        if members:
            lines += [f"## {kind}", ""]
            lines += [line for name in sorted(members, key=_main_first(door)) for line in entry(door, name)]
    return "\n".join(lines)


def kind_of(door: str, name: str) -> str:
    """Return under which heading a name stands."""
    value = value_of(door, name)
    if inspect.isclass(value):
        return "Errors" if issubclass(value, BaseException) else "Classes"
    return "Functions" if inspect.isroutine(value) else "Constants"


def entry(door: str, name: str) -> Iterator[str]:
    """Yield the lines of one name: a directive of mkdocstrings, or a constant's own text."""
    if not is_written(value_of(door, name)):
        yield from (f"### `{name}`", "", summary(door, name), "")
        return
    yield f"::: {door}.{name}"
    if door in FLAT and name != "Module":
        yield from ("    options:", "      inherited_members: false")
    yield ""


def is_written(value: Any) -> bool:
    """Return whether a class or function has a source or a stub to read, and was not made while running."""
    home = home_of(value)
    if home is None or home.startswith("accelera._"):
        return home is not None and inspect.isclass(value)
    try:
        return bool(inspect.getsource(inspect.unwrap(value)))
    except (OSError, TypeError):
        return False


def summary(door: str, name: str) -> str:
    """Return the first paragraph of a name's docstring on one line."""
    if kind_of(door, name) == "Constants":
        text = constant_docs(door).get(name, "")
    else:
        text = inspect.getdoc(value_of(door, name)) or ""
    return re.sub(r"\s+", " ", text.partition("\n\n")[0].replace("``", "`")).strip()


def _main_first(door: str) -> Any:
    """Return the order of names on a page: a function that is called as its package comes first."""
    return lambda name: (name != door.rpartition(".")[2], name.lower(), name)


def _table(door: str, names: Sequence[str], elsewhere: dict[str, str]) -> Iterator[str]:
    yield from ("| name | what it is |", "|---|---|")
    for name in names:
        target = elsewhere.get(name, f"{door}.{name}")
        linked = f"[`{name}`][{target}]" if is_written(value_of(door, name)) else f"`{name}`"
        yield f"| {linked} | {summary(door, name).replace('|', chr(92) + '|')} |"


def _other_page(door: str, name: str) -> str | None:
    """Return the path under which a name has its entry on the page of another door, or None."""
    home = home_of(value_of(door, name))
    if door == "accelera" and home is not None:
        for other in doors()[1:]:
            if name in names_of(other) and home_of(value_of(other, name)) == home:
                return f"{other}.{name}"
    return None


def settings() -> str:
    """Return the page of environment variables."""
    from accelera.settings import SETTINGS

    rows = [
        f"| `{each.variable}` | {'unset' if each.default is None else f'`{each.default}`'} | "
        f"{_cell(each.allowed)} | {_cell(each.sentence)} |"
        for each in SETTINGS
    ]
    head = ["# Settings", "", "| variable | default | may be | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def commands() -> str:
    """Return the page of the verbs of ``accelera`` with their options."""
    from typer.main import get_command

    from accelera.cli import app

    verbs: dict[str, Any] = getattr(get_command(app), "commands", {})
    lines = ["# Commands", "", "What a verb is for, with examples, is on [the command line](../cli.md).", ""]
    return "\n".join([*lines, *(line for name, verb in sorted(verbs.items()) for line in _verb(name, verb))])


def _verb(name: str, verb: Any) -> Iterator[str]:
    yield from (f"## `accelera {name}`", "", _flat((verb.help or "").partition("\n\n")[0]), "")
    yield from ("| argument | meaning |", "|---|---|")
    for each in verb.params:
        written = ", ".join(each.opts) if each.opts[0].startswith("-") else each.name.upper()
        yield f"| `{written}` | {_cell(_flat(getattr(each, 'help', None) or ''))} |"
    yield ""


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("``", "`")).strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def repository_page(source: str) -> str:
    """Return a file of the checkout with its links as a page of the site has them."""
    folder = (ROOT / source).parent
    text = (ROOT / source).read_text(encoding="utf-8")
    return re.sub(r"\]\(([^)#\s]+)(#[^)\s]*)?\)", lambda match: f"]({_link(folder, match)})", text)


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Point links to files outside of ``docs/``, to notebooks and to ``api/`` at the pages of the site."""
    source = page.file.src_path
    if source in REPOSITORY_PAGES or source.startswith("tutorials/"):
        return markdown
    folder = (ROOT / "docs" / source).parent
    depth = "../" * source.count("/")

    def site_link(match: re.Match[str]) -> str:
        target = match[1]
        is_of_docs = (folder / target).resolve().is_relative_to(ROOT / "docs") and not target.endswith(
            ".ipynb"
        )
        return match[0] if "://" in target or is_of_docs else f"]({depth}{_link(folder, match)})"

    return re.sub(r"\]\(([^)#\s]+)(#[^)\s]*)?\)", site_link, markdown)


def _link(folder: Path, match: re.Match[str]) -> str:
    target, anchor = match[1], match[2] or ""
    if "://" in target:
        return target + anchor
    path = (folder / target).resolve()
    here = {ROOT / source: name for name, source in REPOSITORY_PAGES.items()}
    if path in here:
        return here[path] + anchor
    if path.parent == ROOT / "api":
        return f"reference/{path.stem.removeprefix('accelera.')}.md{anchor}"
    if path.suffix == ".ipynb":
        path = path.with_suffix(".md")
    if path.is_relative_to(ROOT / "docs"):
        return str(path.relative_to(ROOT / "docs")) + anchor
    return f"{REPOSITORY}/{path.relative_to(ROOT)}{anchor}"
