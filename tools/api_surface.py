"""The public names of every package with their signatures, as text: ``api/`` shows each change in review.

Run: ``make api`` writes the files; a test compares them with the sources.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.front_doors import doors, names_of  # noqa: E402

FOLDER = ROOT / "api"


def surface() -> dict[str, str]:
    """Return the text of each package's file by its name."""
    package = griffe.load(
        "accelera",
        search_paths=[ROOT / "src"],
        extensions=griffe.load_extensions(str(ROOT / "tools" / "front_doors.py")),
        resolve_aliases=True,
    )
    assert isinstance(package, griffe.Module)
    return {f"{door}.txt": _text(package, door) for door in doors()}


def _text(package: griffe.Module, door: str) -> str:
    module = package if door == "accelera" else package[door.removeprefix("accelera.")]
    lines = [line for name in names_of(door) for line in _lines(name, module.members[name])]
    return "\n".join(lines) + "\n"


def _lines(name: str, member: griffe.Object | griffe.Alias) -> Iterator[str]:
    """Yield the line of a name, and one for each public member of a class."""
    found = _target(member)
    if isinstance(found, griffe.Function):
        yield f"{name}{_signature(found)}"
    elif isinstance(found, griffe.Class):
        bases = ", ".join(str(base) for base in found.bases)
        yield f"class {name}({bases})" if bases else f"class {name}"
        for inner, each in sorted(found.members.items()):
            if inner == "__init__" or not inner.startswith("_"):
                yield from (f"    {line}" for line in _lines(inner, each))
    elif isinstance(found, griffe.Attribute):
        yield f"{name}: {found.annotation}" if found.annotation is not None else name
    else:
        yield name


def _target(member: griffe.Object | griffe.Alias) -> griffe.Object | None:
    """Return what a name stands for; None for a name of another project."""
    if not isinstance(member, griffe.Alias):
        return member
    try:
        return member.final_target
    except (griffe.AliasResolutionError, griffe.CyclicAliasError):
        return None


def _signature(function: griffe.Function) -> str:
    parts: list[str] = []
    before: griffe.ParameterKind | None = None
    for each in function.parameters:
        if before is griffe.ParameterKind.positional_only is not each.kind:
            parts.append("/")
        starred = (griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional)
        if each.kind is griffe.ParameterKind.keyword_only and before not in starred:
            parts.append("*")
        parts.append(_parameter(each))
        before = each.kind
    if before is griffe.ParameterKind.positional_only:
        parts.append("/")
    returned = "" if function.returns is None else f" -> {function.returns}"
    return f"({', '.join(parts)}){returned}"


def _parameter(parameter: griffe.Parameter) -> str:
    star = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    name = star.get(parameter.kind, "") + parameter.name if parameter.kind is not None else parameter.name
    annotated = name if parameter.annotation is None else f"{name}: {parameter.annotation}"
    shows_default = parameter.default is not None and parameter.kind not in star
    return f"{annotated} = {parameter.default}" if shows_default else annotated


def main() -> None:
    """Write all files, and remove those of packages that are gone."""
    texts = surface()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
