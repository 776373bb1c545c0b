"""Every setting, policy, device and command-line verb is in the documentation."""

from __future__ import annotations

import re

import pytest

from tests.architecture.repository import DOCS, PACKAGE, ROOT, documentation


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
        if path.name not in ("settings.py", "surroundings.py")  # which hands all of them on to workers
        and re.search(r"os\.(environ|getenv)", path.read_text(encoding="utf-8"))
    ]
    assert readers == []


def test_every_page_has_one_place_in_the_navigation() -> None:
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").splitlines()
    listed = [line.split()[-1] for line in lines if line.endswith(".md")]
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


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
