"""Every Python block of the README and docs/ runs, and so does every example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.markdown import blocks, runnable
from tests.architecture.programs import run_program
from tests.architecture.repository import DOCS, ROOT, run_python
from tools.pictures.ratios import saved

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
    assert text.index("/docs/pictures/overview.svg)") < 1500
    assert text.count("\n") < 120


def test_the_charts_show_the_saved_results() -> None:
    ran = run_python("-m", "tools.pictures", "--check", cwd=ROOT)
    assert ran.returncode == 0, ran.stderr


def test_every_picture_of_the_pages_is_there() -> None:
    drawn = {"pictures/imports.svg"}  # when the site is built
    missing = [
        f"{page.name}: {target}"
        for page in [README, *DOCS.rglob("*.md")]
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", local_links(page.read_text(encoding="utf-8")))
        if target not in drawn and not (page.parent / target).is_file()
    ]
    assert missing == []


def test_links_of_the_readme_exist() -> None:
    """The README is also the page of the package index, where relative links would be broken."""
    text = README.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []
    files = [target for target in re.findall(r"\]\(([^)\s]+)\)", local_links(text)) if "://" not in target]
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_links_of_the_pages_exist() -> None:
    """A page is also read in the repository, without the pages that the site generates."""
    drawn = {"pictures/imports.svg"}  # when the site is built
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in DOCS.rglob("*.md")
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", outside_code(page))
        if "://" not in target and target not in drawn and not (page.parent / target).exists()
    ]
    assert missing == []


def outside_code(page: Path) -> str:
    """Return the text of a page without its blocks and spans of code."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def local_links(text: str) -> str:
    """Return the text with paths in place of the URLs of this repository's files."""
    return re.sub(
        r"https://(github\.com/accelera/accelera/blob|raw\.githubusercontent\.com/accelera/accelera)/main/",
        "",
        text,
    )


def test_the_comparisons_of_the_readme_are_what_was_measured() -> None:
    text = README.read_text(encoding="utf-8")
    rows = {row.split("|")[1].strip(): row for row in text.splitlines() if row.startswith("| ")}
    for row, figures in measured_comparisons().items():
        missing = [figure for figure in figures if figure not in rows[row]]
        assert not missing, f"{row}: {missing}"


def measured_comparisons() -> dict[str, list[str]]:
    """Figures that each row of the README's table must have, from the saved results."""
    files = {run["contender"]: run for run in saved("matmul_16384_512MiB_peers")["runs"]}
    ours = files["accelera"]

    def product(other: str) -> list[str]:
        time, memory = (ours[name] / files[other][name] for name in ("seconds", "peak_bytes"))
        return [f"{time:.2f} ×", f"{memory:.2f} of"]

    passes = {
        (run["contender"], run["rows"]): run.get("best_s")
        for run in saved("offload")["runs"]
        if run["capped"]
    }
    assert passes["accelerate disk_offload", 512] is None
    steps = saved("training")["cases"]["steps"]
    less, checkpoints = steps["offloaded 4"], steps["checkpointing"]
    added = saved("interception")["added_ns"]["torch.mm"]
    ratios = [row["ratio"] for row in saved("cache")["rows"]]
    return {
        "NumPy: load, multiply, save": product("numpy-whole-job"),
        "dask": product("dask"),
        "Cubed": product("cubed"),
        "`accelerate` `disk_offload`": [
            f"{passes['accelera', rows] / passes['accelerate disk_offload', rows]:.2f} ×" for rows in (1, 64)
        ],
        "`torch.utils.checkpoint`": [
            f"{less['of_in_memory'] / checkpoints['of_in_memory']:.2f} ×",
            f"{less['growth_bytes'] / checkpoints['growth_bytes']:.2f} of",
        ],
        "`TorchDispatchMode`": [
            f"{added[way] / added['alone'] * 100:.0f} %" for way in ("shim", "TorchDispatchMode")
        ],
        "libCacheSim": [f"{min(ratios):.0f} to {max(ratios):.0f} ×"],
    }


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
