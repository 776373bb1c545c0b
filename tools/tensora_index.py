"""Write docs/tensora_index.md, a table of the functions and classes of Tensora by subject.

    python tools/tensora_index.py [--check]

``--check`` writes nothing, and fails if the page differs from the sources.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.front_doors import doors as packages  # noqa: E402
from tools.front_doors import home_of, names_of, value_of  # noqa: E402
from tools.reference_pages import summary  # noqa: E402

PAGE = ROOT / "docs" / "tensora_index.md"
HEAD = """\
# Functions and classes of Tensora

<!-- Written by `make reference` from the docstrings. -->

Each public name of [Tensora](tensora.md), by namespace and subject. Parameters and signatures are in the
[reference](../api/accelera.tensora.txt).
"""
GROUPED = (
    "accelera.tensora",
    "accelera.tensora.functional",
    "accelera.tensora.linalg",
    "accelera.tensora.nn",
)
"""Namespaces whose names are divided by subject; the others are short."""
TITLES = {
    "amp": "Mixed precision",
    "attention": "Attention and transformers",
    "captured_function": "Captured functions and kernels",
    "containers": "Modules and containers",
    "ctc": "Losses",
    "dtypes": "Types and constants",
    "elementwise": "Element by element",
    "grouped_attention": "Attention and transformers",
    "kernels": "Captured functions and kernels",
    "lazy": "Layers whose sizes follow from the first input",
    "linalg": "Norms, inverses and solutions",
    "linear": "Linear layers",
    "lowering": "Export",
    "memory_trace": "Memory traces",
    "module": "Modules and containers",
    "packed_sequence": "Recurrent networks",
    "parameter": "Modules and containers",
    "recurrent": "Recurrent networks",
    "recurrent_cells": "Recurrent networks",
    "runtime": "Memory, threads and delayed computation",
    "shapes": "Padding and shapes",
    "sort_search": "Sorting, searching and selection",
    "transformer": "Attention and transformers",
}
"""Titles of the subjects, by module, where the name of the module does not suffice."""
NATIVE = {"accelera.tensora": "Types and constants", "accelera.tensora.functional": "Activations"}
"""Titles for names that the extension module defines, and for constants."""
VALUES = {
    "bool": "Type of truth values.",
    "e": "Euler's number.",
    "inf": "Positive infinity.",
    "nan": "Not a number.",
    "newaxis": "Index that inserts an axis of extent 1.",
    "pi": "Ratio of a circle's circumference to its diameter.",
    "bfloat16": "Type of floating-point numbers with 8 bits of exponent and 8 of precision.",
    "default_generator": "Generator that functions use without a `generator` argument.",
    "relu": "`x` where positive, otherwise 0.",
    "sigmoid": "`1 / (1 + exp(-x))`.",
    "tanh": "Hyperbolic tangent.",
}
"""Summaries of names without a docstring; other types are described by their name."""
NUMBERS = {
    "complex": "complex numbers",
    "float": "floating-point numbers",
    "int": "signed integers",
    "uint": "unsigned integers",
}


def page() -> str:
    """Return the text of the page."""
    namespaces = [package for package in packages() if package.startswith("accelera.tensora")]
    return "\n".join([HEAD, *(line for package in namespaces for line in _section(package))])


def _section(package: str) -> Iterator[str]:
    yield from (f"## {package}", "")
    for subject, names in sorted(_subjects(package).items()):
        if subject:
            yield from (f"### {subject}", "")
        yield from ("| name | summary |", "|---|---|")
        yield from (f"| `{name}` | {_summary(package, name)} |" for name in names)
        yield ""


def _subjects(package: str) -> dict[str, list[str]]:
    """Return the names of a namespace by subject; one subject without a title for a short one."""
    if package not in GROUPED:
        return {"": names_of(package)}
    subjects: dict[str, list[str]] = {}
    for name in names_of(package):
        subjects.setdefault(_subject(package, name), []).append(name)
    return subjects


def _subject(package: str, name: str) -> str:
    home = home_of(value_of(package, name))
    if home is None or home.startswith("accelera._"):
        return NATIVE[package]
    module = home.rpartition(".")[0].rpartition(".")[2]
    return TITLES.get(module, module.replace("_", " ").capitalize())


def _summary(package: str, name: str) -> str:
    text = summary(package, name) or VALUES.get(name) or _type_summary(name)
    return text.replace("|", "\\|")


def _type_summary(name: str) -> str:
    """Return the description of an element type, such as ``uint8``; raises ValueError for other names."""
    kind = name.rstrip("0123456789")
    if kind not in NUMBERS or kind == name:
        raise ValueError(f"[index] {name} has no docstring. Write one, or add the name to VALUES.")
    return f"Type of {NUMBERS[kind]} of {name.removeprefix(kind)} bits."


def main() -> int:
    """Write or check the page."""
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    elif text != PAGE.read_text(encoding="utf-8"):
        print(f"{PAGE.relative_to(ROOT)} differs from the sources: run `make reference`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
