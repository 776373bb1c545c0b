"""The sources name no place on anybody's machine and no package host."""

from __future__ import annotations

import re

from tests.architecture.repository import ROOT, tracked_files

# Written in brackets so that this file does not find itself.
MACHINE = re.compile(r"(?<![\w.~$}-])/(?:hom[e]|roo[t]|User[s]|wor[k]|mn[t]|sr[v]|op[t])/[\w.-]")
HOST = re.compile(r"pypi[.]org|pythonhosted[.]org|download[.]pytorch[.]org|index-ur[l]")


def test_no_machine_paths_and_no_package_hosts() -> None:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE.search(line) or HOST.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)
