"""Sidebar of the pages Fit and Timeline: what runs, on what, in how much memory.

Every control is bound to the address of the page, so that a copied link opens the same view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from accelera.service._internal import TraceRecord
from accelera.ui.connection import ask
from accelera.ui.failures import failures_shown
from accelera.ui.pictures import escaped, note
from accelera.ui.questions import (
    BATCHES,
    BUDGETS,
    CONFIG,
    CONTEXTS,
    DTYPES,
    GB,
    LINKS,
    OWN_SHAPE,
    POLICIES,
    RUNS,
    USUAL,
    ConfigQuestion,
    Question,
    bytes_of,
    config_of,
    first_trace_budget,
    nearest_below,
    nearest_label,
    packed,
    trace_budgets,
    unpacked,
    workload,
)

BOUND: Any = "query-params"
FIRST_MODEL, FIRST_CARD = "7B", "12 GB card"
_MOST_CONTEXT = 1 << 20


def controls(*, policies: bool = True) -> Question | ConfigQuestion:
    """Draw the sidebar and return its question; without ``policies`` the usual policies are compared."""
    with failures_shown("models"):
        presets: Mapping[str, Any] = ask("models")
    stored = stored_trace()
    with st.sidebar:
        if stored is not None:
            show_stored(stored)
            return _machine(presets, stored.digest, policies)
        return _model_and_machine(presets, policies)


def stored_trace() -> TraceRecord | None:
    """Return the stored trace that the address names; None for none."""
    digest = st.query_params.get("trace")
    if not digest:
        return None
    with failures_shown("trace"):
        found: TraceRecord = ask("trace", digest)
    return found


def show_stored(trace: TraceRecord) -> None:
    """Draw what a stored trace is, and the way back."""
    st.markdown(f"**Trace** {escaped(trace.name)}")
    st.markdown(f"{trace.accesses:,} accesses of {trace.buffers:,} tensors in {trace.steps:,} steps")
    st.button("Back to a model", on_click=_leave_trace, width="stretch")


def _leave_trace() -> None:
    del st.query_params["trace"]


def _model_and_machine(presets: Mapping[str, Any], policies: bool) -> Question | ConfigQuestion:
    runs = st.segmented_control(
        "What runs", list(RUNS), default="Generate", required=True, key="runs", bind=BOUND, width="stretch"
    )
    runs = runs or "Generate"
    names = [*(each["name"] for each in presets["models"]), OWN_SHAPE, CONFIG]
    first = names.index(FIRST_MODEL) if FIRST_MODEL in names else 0
    name = st.selectbox("Model", names, index=first, key="model", bind=BOUND)
    config = _config() if name == CONFIG else None
    layers, width = _shape(name, presets)
    batch = st.slider("Batch (sequences)", *BATCHES, value=1, key="batch", bind=BOUND)
    context = st.select_slider("Context (tokens)", _contexts(), value=1024, key="context", bind=BOUND)
    dtype = str(st.selectbox("Element type", DTYPES, key="dtype", bind=BOUND))
    if name == CONFIG:
        machine = _machine(presets, "", policies)
        return ConfigQuestion(config, runs, batch, context, dtype, machine.budget_bytes)
    return _machine(presets, workload(runs, layers, width, batch, context, dtype), policies)


def _config() -> dict[str, Any] | None:
    """Draw the choice of a file and return its configuration, else that of the link."""
    file = st.file_uploader("config.json", type=["json"], key="fit_config")
    if file is None:
        found = unpacked(st.query_params.get("config", ""))
        if found is not None:
            note("The configuration is the link's.")
        return found
    config = config_of(file)
    letters = None if config is None else packed(config)
    if letters is None:
        st.query_params.pop("config", None)
    else:
        st.query_params["config"] = letters
    return config


def _shape(name: str, presets: Mapping[str, Any]) -> tuple[int, int]:
    if name == OWN_SHAPE:
        left, right = st.columns(2)
        layers = left.number_input("Layers", 1, 200, 32, key="layers", bind=BOUND)
        width = right.number_input("Hidden size", 64, 32_768, 4096, step=64, key="width", bind=BOUND)
        return int(layers), int(width)
    matches = [each for each in presets["models"] if each["name"] == name]
    return (matches[0]["num_layers"], matches[0]["hidden_size"]) if matches else (1, 64)


def _contexts() -> Sequence[int]:
    """Return the slider's lengths, and those that a way to fit or a link has set."""
    extra: set[int] = st.session_state.setdefault("_contexts", set())
    linked = st.query_params.get("context", "")
    if linked.isdecimal() and 1 <= int(linked) <= _MOST_CONTEXT:
        extra.add(int(linked))
    return sorted({*CONTEXTS, *extra})


def _machine(presets: Mapping[str, Any], source: Mapping[str, Any] | str, policies: bool) -> Question:
    cards = {each["name"]: each for each in presets["cards"]}
    first = list(cards).index(FIRST_CARD) if FIRST_CARD in cards else 0
    name = st.selectbox(
        "Card", list(cards), index=first, key="card", bind=BOUND, on_change=_take_card, args=(cards,)
    )
    card = cards[name]
    budget = _trace_budget(source, cards, card) if isinstance(source, str) and source else _budget(card)
    link = st.select_slider("Link to host (GB/s)", LINKS, value=_link_of(card), key="link", bind=BOUND)
    chosen = _policies() if policies else ()
    return Question(source, budget, float(link * GB), card["hierarchy"], tuple(chosen or USUAL))


def _policies() -> Sequence[str]:
    return st.pills(
        "Policies",
        list(POLICIES),
        selection_mode="multi",
        default=list(USUAL),
        format_func=POLICIES.__getitem__,
        key="policies",
        bind=BOUND,
        help="Who leaves when memory is full. Belady and the planner must know the schedule.",
    )


def _budget(card: Mapping[str, Any]) -> int:
    chosen = st.select_slider("Memory budget (GB)", BUDGETS, value=_budget_of(card), key="budget", bind=BOUND)
    return int(chosen * GB)


def _trace_budget(digest: str, cards: Mapping[str, Any], card: Mapping[str, Any]) -> int:
    known = _budgets_of(digest, cards)
    needs = _needs_of(digest)
    first = first_trace_budget(needs["needs_bytes"], needs["floor_bytes"], card["bytes"], known)
    return known[st.select_slider("Memory budget", list(known), value=first, key="memory", bind=BOUND)]


def _needs_of(digest: str) -> Mapping[str, int]:
    """Return the verdict of a stored trace, with its peak and floor: the trace's record has neither."""
    with failures_shown("peak"):
        verdict: Mapping[str, int] = ask("fit", digest, "100%", policies=["lru"])["verdict"]
    return verdict


def _budgets_of(digest: str, cards: Mapping[str, Any]) -> dict[str, int]:
    """Return the slider's budgets by label, with those of cards, and those that links have set."""
    peak = _needs_of(digest)["needs_bytes"]
    extra: set[int] = st.session_state.setdefault(f"_budgets_{digest}", set())
    linked = bytes_of(st.query_params.get("memory", ""))
    if linked:
        extra.add(linked)
    return trace_budgets(
        peak, {*extra, *(one["bytes"] for one in cards.values() if one["bytes"] <= 1.5 * peak)}
    )


def _take_card(cards: Mapping[str, Any]) -> None:
    card = cards[st.session_state["card"]]
    digest = st.query_params.get("trace")
    if digest:
        known = _budgets_of(digest, cards)
        st.session_state["memory"] = nearest_label(card["bytes"], known)
    else:
        st.session_state["budget"] = _budget_of(card)
    st.session_state["link"] = _link_of(card)


def _budget_of(card: Mapping[str, Any]) -> int:
    return nearest_below(card["bytes"] / GB, BUDGETS)


def _link_of(card: Mapping[str, Any]) -> int:
    return nearest_below(card["link_bytes_per_s"] / GB, LINKS)


def apply(changes: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]) -> None:
    """Set controls to the ``changes`` of a way to fit, whose names are those of the service."""
    state = st.session_state
    if "batch_size" in changes:
        state["batch"] = changes["batch_size"]
    if "seq_length" in changes:
        state.setdefault("_contexts", set()).add(changes["seq_length"])
        state["context"] = changes["seq_length"]
    if "dtype" in changes:
        state["dtype"] = changes["dtype"]
    known = {each["name"]: each for each in cards}
    if changes.get("card") in known:
        state["card"] = changes["card"]
        _take_card(known)
