"""Classes and decorated functions of a script that only the script itself defines, in worker processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.architecture.repository import run_python

HEAD = """
import abc, dataclasses, enum, functools, json, typing
from accelera.execution import ProcessesExecutor

T = typing.TypeVar("T")
"""

FOOT = """
def outcome(value):
    return repr(value), type(value).__name__

report = {}
with ProcessesExecutor(2) as executor:
    for name, (task, function) in CASES.items():
        outputs = executor.execute_batch([task] * 3, function)
        report[name] = outputs == [function(task)] * 3 and outcome(outputs[0]) == outcome(function(task))
print(json.dumps(report))
"""

SCRIPTS = {
    "slots": """
@dataclasses.dataclass(slots=True)
class Row:
    a: int
    b: int = 3
@dataclasses.dataclass(slots=True, frozen=True, order=True)
class Frozen:
    a: int
@dataclasses.dataclass(slots=True, weakref_slot=True)
class Referable:
    a: int
@dataclasses.dataclass(slots=True)
class Holder(typing.Generic[T]):
    a: T
@dataclasses.dataclass(slots=True)
class Longer(Row):
    c: int = 4
    def total(self): return self.a + self.b + self.c
class Base(abc.ABC):
    __slots__ = ()
    @abc.abstractmethod
    def value(self): ...
class Hidden(Base):
    __slots__ = ("__secret",)
    def __init__(self, secret): self.__secret = secret
    def value(self): return self.__secret
    def __eq__(self, other): return self.value() == other.value()
    def __repr__(self): return f"Hidden({self.__secret})"
class Single:
    __slots__ = "only"
class Pair(typing.NamedTuple):
    a: int
CASES = {
    "task": (Row(1), lambda row: (row.a, row.b)),
    "output": (1, Row),
    "frozen": (Frozen(1), lambda row: Frozen(row.a)),
    "referable": (Referable(1), lambda row: row),
    "generic": (Holder(1), lambda row: row),
    "inherited": (Longer(1), lambda row: Longer(row.total())),
    "private": (Hidden(1), lambda row: Hidden(row.value())),
    "no dictionary": (Single(), lambda row: hasattr(row, "__dict__")),
    "named tuple": (Pair(1), lambda row: Pair(row.a)),
}
""",
    "enumerations": """
class Color(enum.Enum):
    RED = 1
    BLUE = 2
    CRIMSON = 1
class Planet(enum.Enum):
    EARTH = (6.0, 2.0)
    MARS = (3.0, 4.0)
    def __init__(self, mass, radius):
        self.mass, self.radius = mass, radius
    def ratio(self): return self.mass / self.radius
class Code(enum.IntEnum):
    OK = 200, "fine"
    BAD = 400, "bad"
    def __new__(cls, value, label):
        member = int.__new__(cls, value)
        member._value_, member.label = value, label
        return member
class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
CASES = {
    "task": (Color.RED, lambda color: color is Color.RED),
    "output": (2, Color),
    "alias": (1, lambda task: Color["CRIMSON"] is Color.CRIMSON is Color(1) and list(Color.__members__)),
    "initializer": (Planet.MARS, lambda planet: (planet.mass, planet.ratio(), planet)),
    "constructor": (Code.BAD, lambda code: (code.label, code, Code(200).label)),
    "flag": (Access.READ, lambda flag: flag | Access.WRITE),
    "key": ({Color.RED: 3}, lambda table: table[Color.CRIMSON]),
}
""",
    "decorated functions": """
@functools.lru_cache(maxsize=7, typed=True)
def cached(number):
    "Doubles."
    return 2 * number
@functools.cache
def fibonacci(number):
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)
@functools.singledispatch
def kind(value):
    return "object"
@kind.register
def _(value: int):
    return "int" if value < 5 else kind("text")
@kind.register(str)
def _(value):
    return "str"
class Row:
    @functools.lru_cache
    def doubled(self, number): return 2 * number
    @functools.singledispatchmethod
    def kind(self, value): return "object"
    @kind.register
    def _(self, value: int): return "int"
    @functools.cached_property
    def number(self): return 4
    def __eq__(self, other): return True
    __hash__ = object.__hash__
@kind.register(Row)
def _(value):
    return "row"
cached.note = "kept"
CASES = {
    "cached": (3, cached),
    "its attributes": (3, lambda task: (cached.cache_parameters(), cached.__doc__, cached.note)),
    "recursive": (30, fibonacci),
    "inside": (30, lambda task: cached(fibonacci(task))),
    "it caches": (9, lambda task: cached(task) and cached(task) and cached.cache_info().hits > 0),
    "dispatch": (3, kind),
    "dispatch on text": ("", lambda task: kind(task)),
    "dispatch inside": (7, kind),
    "class of the script": (Row(), kind),
    "its default": (None, kind),
    "implementation": (1, lambda task: (kind.registry[int](task), kind.__name__)),
    "method": (Row(), lambda row: (row.doubled(3), row.kind(1), row.kind(""), row.number)),
}
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_objects_of_scripts_equal_those_of_workers(name: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(HEAD + SCRIPTS[name] + FOOT)
    ran = run_python(str(path), cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report
    assert all(report.values()), report
