"""Sweeps: the same figures as single replays, and findings worked out by hand."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from accelera._plotting import MOST_LINES
from accelera.errors import BackendMissingError, UnknownNameError
from accelera.policy import POLICIES
from accelera.simulator import HIERARCHIES, Sweep, generate_synthetic_trace, lower_bound, simulate, sweep
from accelera.simulator._internal import Gain, bound_curve, gain
from accelera.simulator.time_steps import TimeSteps
from accelera.trace import Kind, Occupancy, Trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate_synthetic_trace("Transformer", 3, 4, 32, 0.2, mode="training", hidden_size=64, steps=2)


@pytest.fixture(scope="module")
def found(trace: Trace) -> Sweep:
    return sweep(trace, ["LRU", "planner", "mru"], 12, progress=False)


def loop(count: int = 10, rounds: int = 8) -> Trace:
    """Return reads of ``count`` buffers of 100 bytes, over and over."""
    return Trace.from_arrays(list(range(count)) * rounds, 100)


def test_every_cell_is_a_replay_of_its_own(trace: Trace, found: Sweep) -> None:
    assert found.policies == ("lru", "planner", "mru")
    for policy in found.policies:
        alone = [simulate(trace, size, policy).moved_bytes for size in found.capacities]
        assert found.moved_bytes(policy).tolist() == alone


def test_threads_change_nothing(trace: Trace, found: Sweep) -> None:
    again = sweep(trace, ["lru", "planner", "mru"], 12, threads=4, progress=False)
    assert again.to_dict() == found.to_dict()


def test_capacities_run_from_the_floor_to_the_peak(trace: Trace, found: Sweep) -> None:
    assert len(found.capacities) == 12
    assert found.capacities[0] == TimeSteps.of(trace).floor_bytes
    assert found.capacities[-1] == Occupancy(trace).peak_bytes
    assert list(found.capacities) == sorted(found.capacities)


@pytest.mark.parametrize(("variable", "drawn"), [("always", True), ("never", False), ("auto", False)])
def test_the_bar_is_drawn_where_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, drawn: bool
) -> None:
    monkeypatch.setenv("ACCELERA_PROGRESS", variable)
    sweep(loop(), ["lru"], 3, progress=True)
    assert ("sweep" in capsys.readouterr().err) is drawn


def test_all_policies_but_those_without_their_score() -> None:
    swept = sweep(loop(), capacities=["500 B", 300, 300], progress=True)
    assert swept.policies == tuple(name for name in POLICIES if name != "learned")
    assert swept.capacities == (300, 500)
    scored = sweep(loop(), capacities=2, scores={"learned": np.zeros(80)}, progress=False)
    assert "learned" in scored.policies


def test_a_preset_keeps_its_other_tiers(trace: Trace) -> None:
    swept = sweep(trace, ["lru"], [2**20], "gpu-24gb", lookahead=1, progress=False)
    report = swept.reports["lru"][0]
    assert report.hierarchy.tiers[1:] == HIERARCHIES["gpu-24gb"].tiers[1:]
    assert (report.hierarchy.tiers[0].capacity_bytes, report.lookahead) == (2**20, 1)


def test_bounds_are_proven_and_near(trace: Trace, found: Sweep) -> None:
    exact = np.array([lower_bound(trace, size) for size in found.capacities])
    assert (np.array(found.lower_bounds) <= exact).all()
    assert (np.array(found.lower_bounds) >= 0.9 * exact).all()
    for policy in found.policies:
        assert (found.regret(policy) >= 1).all()


def test_a_bound_below_the_floor_is_solved_by_itself(trace: Trace) -> None:
    floor = TimeSteps.of(trace).floor_bytes
    curve = bound_curve(trace, [floor // 2, floor])
    assert curve.tolist() == [lower_bound(trace, floor // 2), lower_bound(trace, floor)]


def test_the_best_on_a_loop_is_not_the_worst() -> None:
    swept = sweep(loop(), ["lru", "belady", "fifo"], range(200, 1100, 100), progress=False)
    assert swept.best() == swept.best("500 B") == "belady"


def test_of_equals_the_first_is_best() -> None:
    swept = sweep(loop(), ["fifo", "lru"], [400, 600], progress=False)
    assert swept.best() == "fifo"


def test_knee_of_a_cliff_is_at_its_foot() -> None:
    swept = sweep(loop(), ["lru"], range(200, 2100, 100), progress=False)
    assert swept.moved_bytes("lru").tolist() == [8000] * 8 + [1000] * 11
    assert swept.knee("lru") == 1000


def test_a_flat_curve_has_its_knee_at_the_first_capacity() -> None:
    assert sweep(loop(), ["lru"], [1000, 1500, 2000], progress=False).knee() == 1000


def test_stalls_end_where_everything_fits() -> None:
    swept = sweep(loop(), ["lru"], range(200, 2100, 100), progress=False)
    assert swept.smallest_without_stalls("lru") == 1000
    assert sweep(loop(), ["lru"], [2000], progress=False).smallest_without_stalls() == 2000


def test_rows_for_pandas_and_json(found: Sweep) -> None:
    frame = found.to_pandas()
    assert len(frame) == 3 * 12
    assert {"policy", "capacity_bytes", "moved_bytes", "stall_s", "regret"} <= set(frame.columns)
    assert "regret" not in found.to_pandas(bound=False).columns
    assert json.loads(json.dumps(found.to_dict()))["rows"][0]["policy"] == "lru"


def test_table_shows_the_best_first(found: Sweep) -> None:
    lines = found.table(columns=3).splitlines()
    assert lines[0].split()[0] == "capacity"
    assert lines[2].startswith(found.best())
    assert len(re.findall("GiB|MiB|KiB", lines[0])) == 3
    assert "x" not in found.table(bound=False, columns=1).splitlines()[2].split()[1]


class Well(HTMLParser):
    """Takes note of tags left open and of anything from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elsewhere: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "html"):
            self.open.append(tag)
        self.elsewhere += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag != "html":
            assert self.open.pop() == tag


def test_page_is_well_formed_and_stands_alone(found: Sweep, tmp_path: Path) -> None:
    text = found.plot(tmp_path / "sweep.html").read_text(encoding="utf-8")
    page = Well()
    page.feed(text)
    assert page.open == page.elsewhere == []
    # One drawing for wide windows and one for narrow ones, of which the page shows one.
    assert text.count("<polyline ") == 2 * 3
    assert "planner" in text
    assert "<polygon" not in found.plot(tmp_path / "b.html", bound=False).read_text(encoding="utf-8")


def test_page_shows_five_lines_and_the_others_on_demand(trace: Trace, tmp_path: Path) -> None:
    names = [name for name in POLICIES if name != "learned"]
    swept = sweep(trace, names, 6, progress=False)
    text = swept.plot(tmp_path / "all.html").read_text(encoding="utf-8")
    wide = text[text.index('<svg class="wide"') : text.index('<svg class="narrow"')]
    others = len(names) - MOST_LINES
    assert len(re.findall(r"<polyline (class=\"best\" )?stroke=", wide)) == MOST_LINES + others
    assert wide.count('<polyline class="other"') == wide.count('<g class="more') == others
    assert text.count('type="checkbox"') == others
    shown = set(re.findall(r'stroke="(#\w+)" points', wide))
    assert len(shown) == MOST_LINES
    assert swept.best() in text
    for words in ("B moved", "capacity of the first tier, ", "knee ", "no schedule moves less", "10⁹ bytes"):
        assert words in text


def test_ticks_of_the_page_are_round(found: Sweep, tmp_path: Path) -> None:
    text = found.plot(tmp_path / "sweep.html").read_text(encoding="utf-8")
    wide = text[text.index('<svg class="wide"') : text.index('<svg class="narrow"')]
    upright = [float(one) for one in re.findall(r'text-anchor="end">([\d.,]+)</text>', wide)]
    steps = {round(one - other, 9) for other, one in pairwise(upright)}
    assert upright[0] == 0
    assert len(steps) == 1
    assert f"{steps.pop():e}"[0] in "125"


def test_picture(found: Sweep, tmp_path: Path) -> None:
    assert found.plot(str(tmp_path / "sweep.png")).read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_remedy_is_named(
    found: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BackendMissingError, match=re.escape("accelera-engine[plot]")):
        found.plot(tmp_path / "sweep.png")


def test_what_cannot_be_done_is_refused(found: Sweep, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.png or \.html"):
        found.plot(tmp_path / "sweep.pdf")
    with pytest.raises(UnknownNameError, match="planner"):
        found.moved_bytes("planer")
    with pytest.raises(UnknownNameError, match="lru"):
        sweep(loop(), ["lur"])
    with pytest.raises(ValueError, match="no policies"):
        sweep(loop(), [])
    with pytest.raises(ValueError, match="names none"):
        sweep(loop(), ["lru"], [])


def test_gain_says_when_a_policy_pays() -> None:
    much = gain(loop(), 800)
    assert much.worthwhile
    assert much.moved_bytes == 8000 > much.planned_bytes >= much.lower_bound_bytes
    assert "less" in much.explain()


def test_gain_says_when_none_does_on_a_stack_of_activations() -> None:
    events = [(n, Kind.WRITE) for n in range(30)]
    for n in reversed(range(30)):
        events += [(n, Kind.READ), (n, Kind.FREE)]
    stack = Trace.from_arrays(
        [buffer for buffer, _ in events],
        100,
        kinds=[kind for _, kind in events],
        steps=np.cumsum([kind != Kind.FREE for _, kind in events]) - 1,
    )
    found = gain(stack, 1000)
    assert found.moved_bytes == found.lower_bound_bytes == 2 * 20 * 100
    assert not found.worthwhile
    assert "no schedule moves less" in found.explain()


@pytest.mark.parametrize(
    ("planned", "least", "verdict"),
    [(990, 980, "no policy helps"), (990, 500, "does not help"), (600, 500, "40% less")],
)
def test_gain_in_words(planned: int, least: int, verdict: str) -> None:
    assert verdict in Gain(1000, "lru", 1000, planned, least).explain()


def test_gain_where_nothing_is_moved() -> None:
    nothing = Gain(1000, "lru", 0, 0, 0)
    assert (nothing.reachable, nothing.possible, nothing.worthwhile) == (0, 0, False)
