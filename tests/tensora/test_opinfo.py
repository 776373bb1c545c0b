"""Each name of PyTorch's OpInfo that Tensora has agrees with PyTorch on some of its samples.

All samples are for ``python -m benchmarks tensora-opinfo``.
"""

from __future__ import annotations

import pytest

from tests.tensora import opinfo, opinfo_table
from tests.torch_samples import operator_infos

MOST = 8
"""Samples of each variant and type."""


@pytest.mark.parametrize("name", opinfo_table.agreeing())
def test_agrees_with_pytorch(name: str) -> None:
    verdict = opinfo.check(name, MOST)
    problems = [f"{level}: {text}" for level, found in verdict.problems.items() for text in found]
    assert not problems, "\n".join(problems[:5])
    assert verdict.samples > 0 or verdict.excused


def test_the_table_names_what_pytorch_has() -> None:
    known = operator_infos().keys()
    assert {name.partition(":")[0] for name in opinfo_table.TABLE} - known == set()
    assert opinfo_table.DISAGREEING.keys() - known == set()
    assert opinfo_table.EXCUSED.keys() | opinfo_table.TOLERANCES.keys() <= known


def test_disagreements_are_still_there() -> None:
    mended = [name for name in opinfo_table.DISAGREEING if opinfo.check(name, MOST).agrees()]
    assert mended == []
