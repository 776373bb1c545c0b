"""Every format: out and in again, and files that are not what they should be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings

import accelera.trace.formats as table
from accelera import StoreError, Trace, TraceFormatError, UnknownNameError
from accelera.trace import Kind, read_trace, write_trace
from accelera.trace._internal import content_hash
from accelera.trace.formats import FORMATS, register_format
from tests.trace.examples import described_traces, step_by_step

COLUMNS = ("buffer", "kind", "step", "stride", "size_bytes", "flops", "seconds")
WITH_FILES = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=30
)


def same(found: Trace, wanted: Trace) -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
        assert getattr(found, name).dtype == getattr(wanted, name).dtype
    for name in ("names", "roles", "dtypes", "ops", "model_type"):
        assert getattr(found, name) == getattr(wanted, name)


@pytest.mark.parametrize("suffix", [".parquet", ".json"])
@WITH_FILES
@given(trace=described_traces())
def test_nothing_is_lost(tmp_path: Path, suffix: str, trace: Trace) -> None:
    path = tmp_path / f"trace{suffix}"
    write_trace(trace, path)
    again = read_trace(path)
    same(again, trace)
    assert again.meta == trace.meta
    assert content_hash(again) == content_hash(trace)


@WITH_FILES
@given(trace=described_traces())
def test_csv_loses_only_meta_and_idle_steps(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "trace.csv"
    write_trace(trace, path)
    again = read_trace(path)
    kept = trace if not len(trace) else Trace.from_pandas(trace.to_pandas())
    for name in COLUMNS[:5]:
        np.testing.assert_array_equal(getattr(again, name), getattr(kept, name))
    if len(trace):
        same(again, kept)


def test_scores_are_kept(tmp_path: Path) -> None:
    trace = Trace.from_pandas(step_by_step().to_pandas(scores=[5, 4, 3, 2, 1]))
    for suffix in (".parquet", ".json", ".csv"):
        write_trace(trace, tmp_path / f"trace{suffix}")
        again = read_trace(tmp_path / f"trace{suffix}")
        assert again.scores is not None
        assert again.scores.tolist() == [5, 4, 3, 2, 1]


def test_pandas_reads_what_is_written(tmp_path: Path) -> None:
    write_trace(step_by_step(), tmp_path / "trace.parquet")
    frame = pd.read_parquet(tmp_path / "trace.parquet")
    assert frame["size_bytes"].tolist() == [10, 20, 10, 30, 20, 5]
    assert frame["op"].tolist() == ["matmul", "matmul", "add", "add", "add", "naïve"]


def test_a_table_from_elsewhere(tmp_path: Path) -> None:
    frame = pd.DataFrame({"tensor_id": ["Q_0", "K_0", "Q_0"], "size_mb": [16, 8, 16], "model_type": "MoE"})
    frame.to_parquet(tmp_path / "theirs.parquet")
    frame.to_csv(tmp_path / "theirs.csv", index=False)
    (tmp_path / "rows.json").write_text(frame.to_json(orient="records"))
    (tmp_path / "answer.json").write_text(json.dumps({"trace": frame.to_dict(orient="records"), "hits": 1}))
    for name in ("theirs.parquet", "theirs.csv", "rows.json", "answer.json"):
        trace = read_trace(tmp_path / name)
        assert (trace.names, trace.model_type) == (("Q_0", "K_0"), "MoE")
        assert trace.size_bytes.tolist() == [16 << 20, 8 << 20]
        assert trace.meta == {"source": name}


def test_perfetto_has_a_slice_per_step_and_counters_per_role(tmp_path: Path) -> None:
    trace = step_by_step()
    write_trace(trace, tmp_path / "trace.perfetto.json")
    events = json.loads((tmp_path / "trace.perfetto.json").read_text())["traceEvents"]
    slices = [each for each in events if each["ph"] == "X"]
    assert [each["name"] for each in slices] == ["matmul", "idle", "add", "step 3", "naïve", "tail"]
    assert [each["dur"] for each in slices] == pytest.approx([1e5, 1, 3e5, 4e5, 1, 7e5])
    ends = [each["ts"] + each["dur"] for each in slices]
    assert [each["ts"] for each in slices[1:]] == pytest.approx(ends[:-1])
    assert slices[0]["args"] == {"step": 0, "accessed_bytes": 30, "flops": 1}
    counters = [each["args"] for each in events if each["ph"] == "C"]
    assert counters[0] == {"weight": 10, "activation": 20, "unknown": 30, "gradient": 0}
    assert counters[-1] == {"weight": 10, "activation": 0, "unknown": 30, "gradient": 5}
    with pytest.raises(TraceFormatError, match="cannot be read: this format is only written"):
        read_trace(tmp_path / "trace.perfetto.json")


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("precious")
    monkeypatch.setattr(
        pd.DataFrame, "to_csv", lambda self, path, index: Path(path).write_text("half") and 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        write_trace(step_by_step(), path)
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["trace.csv"]


def test_a_written_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write_trace(step_by_step(), tmp_path / "trace.csv")
    (tmp_path / "usual").touch()
    assert (tmp_path / "trace.csv").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_format_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "FORMATS", dict(FORMATS))
    register_format("also_json", (".jason",), "accelera.trace.formats.json")
    write_trace(step_by_step(), tmp_path / "a.jason")
    same(read_trace(tmp_path / "a.jason"), step_by_step())


def test_names_of_formats(tmp_path: Path) -> None:
    write_trace(step_by_step(), tmp_path / "unusual", format="parquet")
    same(read_trace(tmp_path / "unusual", format="parquet"), step_by_step())
    with pytest.raises(UnknownNameError, match="did you mean 'parquet'"):
        read_trace(tmp_path / "unusual", format="parket")
    (tmp_path / "trace.exe").write_bytes(b"MZ")
    with pytest.raises(UnknownNameError, match=r"no trace format is called '\.exe'"):
        read_trace(tmp_path / "trace.exe")
    for absent in ("absent.parquet", "absent.exe"):
        with pytest.raises(FileNotFoundError, match="no file"):
            read_trace(tmp_path / absent)
    with pytest.raises(FileNotFoundError):
        write_trace(step_by_step(), tmp_path / "absent" / "trace.parquet")


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.json", "a.pickle", "a.oracleGeneral"])
def test_an_empty_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(TraceFormatError, match="is empty: it holds 0 bytes"):
        read_trace(tmp_path / name)


@pytest.mark.parametrize("suffix", [".parquet", ".json", ".csv"])
def test_a_file_cut_anywhere_is_refused_or_shorter(tmp_path: Path, suffix: str) -> None:
    """CSV has no end mark: cut at a line's end it is a shorter trace."""
    path = tmp_path / f"trace{suffix}"
    write_trace(step_by_step(), path)
    whole = path.read_bytes()
    for size in range(1, len(whole), 37):
        path.write_bytes(whole[:size])
        try:
            found = read_trace(path)
        except TraceFormatError:
            continue
        assert suffix == ".csv"
        assert len(found) <= len(step_by_step())


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(step_by_step(), path)
    document = json.loads(path.read_text())
    document["columns"]["stride"][3] = 17
    path.write_text(json.dumps(document))
    with pytest.raises(TraceFormatError, match="do not match the hash"):
        read_trace(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "has version 2 of the format; 1 is known here"),
        ({"meta": []}, r"meta is \[\], not a dict"),
        (
            {"columns": {"buffer": [0, 1], "size_bytes": [1]}},
            "columns: All arrays must be of the same length",
        ),
        ({"columns": {"buffer": [0], "size_bytes": ["x"]}}, "row 0, column size_bytes: 'x' is not a number"),
        ({"columns": 7}, "holds neither what write_trace writes nor a list of rows"),
        ({"idle_steps": {"step": ["x"]}}, "idle_steps"),
    ],
)
def test_a_json_file_with_wrong_parts(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "trace.json"
    write_trace(step_by_step(), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(TraceFormatError, match=said):
        read_trace(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"tensor_id,size_mb\nQ,1\nK,big\n", "a.csv: line 3, column size_mb: 'big' is not a number"),
        ("a.csv", b"tensor_id,size_mb\nQ,1\nK\n", "a.csv: line 3, column size_mb: an empty cell"),
        (
            "a.csv",
            b"tensor_id,size_mb\nQ,1\n\n",
            "a.csv: line 3, column tensor_id: '' is not a tensor's name",
        ),
        ("a.csv", b"tensor_id,size_mb\nQ,1,2\nK,1\n", "a.csv: line 2 has more cells than there are columns"),
        ("a.csv", b"tensor_id,size_mb\nQ,1,2\nK,1,2,3\n", "Expected 3 fields in line 3, saw 4"),
        ("a.csv", b"who,what\n1,2\n", "no column tensor_id"),
        ("a.csv", b"tensor_id,size_mb\nQ\xff,1\n", "is not UTF-8 text"),
        ("a.csv", b'tensor_id,size_mb\n"Q,1\n', "is not a sound CSV file"),
        ("a.json", b"[{]", "line 1, column 3"),
        ("a.json", b'["\xff"]', "byte 2 is not UTF-8 text"),
        ("a.json", b"[" * 100_000, "nested too deep"),
        ("a.json", b'{"hits": 1}', "nor a list of rows"),
        (
            "a.json",
            b'[{"tensor_id": "Q", "size_mb": 1}, {"tensor_id": "K"}]',
            "row 1, column size_mb: an empty",
        ),
        ("a.parquet", b"PAR1" + b"?" * 40 + b"PAR1", "is not a sound Parquet file"),
        ("a.parquet", b"tensor_id,size_mb\n", "is not a sound Parquet file"),
    ],
)
def test_a_malformed_file(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceFormatError) as raised:
        read_trace(tmp_path / name)
    assert said in str(raised.value)


def test_all_kinds_have_names() -> None:
    every = Trace.from_arrays([0] * 6, 1, kinds=[int(kind) for kind in Kind])
    assert every.to_pandas()["kind"].tolist() == ["read", "write", "release", "save", "evict", "free"]


def test_a_file_that_is_not_there_is_named_with_those_that_are_like_it(tmp_path: Path) -> None:
    write_trace(step_by_step(), tmp_path / "train.parquet")
    write_trace(step_by_step(), tmp_path / "z.parquet")
    for name, said in (
        ("nofile.parquet", "no file .* in "),
        ("trian.parquet", r"no file .*did you mean train\.parquet"),
        ("other.json", "no file .* in "),
        ("nowhere/train.parquet", "there is no folder"),
    ):
        with pytest.raises(FileNotFoundError, match=said):
            read_trace(tmp_path / name)
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(StoreError, match="is a folder"):
        read_trace(tmp_path / "folder.parquet")


def test_a_folder_that_is_not_there_is_named_and_not_the_partial_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere; make it first"):
        write_trace(step_by_step(), tmp_path / "nowhere" / "t.parquet")
