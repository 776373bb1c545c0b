"""Damaged traces: every verb that reads one says which file and what is wrong, and exits with code 4."""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelera import TraceFormatError
from accelera.cli import ExitCode
from accelera.trace import read_trace
from tests.cli.conftest import call
from tests.trace.damage import SNAPSHOT, damaged_files

VERBS = {
    "simulate": ["simulate", "TRACE", "-b", "50%", "--lookahead", "1", "--json"],
    "sweep": ["sweep", "TRACE", "-p", "lru,planner", "-b", "2", "--json"],
    "advise": ["advise", "TRACE", "--budget", "60", "--json"],
    "predict-compile": ["predict-compile", "TRACE", "--json"],
    "stats": ["trace", "stats", "TRACE", "--json"],
    "convert": ["trace", "convert", "TRACE", "again.json", "--json"],
    "simulate, for people": ["simulate", "TRACE", "-b", "1KiB", "-p", "planner"],
    "stats, for people": ["trace", "stats", "TRACE"],
}


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), verb=st.sampled_from(sorted(VERBS)))
def test_a_damaged_file_is_refused_or_read_but_never_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = data.draw(damaged_files(tmp_path))
    ran = call(*(str(path) if word == "TRACE" else word for word in VERBS[verb]))
    assert "please report it" not in ran.output
    assert "Traceback" not in ran.output
    assert not re.search(r"-\d[\d.]* ?([KMGTPE]i)?B\b", ran.output)
    if ran.exit_code == ExitCode.STORE:
        assert path.name in ran.output
        assert len(re.findall(r"\[(read_)?trace\]", ran.output)) == 1
        assert len(ran.output) < 1000
    elif ran.exit_code != ExitCode.OK:
        assert (verb, ran.exit_code) == ("predict-compile", ExitCode.USAGE)
        assert "the trace has no accesses" in ran.output
    elif "--json" in VERBS[verb]:
        assert all(number >= 0 for number in numbers(json.loads(ran.stdout)))


def numbers(found: Any) -> Iterator[float]:
    if isinstance(found, (dict, list)):
        for each in found.values() if isinstance(found, dict) else found:
            yield from numbers(each)
    elif isinstance(found, (int, float)):
        yield found


ROW = {"buffer": 1, "size_bytes": 10, "step": 0}
NOT_COUNTED = "come to more than 2**62 bytes"


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("size_bytes", -1, "-1 is not a size of at least 0 bytes"),
        ("size_bytes", 2**63 - 1, NOT_COUNTED),
        ("size_bytes", 2**63, "9223372036854775808 is not a whole number"),
        ("size_bytes", 2**64 - 8, "18446744073709551608 is not a whole number"),
        ("size_bytes", 2**64, "is not a whole number"),
        ("size_bytes", 1.5, "1.5 is not a whole number"),
        ("size_bytes", math.inf, "is not a whole number"),
        ("size_bytes", math.nan, "an empty cell is not a whole number"),
        ("buffer", 2**63, "9223372036854775808 is not a whole number"),
        ("buffer", 2**64 - 1, "is not a whole number"),
        ("step", -1, "-1 is not an index from 0"),
        ("step", 2**27, "134217728 is not an index from 0"),
        ("step", 2**63, "9223372036854775808 is not a whole number"),
        ("stride", 2**63, "9223372036854775808 is not a whole number"),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_row_and_column(
    tmp_path: Path, suffix: str, column: str, value: float, said: str
) -> None:
    path = tmp_path / f"trace.{suffix}"
    cell = str(value) if suffix == "parquet" and value == 2**64 else value
    rows = [{**ROW, "stride": 1}, {**ROW, "buffer": 2, "stride": 1, column: cell}]
    if suffix == "json":
        path.write_text(json.dumps(rows))
    elif suffix == "csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    else:
        if isinstance(cell, str):
            rows[0][column] = str(rows[0][column])
        pd.DataFrame(rows).to_parquet(path)
    with pytest.raises(TraceFormatError) as raised:
        read_trace(path)
    place = f"{path}: {'line 3' if suffix == 'csv' else 'row 1'}, column {column}: "
    assert place in str(raised.value)
    assert said in str(raised.value)


def test_sizes_that_are_possible_one_by_one_and_not_together(tmp_path: Path) -> None:
    huge = 2**61
    (tmp_path / "a.csv").write_text("buffer,size_bytes\n" + "".join(f"{i},{huge}\n" for i in range(3)))
    (tmp_path / "a.libcachesim.csv").write_text("".join(f"{i},{i},{huge},-1\n" for i in range(3)))
    allocations = [{"action": "alloc", "addr": i, "size": huge} for i in range(3)]
    (tmp_path / "a.pickle").write_bytes(pickle.dumps({**SNAPSHOT, "device_traces": [allocations]}))
    for name, place in (
        ("a.csv", "line 4, column size_bytes"),
        ("a.libcachesim.csv", "line 3, column obj_size"),
        ("a.pickle", "allocation 3 of device 0"),
    ):
        ran = call("trace", "stats", str(tmp_path / name))
        assert ran.exit_code == ExitCode.STORE
        assert place in ran.stderr
        assert NOT_COUNTED in ran.stderr


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b'[{"tensor_id": "Q", "size_mb": ' + b"9" * 5000 + b"}]", "not sound JSON"),
        ("a.json", b'[{"tensor_id": "\\ud800", "size_mb": 1}]', "half a character"),
        ("a.csv", b"tensor_id,size_mb\nQ," + b"9" * 5000 + b"\n", "a.csv: line 2, column size_mb: "),
        ("a.libcachesim.csv", b"0,1," + b"9" * 400 + b",-1\n", "line 1, column obj_size"),
        ("a.csv", b"buffer,size_bytes,size_bytes\n1,2,3\n", ""),
        ("a.pickle", pickle.dumps({"device_traces": [[10**5000]]}), "a number of thousands of digits"),
        ("a.csv", b"tensor_id,size_mb,step\nQ,1,0\nK,1,134217727\n", "134217727 is not an index from 0"),
    ],
)
def test_what_is_too_long_or_too_far(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    ran = call("trace", "stats", str(tmp_path / name))
    assert ran.exit_code == (ExitCode.STORE if said else ExitCode.OK)
    assert said in ran.output


@pytest.mark.parametrize("facts", [{"capacity_bytes": -5}, {"capacity_bytes": "much"}, {"iterations": [0.5]}])
def test_facts_about_the_recording_that_cannot_be(tmp_path: Path, facts: dict[str, Any]) -> None:
    path = tmp_path / "a.json"
    call("trace", "generate", "--num-layers", "1", "-o", str(path))
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "meta": facts}))
    ran = call("advise", str(path), "--json")
    assert ran.exit_code == ExitCode.STORE
    assert f"meta.{next(iter(facts))}" in ran.output
