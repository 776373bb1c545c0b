"""Journals: what they remember, what they refuse, and what a kill or damage may do to them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from accelera.engine._internal import find_journal, journal_path, read_journal
from accelera.engine.journal import Journal, check_journal, forget_journal
from accelera.errors import StoreChangedError, StoreError

HEADER: dict[str, Any] = {
    "operation": "matmul",
    "operands": {"A": [[4, 3], "float32"], "B": [[3, 5], "float32"]},
    "result": [[4, 5], "float32"],
    "fingerprints": {"A": {"size": 1}, "B": None},
    "spec": {"strip": 2},
}
BOXES = [((0, 2), (0, 5)), ((2, 4), (0, 3)), ((2, 4), (3, 5))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.npy.journal"


def interrupted(path: Path, count: int = 3) -> None:
    """Leave the journal of a run that had stored ``count`` boxes."""
    journal = Journal.begin(path, HEADER)
    for box in BOXES[:count]:
        journal.note(box)
    journal.close()


def test_the_journal_lies_beside_the_result(tmp_path: Path) -> None:
    assert journal_path(tmp_path / "c.npy") == tmp_path / "c.npy.journal"
    assert journal_path(str(tmp_path / "c.zarr")) == tmp_path / "c.zarr.journal"


def test_what_was_noted_is_known_after_resuming(path: Path) -> None:
    interrupted(path)
    header, boxes = read_journal(path)
    assert header == HEADER
    assert boxes == BOXES
    journal = Journal.resume(path, HEADER)
    assert journal.done.covers(((0, 4), (0, 5)))
    assert journal.header["spec"] == HEADER["spec"]
    journal.close()


def test_resuming_adds_to_what_was_there(path: Path) -> None:
    interrupted(path, 1)
    for box in BOXES[1:]:
        journal = Journal.resume(path, HEADER)
        journal.note(box)
        journal.close()
    assert read_journal(path)[1] == BOXES


def test_each_note_is_in_the_file_when_it_returns(path: Path) -> None:
    """Nothing waits in a buffer for a close that a kill never makes."""
    journal = Journal.begin(path, HEADER)
    for count, box in enumerate(BOXES, start=1):
        journal.note(box)
        assert read_journal(path)[1] == BOXES[:count]
    journal.close()


def test_a_new_journal_replaces_an_old_one(path: Path) -> None:
    interrupted(path)
    Journal.begin(path, {**HEADER, "operation": "add"}).close()
    header, boxes = read_journal(path)
    assert header["operation"] == "add"
    assert boxes == []


def test_a_finished_run_leaves_none(path: Path) -> None:
    Journal.begin(path, HEADER).remove()
    assert not path.exists()


def test_without_a_journal_there_is_nothing_to_resume(path: Path) -> None:
    for attempt in (read_journal, lambda path: Journal.resume(path, HEADER)):
        with pytest.raises(StoreError, match="no journal"):
            attempt(path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("operation", "add"),
        ("operands", {"A": [[4, 3], "float64"], "B": [[3, 5], "float32"]}),
        ("operands", {"A": [[4, 3], "float32"]}),
        ("result", [[5, 4], "float32"]),
    ],
)
def test_the_journal_of_another_run_is_refused(path: Path, key: str, value: Any) -> None:
    interrupted(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another run") as error:
        Journal.resume(path, {**HEADER, key: value})
    assert not isinstance(error.value, StoreChangedError)
    assert key in str(error.value)
    assert path.read_bytes() == before


def test_a_changed_operand_is_named(path: Path) -> None:
    interrupted(path)
    before = path.read_bytes()
    with pytest.raises(StoreChangedError, match="operand A changed"):
        Journal.resume(path, {**HEADER, "fingerprints": {"A": {"size": 2}, "B": None}})
    assert path.read_bytes() == before


def test_another_plan_of_the_same_run_may_resume(path: Path) -> None:
    interrupted(path)
    assert check_journal(path, {**HEADER, "spec": {"strip": 7}}).header["spec"] == {"strip": 2}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "not json\n",
        "[]\n",
        "[1]\n",
        '"text"\n',
        "7\n",
        "null\n",
        "{}\n",
        '{"journal": 1}\n',
        "\x00" * 64,
    ],
)
def test_what_is_no_journal_is_refused_with_a_remedy(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(StoreError, match=r"\[resume\].*run without resume"):
        read_journal(path)
    with pytest.raises(StoreError):
        Journal.resume(path, HEADER)
    assert path.read_text() == text


def test_bytes_that_are_no_text_are_refused(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StoreError, match="is not a journal"):
        read_journal(path)


def test_another_version_is_refused_by_number(path: Path) -> None:
    path.write_text(json.dumps({"journal": 99, **HEADER}) + "\n")
    with pytest.raises(StoreError, match="99"):
        read_journal(path)


def test_a_torn_header_is_refused(path: Path) -> None:
    interrupted(path, 0)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(StoreError):
            read_journal(path)


def test_wherever_the_last_line_is_torn_the_lines_before_it_count(path: Path) -> None:
    interrupted(path)
    whole = path.read_bytes()
    *head, last = whole.splitlines(keepends=True)
    for length in range(len(last)):
        path.write_bytes(b"".join(head) + last[:length])
        assert read_journal(path)[1] == BOXES[:2]


def test_notes_after_a_torn_line_are_not_lost(path: Path) -> None:
    """Killed while writing, resumed, killed again: the second run's notes must count."""
    interrupted(path)
    os.truncate(path, path.stat().st_size - 7)
    journal = Journal.resume(path, HEADER)
    assert not journal.done.covers(BOXES[2])
    assert all(map(journal.done.covers, BOXES[:2]))
    journal.note(BOXES[2])
    journal.close()
    assert read_journal(path)[1] == BOXES


@pytest.mark.parametrize(
    "line",
    [
        b"\x00\x00\x00\n",
        b"\xff\n",
        b"{}\n",
        b"[]\n",
        b"3\n",
        b'{"done": null}\n',
        b'{"done": [1, 2]}\n',
        b'{"done": [[0]]}\n',
        b'{"done": [["a", "b"]]}\n',
        b'{"done": [[0, 1.5], [0, 2]]}\n',
        b'{"done": [[-1, 2], [0, 2]]}\n',
        b'{"done": [[3, 2], [0, 2]]}\n',
    ],
)
def test_damage_ends_what_is_believed(path: Path, line: bytes) -> None:
    """A line that says no region is the end: what follows it is computed again."""
    interrupted(path)
    head, first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(head + first + line + b"".join(rest))
    assert read_journal(path)[1] == BOXES[:1]


def test_the_journal_of_a_live_run_is_left_alone(path: Path) -> None:
    """Two runs for the same result: the second is refused, the first loses nothing."""
    alive = Journal.begin(path, HEADER)
    alive.note(BOXES[0])
    for attempt in (
        lambda: Journal.begin(path, HEADER),
        lambda: Journal.resume(path, HEADER),
        lambda: forget_journal(path),
    ):
        with pytest.raises(StoreError, match="still alive"):
            attempt()
    alive.note(BOXES[1])
    alive.close()
    assert read_journal(path)[1] == BOXES[:2]


def test_forgetting_deletes_and_needs_nothing_to_be_there(path: Path) -> None:
    interrupted(path)
    forget_journal(path)
    assert not path.exists()
    forget_journal(path)


def test_where_no_journal_can_be_written_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"\[journal\].*cannot be written"):
        Journal.begin(tmp_path / "missing" / "c.npy.journal", HEADER)
    (tmp_path / "c.npy.journal").mkdir()
    with pytest.raises(StoreError):
        Journal.begin(tmp_path / "c.npy.journal", HEADER)
    with pytest.raises(StoreError):
        read_journal(tmp_path / "c.npy.journal")


def test_a_torn_header_is_as_good_as_no_journal(path: Path) -> None:
    """Killed while it was written: nothing is stored yet, so the run begins anew."""
    assert find_journal(path) is None
    interrupted(path, 0)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert find_journal(path) is None
    path.write_bytes(bytes(64))
    assert find_journal(path) is None


@pytest.mark.parametrize("text", ["not json", "not json\n", "{}\n", "[1]", '{"journal": 1}\n', "\n"])
def test_a_file_of_somebody_else_is_no_torn_journal(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(StoreError, match="run without resume"):
        find_journal(path)


def test_a_published_result_is_known_by_its_identity(path: Path, tmp_path: Path) -> None:
    """The file that was complete, whatever its name; not another one, nor itself once it was changed."""
    partial, result = tmp_path / "c.npy.partial", tmp_path / "c.npy"
    partial.write_bytes(b"result")
    journal = Journal.begin(path, HEADER)
    journal.note(BOXES[0])
    journal.note_complete(partial)
    journal.close()
    found = find_journal(path)
    assert found is not None
    assert not found.is_published(result)
    partial.rename(result)
    assert found.is_published(result)
    assert found.boxes == BOXES[:1]
    result.write_bytes(b"another")
    assert not found.is_published(result)


def test_a_torn_last_note_says_nothing_of_completeness(path: Path, tmp_path: Path) -> None:
    partial = tmp_path / "c.npy.partial"
    partial.write_bytes(b"result")
    journal = Journal.begin(path, HEADER)
    journal.note_complete(partial)
    journal.close()
    whole = path.read_bytes()
    head = whole.index(b"\n") + 1
    for length in range(head, len(whole)):
        path.write_bytes(whole[:length])
        found = find_journal(path)
        assert found is not None
        assert found.complete is None


def trusted_boxes(path: Path, content: bytes) -> list[Any]:
    """Return the boxes that a journal of this content records; none when it is refused."""
    path.write_bytes(content)
    try:
        record = find_journal(path)
    except StoreError:
        return []
    return [] if record is None else record.boxes


class TestDamagedLines:
    """A damaged line ends the trusted part of a journal, whatever the damage."""

    def test_every_flipped_bit_leaves_a_prefix(self, path: Path) -> None:
        interrupted(path)
        content = path.read_bytes()
        for place in range(len(content)):
            for bit in range(8):
                damaged = bytearray(content)
                damaged[place] ^= 1 << bit
                boxes = trusted_boxes(path, bytes(damaged))
                assert boxes == BOXES[: len(boxes)], (place, bit)
                assert len(boxes) <= content[:place].count(b"\n")

    def test_every_other_digit_leaves_a_prefix(self, path: Path) -> None:
        interrupted(path)
        content = path.read_bytes()
        for place, byte in enumerate(content):
            for digit in b"0123456789" if chr(byte).isdigit() else b"":
                boxes = trusted_boxes(path, content[:place] + bytes([digit]) + content[place + 1 :])
                assert boxes == BOXES[: len(boxes)]

    def test_moved_and_repeated_lines_are_not_trusted(self, path: Path) -> None:
        interrupted(path)
        head, *lines = path.read_bytes().splitlines(keepends=True)
        for order, count in (([1, 0, 2], 0), ([0, 2], 1), ([0, 1, 1], 2), ([0, 0, 1, 2], 1), ([2], 0)):
            assert trusted_boxes(path, head + b"".join(lines[n] for n in order)) == BOXES[:count]

    def test_a_resumed_journal_continues_the_checksums(self, path: Path) -> None:
        interrupted(path, 2)
        path.write_bytes(path.read_bytes()[:-4])
        journal = Journal.resume(path, HEADER)
        for box in BOXES[1:]:
            journal.note(box)
        journal.close()
        assert read_journal(path)[1] == BOXES

    def test_journals_of_an_earlier_format_are_refused(self, path: Path) -> None:
        path.write_text(json.dumps({"journal": 2, "run": "0", **HEADER}) + '\n{"done": [[0, 2], [0, 5]]}\n')
        with pytest.raises(StoreError, match="has journal version 2, not 3; run without resume"):
            find_journal(path)
