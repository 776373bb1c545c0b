"""Parameters and attributes of the public API follow the table of names in docs/compatibility.md."""

from __future__ import annotations

import re

import pytest

from tools.api_surface import surface

REPLACEMENTS = {
    r"max_workers|n_jobs|n_workers|concurrency": "workers",
    r"timeout_s|timeout_seconds|time_limit": "timeout",
    r"spill|spill_folder|scratch_dir": "spill_dir",
    r"room|max_bytes|memory_limit|limit_bytes": "budget or capacity",
    r"\w+_(seconds|secs|sec)": "the suffix _s",
    r"\w+_(ms|us|ns)": "the suffix _s",
    r"\w+_(kb|mb|gb|kib|mib|gib)": "the suffix _bytes",
    r"\w+_(gbps|mbps|gb_per_s)": "the suffix _bytes_per_s",
    r"needs?_bytes|least_bytes|least_budget_bytes": "needed_bytes or minimum_budget_bytes",
}

GUIDE_NAMES = {"memory_threshold_gb"}
"""Names that the published guides use."""

PARAMETER = re.compile(r"\b([a-z_][a-z_0-9]*): ")
ATTRIBUTE = re.compile(r"^    ([a-z_][a-z_0-9]*)(?:: .*)?$", re.MULTILINE)


@pytest.mark.parametrize("pattern", REPLACEMENTS)
def test_names_follow_the_table(pattern: str) -> None:
    listings = {name: text for name, text in surface().items() if not name.startswith("accelera.tensora")}
    assert "budget" in PARAMETER.findall(listings["accelera.offload.txt"])
    uses = {
        (listing, name)
        for listing, text in listings.items()
        for name in {*PARAMETER.findall(text), *ATTRIBUTE.findall(text)} - GUIDE_NAMES
        if re.fullmatch(pattern, name)
    }
    assert not uses, f"docs/compatibility.md names this quantity {REPLACEMENTS[pattern]}"
