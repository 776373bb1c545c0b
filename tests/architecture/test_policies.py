"""A policy is one header and one line, and knows no other policy."""

from __future__ import annotations

import re

import pytest

from accelera.policy.policies import NEEDS
from tests.architecture.repository import ROOT

FOLDER = ROOT / "csrc" / "policy"


def includes(file: str) -> set[str]:
    return set(re.findall(r'#include "policy/(\w+)\.h"', (FOLDER / file).read_text(encoding="utf-8")))


def test_each_name_is_a_header_of_its_own() -> None:
    assert includes("registry.h") == NEEDS.keys()


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_no_policy_knows_another(name: str) -> None:
    assert not includes(f"{name}.h") & NEEDS.keys()


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_a_header_tells_its_story(name: str) -> None:
    text = (FOLDER / f"{name}.h").read_text(encoding="utf-8")
    assert re.search(r"^/// .+\n(///.*\n)*class \w+ : public Policy", text, re.MULTILINE)
