"""The pictures of the README are drawn by the tool that is in the repository."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.architecture.repository import DOCS, ROOT
from tests.ui.conftest import Site


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("screenshots", ROOT / "tools" / "screenshots.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_screenshot_and_an_animation_are_drawn(site: Site, tmp_path: Path) -> None:
    module = tool()
    module.write_all(site.browser, site.url, tmp_path, budgets=("13", "14", "15"))
    found = picture(tmp_path / module.STILL)
    assert (found.width, found.height) == tuple(module.SIZE.values())
    assert len(found.convert("RGB").getcolors(1 << 20)) > 50
    moving = picture(tmp_path / module.MOVING)
    assert moving.n_frames == 3
    assert (tmp_path / module.MOVING).stat().st_size <= module.MOST_BYTES


def test_those_of_the_documentation_are_small() -> None:
    module = tool()
    for name in (module.STILL, module.MOVING):
        assert (DOCS / "images" / name).stat().st_size <= module.MOST_BYTES
    assert picture(DOCS / "images" / module.MOVING).n_frames == len(module.BUDGETS)


def picture(path: Path) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(path.read_bytes()))
