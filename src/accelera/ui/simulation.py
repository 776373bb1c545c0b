"""The seed's controls and its simulation: metrics, eviction scores, heatmap and validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from accelera._plotting import format_count, format_size
from accelera.charts._internal import HEATMAP_HEIGHT, heatmap_chart
from accelera.ui.connection import ask
from accelera.ui.controls import BOUND
from accelera.ui.pictures import draw, main_button, note, theme

MODEL_TYPES = ("Transformer", "CNN", "MLP", "MoE")
MODES = ("inference", "training", "decode")
POLICIES = ("LRU", "FIFO", "ML", "ARC", "GDSF", "LFU", "MRU", "BELADY")
CAPACITIES = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
"""Megabytes on the slider."""
TOP = 20
_COLUMNS = {
    "tensor_id": "tensor",
    "size_mb": "size (MB)",
    "reuse_distance": "reuse distance",
    "op": "operation",
    "eviction_score": "score",
}
MB = 10**6


def simulation_form() -> dict[str, Any]:
    """Draw the controls and return the request of the latest run; its ``policy`` and ``capacity`` too.

    Numbers have no limits here: the service refuses in words what a field would refuse without any.
    """
    with st.form("simulation", border=False):
        model_type = st.selectbox("Model type", MODEL_TYPES, key="model_type", bind=BOUND)
        layers = st.slider("Layers", 1, 96, 12, key="num_layers", bind=BOUND)
        left, right = st.columns(2)
        batch = left.number_input("Batch", value=32, key="batch_size", bind=BOUND)
        tokens = right.number_input("Sequence", value=128, key="seq_length", bind=BOUND)
        policy = st.selectbox("Cache policy", POLICIES, key="policy", bind=BOUND)
        capacity = st.select_slider("Cache (MB)", CAPACITIES, value=64, key="capacity", bind=BOUND)
        reuse = st.slider("Reuse probability", 0.0, 1.0, 0.3, 0.05, key="reuse_probability", bind=BOUND)
        mode = st.selectbox("Mode", MODES, key="mode", bind=BOUND)
        seed = st.number_input(
            "Seed", value=0, key="seed", bind=BOUND, help="Of the dice; the same seed, the same trace."
        )
        validate = st.checkbox("Validate the trace", value=True, key="validate", bind=BOUND)
        st.form_submit_button("Run simulation", type=main_button(), width="stretch")
    return {
        "model_type": model_type,
        "num_layers": int(layers),
        "batch_size": int(batch),
        "seq_length": int(tokens),
        "reuse_probability": float(reuse),
        "mode": mode,
        "seed": int(seed),
        "policy": policy,
        "capacity": f"{capacity}MB",
        "validate": bool(validate),
    }


def workload_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model of a simulation, without its machine."""
    return {name: value for name, value in request.items() if name not in ("policy", "capacity", "validate")}


def run_simulation(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the service's reply to the form's request."""
    body = {name: value for name, value in request.items() if name != "policy"}
    found: dict[str, Any] = ask("simulate", body, request["policy"], "columns")
    return found


def headline_of(request: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return the answer in a sentence."""
    accesses = found["cache_hits (count)"] + found["dram_accesses (count)"]
    rate = found["cache_hit_rate (%)"]
    return (
        f"{request['policy']} finds {rate:.0f}% of {format_count(accesses)} accesses "
        f"in a cache of {request['capacity'][:-2]} MB."
    )


def show_simulation(found: Mapping[str, Any]) -> None:
    """Draw metrics, scores, heatmap and validation."""
    st.header("Simulation metrics", anchor=False)
    metrics = metrics_of(found)
    with st.container(horizontal=True, key="metrics"):
        for name, value in metrics:
            st.metric(name, value, width="content")
    figures = found["figures"]
    compute_share = 1 - figures["stall_s"] / figures["total_s"] if figures["total_s"] else 0.0
    note(
        f"{format_size(figures['moved_bytes'])} come from DRAM. Computing takes {compute_share:.1%} of the "
        "latency, loading the rest. Nothing is freed before it is evicted."
    )
    st.header("Eviction scores and reuse", anchor=False)
    note("The score says who should leave: 0 is kept, 1 goes first. Colours are in the order of the scores.")
    draw(heatmap_chart(found["trace"], theme()), "heatmap", HEATMAP_HEIGHT)
    st.header(f"The {TOP} tensors to evict first", anchor=False)
    st.table(top_scores(found["trace"]).set_index("tensor"))
    if found.get("validation"):
        _validation(found["validation"])


def metrics_of(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the seed's metrics, with their units, as people read them."""
    return [
        ("Cache hits", format_count(found["cache_hits (count)"])),
        ("DRAM accesses", format_count(found["dram_accesses (count)"])),
        ("Cache hit rate", f"{found['cache_hit_rate (%)']:.1f} %"),
        ("Evictions", format_count(found["evictions (count)"])),
        ("Total latency", f"{found['total_latency (ms)']:,.1f} ms"),
        ("Bandwidth wait", f"{found['bandwidth_wait_time (ms)']:,.1f} ms"),
    ]


def top_scores(trace: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Return the accesses with the highest scores, one of each tensor."""
    table = pd.DataFrame({name: trace[name] for name in _COLUMNS})
    best = table.sort_values("eviction_score", ascending=False, kind="stable").drop_duplicates("tensor_id")
    best = best.head(TOP).reset_index(drop=True)
    shown: pd.DataFrame = best.rename(columns=_COLUMNS)
    for name, digits in (("size (MB)", 1), ("score", 3)):
        shown[name] = shown[name].map(f"{{:,.{digits}f}}".format)
    shown["reuse distance"] = [
        "first use" if pd.isna(one) else f"{one:,.0f}" for one in shown["reuse distance"]
    ]
    return shown


def _validation(validation: Mapping[str, Any]) -> None:
    st.header("Is the trace realistic?", anchor=False)
    sizes = validation["sizes"]
    rows = [
        ("Reuse entropy", f"{validation['reuse_entropy_bits']:.2f} bits", "reuse entropy"),
        ("Temporal locality", f"{validation['temporal_locality']:.2f}", "temporal locality"),
        ("Size distribution, p-value", f"{sizes['p_value']:.2g}", "sizes"),
        ("Lives of tensors", "sound" if validation["sound"] else "contradictory", "lives"),
    ]
    meanings = validation["interpretations"]
    st.table(
        pd.DataFrame(
            [(name, value, meanings.get(key, "")) for name, value, key in rows],
            columns=["figure", "value", "what it says"],
        ).set_index("figure")
    )
