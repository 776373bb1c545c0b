"""Write csrc/torch/operators.def and the table in docs/interception.md from the list of operators.

    python tools/operator_table.py [--check]

``--check`` writes nothing and fails when one of them is not what the code says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from accelera.interceptor.hooks import OPERATORS, stable
from accelera.interceptor.hooks.operators import definitions

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "interception.md"
DEFINITIONS = ROOT / "csrc" / "torch" / "operators.def"
HEAD = """\
// The operators that can be intercepted, one line each: OPERATOR(place, rule, name in at::_ops).
// Written by `make reference` from src/accelera/interceptor/hooks/operators.py.
"""
BEGIN, END = "<!-- operators: written by `make reference` -->\n", "<!-- operators end -->\n"
KINDS = {
    "product": "products",
    "pointwise": "element by element, and softmax",
    "attention": "attention",
    "heads": "multi-head attention",
}


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    compiled = stable.operators()
    yield "| kind | operators | with `stable`, in C++ |\n|---|---|---|\n"
    for rule, kind in KINDS.items():
        names = [name for name, its in OPERATORS.items() if its == rule]
        native = [name for name in names if name in compiled]
        yield f"| {kind} | {_listed(names)} | {_listed(native) or 'none'} |\n"


def _listed(names: list[str]) -> str:
    """Return names, those with forms such as ``.out`` after the plain one."""
    return ", ".join(f"`{name}`" for name in names)


def page() -> str:
    """Return docs/interception.md with the table of now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return "".join([before, BEGIN, "\n", *table(), "\n", END, after])


def main() -> int:
    """Write or check both files."""
    for path, fresh in ((DEFINITIONS, HEAD + definitions()), (PAGE, page())):
        if fresh == path.read_text(encoding="utf-8"):
            continue
        if "--check" in sys.argv:
            place = path.relative_to(ROOT)
            sys.stderr.write(f"{place} lists other operators than the code; run make reference\n")
            return 1
        path.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
