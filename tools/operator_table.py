"""Write the table of operators in docs/interception.md: what is caught, and what a wheel answers in C++.

    python tools/operator_table.py [--check]

``--check`` writes nothing and fails when the table is not what the code says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from accelera.interceptor.mechanism import OPERATORS, stable

PAGE = Path(__file__).parents[1] / "docs" / "interception.md"
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


def main() -> int:
    """Write or check the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    fresh = "".join([before, BEGIN, "\n", *table(), "\n", END, after])
    if fresh == text:
        return 0
    if "--check" in sys.argv:
        sys.stderr.write("docs/interception.md lists other operators than the code; run make reference\n")
        return 1
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
