"""Pages without a browser: sentences, budgets of stored traces, links of past runs, results of jobs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from accelera.charts._internal import curves_chart
from accelera.errors import BackendMissingError, ServiceError
from accelera.service.client import PastRun
from accelera.simulator import advise, generate_synthetic_trace, sweep
from accelera.ui import exports, history, questions
from accelera.ui.failures import message_of
from accelera.ui.jobs import subject_of
from accelera.ui.pictures import PAGES
from accelera.ui.policies import headline_on
from accelera.ui.results import curves_of_sweep, sentence_of_sweep
from accelera.units import parse_bytes
from accelera.views import fit_view
from accelera.views._internal import presets

DIGEST = "a1" * 32
TRACE = generate_synthetic_trace(num_layers=1, batch_size=2, seq_length=16)
PATIENCE_S = 600
"""Unasked, Streamlit gives a page three seconds."""


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "ask", lambda _: presets())
    monkeypatch.setattr("accelera.ui.jobs.ask", lambda _: presets())


@pytest.fixture(autouse=True)
def own_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the process's own ``__main__`` back after AppTest, whose script a spawned process would run."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def test_an_error_is_shown_as_it_is() -> None:
    error = ServiceError(
        "", status=404, problem={"detail": "[x] no *b* <i> [c](d) $e$; GET /v1/traces lists"}
    )
    assert message_of(error) == r"No \*b\* \<i\> \[c\]\(d\) \$e\$\."


@given(peak=st.integers(0, 10**13), others=st.sets(st.integers(1, 10**13), max_size=4))
def test_budgets_of_a_trace_are_read_back_and_lie_around_its_peak(peak: int, others: set[int]) -> None:
    budgets = questions.trace_budgets(peak, others)
    assert list(budgets.values()) == sorted(set(budgets.values()))
    assert all(parse_bytes(label) == size for label, size in budgets.items())
    assert others <= set(budgets.values())
    assert len(budgets) > 1
    if peak >= 100:
        assert min(budgets.values()) < peak / 2
        assert max(budgets.values()) > peak
        assert budgets[questions.first_trace_budget(peak, 0, 12 * 10**9, budgets)] < peak
        assert budgets[questions.first_trace_budget(peak, peak, 2 * peak, budgets)] >= peak


@pytest.mark.parametrize(
    ("kind", "request_", "figures", "page", "part"),
    [
        ("sweep", {"source": DIGEST, "capacities": 20}, {}, "policies", {"trace": DIGEST}),
        ("bounds", {"source": DIGEST, "capacities": ["50%"]}, {}, "policies", {"trace": DIGEST}),
        ("advise", {"source": DIGEST, "capacity": "50%"}, {}, "policies", {"share": "50"}),
        ("fit", {"source": DIGEST, "budget": "62MB"}, {}, "fit", {"memory": "62 MB"}),
        ("fit", {"source": DIGEST, "budget": "12345678"}, {}, "fit", {"memory": "12345678 B"}),
        ("fit", {"source": DIGEST, "budget": "60%"}, {}, "policies", {"share": "60"}),
        ("timeline", {"source": DIGEST, "budget": "62000000"}, {}, "timeline", {"memory": "62 MB"}),
        ("sweep", {"source": {"num_layers": 2, "mode": "decode"}}, {}, "policies", {"num_layers": "2"}),
        ("sweep", {"source": {"num_layers": 32, "hidden_size": 4096}}, {}, "fit", {"model": "7B"}),
        (
            "fit",
            {"source": {"num_layers": 32, "hidden_size": 4096}, "budget": "13GB"},
            {},
            "fit",
            {"budget": "13"},
        ),
        ("capture", {"config": {}}, {"digest": DIGEST}, "fit", {"trace": DIGEST}),
        (
            "estimate",
            {"config": {"a": 1}, "dtypes": ["float16"], "budget": None},
            {},
            "fit",
            {"dtype": "float16"},
        ),
    ],
)
def test_a_past_run_opens_what_it_is_about(
    kind: str, request_: dict[str, Any], figures: dict[str, Any], page: str, part: Mapping[str, str]
) -> None:
    place = history.page_link_of(PastRun("1", kind, request=request_, figures=figures, job="2"))
    assert place is not None
    assert place[0] == page
    assert part.items() <= place[1].items()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("source", "budget", "capacity", "config", "dtypes", "policies", "link_bytes_per_s", "simulation")


@given(
    kind=st.sampled_from(["fit", "sweep", "capture", "x"]),
    asked=st.dictionaries(st.sampled_from(FIELDS), JSON),
)
def test_whatever_a_program_has_kept_leaves_the_history_whole(kind: str, asked: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "ask", lambda _: presets())
        place = history.page_link_of(PastRun("1", kind, request=asked))
    assert place is None or place[0] in PAGES


def test_what_has_no_page_has_none() -> None:
    assert (
        history.page_link_of(PastRun("1", "plan", request={"kind": "matmul", "a": [2, 2], "b": [2, 2]}))
        is None
    )


def test_a_subject_is_in_words() -> None:
    assert subject_of({"source": DIGEST}, {DIGEST: "small.csv"}) == "small.csv"
    assert subject_of({"source": DIGEST}, {}) == "a trace that is deleted (a1a1a1a1)"
    seven = {"num_layers": 32, "hidden_size": 4096, "mode": "decode", "batch_size": 2}
    assert subject_of({"source": seven}, {}) == "7B model, generation, batch 2"
    assert subject_of({"config": {"model_type": "gpt2"}, "batch": 1}, {}) == "gpt2, batch 1"


@pytest.mark.parametrize("bound", [True, False])
def test_a_sweep_is_drawn_with_its_own_figures(bound: bool) -> None:
    found = sweep(TRACE, ["lru", "belady"], 5, progress=False)
    curves = curves_of_sweep(found.to_dict(bound=bound))
    for name in found.policies:
        assert curves["moved"][name] == found.moved_bytes(name).tolist()
    assert curves["least"] == (list(found.lower_bounds) if bound else None)
    assert len(curves_chart(curves)["series"]) == (3 if bound else 2)
    assert "moves least by and large" in sentence_of_sweep(found.to_dict(bound=bound))


@pytest.mark.parametrize(
    ("share", "says"), [(1.0, "fits in"), (0.7, "small.csv in"), (0.01, "No policy runs small.csv")]
)
def test_a_headline_about_a_trace_is_a_sentence(share: float, says: str) -> None:
    peak = fit_view(TRACE, 1).verdict.needs_bytes
    told_ = headline_on("small.csv", fit_view(TRACE, int(peak * share)).to_dict()["verdict"])
    assert says in told_
    assert told_.endswith(".")


def _advice() -> None:
    import streamlit

    from accelera.ui.results import show_result

    show_result("advise", streamlit.session_state["found"], "1")


def test_advice_is_sentences_and_figures_in_units() -> None:
    found = advise(TRACE, "50%", bound=False).to_dict()
    app = AppTest.from_function(_advice, default_timeout=PATIENCE_S)
    app.session_state["found"] = found
    app.run()
    assert not app.exception
    assert len(app.markdown[0].value.splitlines()) == len(found["words"])
    assert any(metric.label == "Knee" and metric.value.endswith("B") for metric in app.metric)
    assert app.expander[0].label == "All of it, as JSON"


def _export() -> None:
    from accelera.ui.exports import ChartExport, _exports

    _exports([ChartExport("timeline", {})], "light")


def test_an_export_that_cannot_be_made_says_so_and_has_no_button(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(op: str, module: str, otherwise: str) -> None:
        raise BackendMissingError(f"[{op}] needs {module}; pip install 'accelera-engine[plot]', {otherwise}")

    monkeypatch.setattr(exports, "require", absent)
    app = AppTest.from_function(_export, default_timeout=PATIENCE_S).run()
    assert "needs matplotlib" in app.error[0].value.replace("\\", "").lower()
    assert not app.get("download_button")
    app.selectbox(key="export_as").select("CSV").run()
    assert not app.error
    assert app.get("download_button")


def _ways() -> None:
    from accelera.ui import fit, questions

    fit._ways(questions.Question("a" * 64, 1, 1e9, "gpu-12gb", ("lru",)))


def test_where_nothing_helps_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"fits": False, "ways": [], "room": [], "cards": []}
    monkeypatch.setattr("accelera.ui.fit.ask", lambda *_, **__: nothing)
    app = AppTest.from_function(_ways, default_timeout=PATIENCE_S).run()
    assert [one.value for one in app.markdown] == ["No single change makes it fit."]
