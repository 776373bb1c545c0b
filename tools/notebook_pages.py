"""Pages of the site that are made of the notebooks below ``docs/``: text as it is, code in blocks.

A hook of MkDocs, named in ``mkdocs.yml``. Notebooks are kept without outputs; tests run them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parents[1] / "docs"


def notebooks() -> dict[str, Path]:
    """Return the path of the page of each notebook."""
    found = sorted(DOCS.rglob("*.ipynb"))
    return {path.relative_to(DOCS).with_suffix(".md").as_posix(): path for path in found}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook."""
    for place, path in notebooks().items():
        files.append(File.generated(config, place, content=page_of(path)))
    return files


def page_of(path: Path) -> str:
    """Return a notebook as Markdown, with a link to itself below the title."""
    parts = list(_parts(json.loads(path.read_text(encoding="utf-8"))["cells"]))
    title, _, rest = parts[0].partition("\n")
    download = f"[This page as a notebook]({path.name}){{ download }}"
    return "\n\n".join([title, download, rest.strip(), *parts[1:]]) + "\n"


def _parts(cells: list[dict[str, Any]]) -> Iterator[str]:
    for cell in cells:
        source = cell["source"]
        text = source if isinstance(source, str) else "".join(source)
        yield (
            text.replace(".ipynb)", ".md)") if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        )
