"""Every setting, policy, device and command-line verb is in the documentation."""

from __future__ import annotations

import re

import pytest

from tests.architecture.repository import DOCS, PACKAGE, ROOT, documentation
from tools.notebook_pages import notebooks
from tools.reference_pages import REPOSITORY_PAGES

DIARY = r"\d{1,2} (January|February|March|April|June|July|August|September|October|November|December) 20\d\d"


def undocumented(names: list[str]) -> list[str]:
    text = documentation()
    return [name for name in names if not re.search(rf"`[^`]*\b{re.escape(name)}\b[^`]*`", text)]


def test_settings() -> None:
    from accelera.settings import SETTINGS

    assert undocumented([setting.variable for setting in SETTINGS]) == []


def test_variables_are_read_only_through_settings() -> None:
    readers = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.name not in ("settings.py", "messages.py")  # which hands all of them on to workers
        and re.search(r"os\.(environ|getenv)", path.read_text(encoding="utf-8"))
    ]
    assert readers == []


def test_every_page_has_one_place_in_the_navigation() -> None:
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").splitlines()
    listed = [line.split()[-1] for line in lines if line.endswith(".md")]
    written = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted([*written, *REPOSITORY_PAGES, *notebooks()])


def test_the_glossary_has_one_meaning_a_word_in_order() -> None:
    rows = (DOCS / "glossary.md").read_text(encoding="utf-8").splitlines()
    words = [row.split("|")[1].strip().lower() for row in rows if row.startswith("| ")][1:]
    assert words == sorted(set(words))


def test_pages_keep_no_diary() -> None:
    """Dates and commits of measurements stand beside the figures in benchmarks/, not in what explains."""
    dated = [
        f"{page.name}: {found[0]}"
        for page in DOCS.rglob("*.md")
        if (found := re.search(DIARY, page.read_text(encoding="utf-8")))
    ]
    assert dated == []


def test_policies() -> None:
    from accelera.policy import POLICIES

    assert undocumented(list(POLICIES)) == []


@pytest.mark.skipif(not (PACKAGE / "cli" / "__init__.py").exists(), reason="there is no command line yet")
def test_commands() -> None:
    import typer

    from accelera.cli import app

    verbs = getattr(typer.main.get_command(app), "commands", {})
    assert verbs
    assert undocumented([f"accelera {verb}" for verb in verbs]) == []
