"""Every Python block of the README and docs/ runs, and so does every example."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.markdown import blocks, runnable
from tests.architecture.programs import run_program
from tests.architecture.repository import DOCS, ROOT, run_python

README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *sorted(DOCS.rglob("*.md"))]
WITH_CODE = [page for page in PAGES[1:] if page.exists() and runnable(page.read_text(encoding="utf-8"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RUNNER = ROOT / "tests" / "architecture" / "markdown.py"
SMALL = {"ACCELERA_EXAMPLE_SMALL": "1"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_blocks_run(page: Path, tmp_path: Path) -> None:
    ran = run_program(RUNNER, str(page), cwd=tmp_path, environment=SMALL)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("number", range(len(runnable(README.read_text(encoding="utf-8")))))
def test_each_block_of_the_readme_runs_when_pasted_alone(number: int, tmp_path: Path) -> None:
    ran = run_program(RUNNER, str(README), str(number), cwd=tmp_path, environment=SMALL)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    ran = run_program(example, cwd=tmp_path, environment=SMALL)
    assert ran.returncode == 0, ran.stderr


def test_a_block_left_out_says_why() -> None:
    comments = [
        b.comment for page in PAGES if page.exists() for b in blocks(page.read_text(encoding="utf-8"))
    ]
    left_out = [c for c in comments if c.startswith("not run")]
    assert all(c.removeprefix("not run:").strip() for c in left_out)


def test_the_readme_opens_with_the_two_commands() -> None:
    text = README.read_text(encoding="utf-8")
    first = next(blocks(text))
    assert all(words in first.code for words in ("make demo", "make test", "pip install"))
    assert text.index("](docs/speed_and_memory.svg)") < 1500
    assert text.count("\n") < 120


def test_the_chart_shows_the_saved_results() -> None:
    ran = run_python("-m", "benchmarks.chart", "--check", cwd=ROOT)
    assert ran.returncode == 0, ran.stderr


def test_runner_keeps_one_namespace_and_the_line_numbers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# T\n\n```python\nx = 1\n```\n\n<!-- not run: it fails -->\n```python\n1 / 0\n```\n\n"
        "<!-- run -->\n```bash\ntouch made\n```\n\n```bash\nfalse\n```\n\n```python\nassert x == 2\n```\n"
    )
    ran = run_program(RUNNER, str(page), cwd=tmp_path)
    assert "AssertionError" in ran.stderr
    assert f'"{page}", line 22' in ran.stderr
    assert (tmp_path / "made").exists()
