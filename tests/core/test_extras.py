"""The extras: what pyproject.toml, the errors and `accelera info` call them."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import accelera
from accelera import interceptor
from accelera._extras import EXTRAS, backend_missing, needed_for, require, stand_in
from accelera.errors import BackendMissingError
from tests.core.environment import ROOT, core_requirements, optional_requirements

CORE = {
    "cloudpickle",
    "lazy-loader",
    "ml-dtypes",
    "numpy",
    "psutil",
    "rich",
    "scipy",
    "scipy-openblas32",
    "threadpoolctl",
    "typer",
}


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(each).name) for each in requirements}


def test_the_core_is_what_it_is() -> None:
    assert names(core_requirements()) - {"exceptiongroup"} == CORE


def test_every_extra_brings_the_modules_that_are_said() -> None:
    declared = optional_requirements()
    assert declared.keys() - {"all", "bench", "dev"} == EXTRAS.keys()
    owners = metadata.packages_distributions()
    for extra, modules in EXTRAS.items():
        for module in set(modules) & owners.keys():
            assert {canonicalize_name(name) for name in owners[module]} & names(declared[extra]), module


def test_all_is_every_extra() -> None:
    (every,) = optional_requirements()["all"]
    assert Requirement(every).extras == EXTRAS.keys()


def test_the_error_names_operation_package_and_extra() -> None:
    with (
        pytest.raises(
            BackendMissingError, match=re.escape("[op] needs ray; pip install 'accelera-engine[ray]', or not")
        ),
        needed_for("op", "or not"),
    ):
        raise ModuleNotFoundError(name="ray.train")
    with pytest.raises(ModuleNotFoundError, match="own"), needed_for("op"):
        raise ModuleNotFoundError("own", name="a_module_of_the_user")
    with pytest.raises(ImportError, match="broken"), needed_for("op"):
        raise ImportError("broken", name="torch")
    assert backend_missing("op", ModuleNotFoundError("no name")) is None


def test_require_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelera._extras.find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(
        BackendMissingError, match=re.escape("[op] needs torch; pip install 'accelera-engine[torch]'")
    ):
        require("op", "pandas", "torch")


def test_a_stand_in_passes_where_nothing_is_done_with_it() -> None:
    thing: Any = stand_in("Thing", ModuleNotFoundError(name="torch"))
    assert not isinstance(3, thing)
    assert "accelera-engine[torch]" in repr(thing)
    assert "accelera-engine[torch]" in thing.__doc__
    assert not hasattr(thing, "__wrapped__")
    for use in (thing, lambda: thing.method):
        with pytest.raises(BackendMissingError, match=r"\[Thing\] needs torch"):
            use()
    with pytest.raises(ModuleNotFoundError):
        stand_in("Thing", ModuleNotFoundError(name="a_module_of_ours"))


def test_a_name_is_looked_for_again_once_its_package_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that installs torch need not be begun anew."""

    def absent(_: str) -> Any:
        raise ModuleNotFoundError(name="torch")

    monkeypatch.delitem(vars(interceptor), "enable", raising=False)
    monkeypatch.delitem(vars(accelera), "enable", raising=False)
    with monkeypatch.context() as patch:
        patch.setattr("accelera._lazily.importlib.import_module", absent)
        with pytest.raises(BackendMissingError, match=r"\[enable\] needs torch"):
            interceptor.enable()
    assert accelera.enable.__name__ == "enable"


def test_the_pages_list_the_core_and_the_extras() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    declared = optional_requirements()
    for extra in declared.keys() - {"bench", "dev"}:
        assert f"| `{extra}` |" in page
    listed = page.split("The core installs ")[1].split(". ")[0]
    assert {canonicalize_name(name) for name in re.findall(r"`(\w+)`", listed)} == CORE
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    usual = declared.keys() - {"bench", "dev", "service", "ui"}
    assert [extra for extra in usual if f"`{extra}`" not in readme] == []


def test_make_installs_extras_that_there_are() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(r"^extras := (.+)$", makefile, re.MULTILINE)
    assert found
    installed = set(found[1].split(","))
    assert installed == optional_requirements().keys() - {"all", "bench"}
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [extra for extra in installed if f"`{extra}`" not in told] == []
