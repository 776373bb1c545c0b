"""Every public name is in a page that people wrote, in an example, or in the index of Tensora."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.architecture.markdown import BLOCK
from tests.architecture.repository import DOCS, ROOT
from tools.front_doors import doors as packages
from tools.front_doors import names_of

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
"""Pages of the repository; the reference is made while the site is built."""
INLINE = re.compile(r"`([^`\n]+)`")


def code_of(text: str) -> str:
    """Code of a page: its blocks and what is between backticks."""
    blocks = [match[2] for match in BLOCK.finditer(text)]
    return "\n".join([*blocks, *INLINE.findall(BLOCK.sub("", text))])


@pytest.fixture(scope="module")
def code() -> str:
    """All code of pages and examples as one text."""
    pages = [code_of(page.read_text(encoding="utf-8")) for page in PAGES]
    examples = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.py"))]
    return "\n".join([*pages, *examples])


def undocumented(package: str, code: str) -> list[str]:
    """Names of a package that occur in no code other than as the name of an argument."""
    return [name for name in names_of(package) if not re.search(rf"\b{re.escape(name)}\b(?!\s*=[^=])", code)]


@pytest.mark.parametrize("package", packages())
def test_public_names_are_documented(package: str, code: str) -> None:
    assert undocumented(package, code) == [], "add a sentence or an example to docs/, or run `make reference`"


def test_names_of_arguments_do_not_count() -> None:
    page = "A `sweep` of\n```python\nsimulate(trace, score=values)\n```\nand `advise(trace)`"
    names = undocumented("accelera.simulator", code_of(page))
    assert "score" in names
    assert not {"sweep", "simulate", "advise"} & set(names)


def test_index_of_tensora_is_that_of_the_sources() -> None:
    command = [sys.executable, str(ROOT / "tools" / "tensora_index.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert checked.returncode == 0, checked.stderr
