"""Tutorials: each notebook runs from top to bottom, and is kept without outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_tutorials() -> None:
    assert len(NOTEBOOKS) == 6


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    warned = [
        each.text
        for cell in notebook.cells
        if cell.cell_type == "code"
        for each in cell.outputs
        if each.output_type == "stream" and each.name == "stderr"
    ]
    assert warned == []
