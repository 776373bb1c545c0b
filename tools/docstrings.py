"""Docstrings in the order of NumPy's sections: prose first, then parameters, and what is raised."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

ORDER = ("Parameters", "Returns", "Yields", "Raises")
USUAL = {
    "UnknownNameError": "A name that there is not.",
    "BackendMissingError": "An optional package that is needed is not installed.",
}
"""Meaning of an error where a docstring only names it."""
_ERROR = re.compile(r"\b([A-Z]\w*(?:Error|Exception|Interrupted))\b")


class Docstring(NamedTuple):
    """A docstring in parts."""

    prose: list[str]
    """Paragraphs, the summary first."""
    sections: dict[str, list[str]]
    """Lines below each heading."""


def parsed(text: str) -> Docstring:
    """Return the parts of a cleaned docstring; paragraphs that begin with ``Raises`` become the section."""
    prose: list[str] = []
    sections: dict[str, list[str]] = {}
    for heading, lines in _pieces(text.split("\n")):
        if heading:
            sections[heading] = [*sections.get(heading, []), *_stripped(lines)]
            continue
        for paragraph in "\n".join(_stripped(lines)).split("\n\n"):
            raised = _raised(paragraph)
            if paragraph.startswith(">>>"):
                shown = sections.setdefault("Examples", [])
                sections["Examples"] = [*shown, *([""] if shown else []), *paragraph.split("\n")]
            elif raised:
                sections["Raises"] = [*sections.get("Raises", []), *raised]
            elif paragraph.strip():
                prose.append(paragraph)
    return Docstring(prose, sections)


def written(found: Docstring) -> str:
    """Return the docstring in the order in which NumPy's style reads it."""
    headings = [name for name in ORDER if name in found.sections]
    headings += sorted(
        (name for name in found.sections if name not in ORDER), key=lambda name: name == "Examples"
    )
    blocks = ["\n".join([name, "-" * len(name), *found.sections[name]]) for name in headings]
    return "\n\n".join([*found.prose, *blocks])


def _pieces(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield headings with their lines; a heading is "" for prose, also after a section."""
    heading, held, place = "", list[str](), 0
    while place < len(lines):
        if place + 1 < len(lines) and lines[place] and re.fullmatch(r"-{3,}", lines[place + 1]):
            yield heading, held
            heading, held, place = lines[place], [], place + 2
            continue
        if heading and _is_prose(lines, place):
            yield heading, held
            heading, held = "", []
        held.append(lines[place])
        place += 1
    yield heading, held


def _is_prose(lines: list[str], place: int) -> bool:
    """Return whether a line inside a section begins a paragraph of its own: nothing indented follows it."""
    line = lines[place]
    after = lines[place + 1] if place + 1 < len(lines) else ""
    plain = line.startswith(">>>") or not after.startswith("  ")
    return bool(line) and not line.startswith(" ") and not lines[place - 1] and plain


def _stripped(lines: list[str]) -> list[str]:
    kept = list(lines)
    while kept and not kept[-1].strip():
        kept.pop()
    while kept and not kept[0].strip():
        kept.pop(0)
    return kept


def _raised(paragraph: str) -> list[str]:
    """Return the lines of a section for ``Raises ThisError for that, OtherError when ...``, else none."""
    text = re.sub(r"\s+", " ", paragraph).strip()
    if not text.startswith("Raises ") or not _ERROR.search(text):
        return []
    parts = _ERROR.split(text.removeprefix("Raises "))
    if parts[0].strip():
        return []
    lines: list[str] = []
    waiting: list[str] = []
    for name, said in zip(parts[1::2], parts[2::2], strict=True):
        why = re.sub(r"[\s,;]*(\b(and|or))?[\s,;]*$", "", said.strip(" ,;"))
        waiting.append(name)
        if not why.strip(" .") and name not in USUAL:
            continue
        why = why.strip(" .") or USUAL[name].rstrip(".")
        lines += [", ".join(waiting), f"    {why[0].upper()}{why[1:]}."]
        waiting = []
    if waiting:
        lines += [", ".join(waiting), "    See above."]
    return lines
