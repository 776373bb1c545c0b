"""Learned scorer: the predicted time of the next use, by trees trained on other models' traces.

No feature of an access depends on a later one: a reuse counts once it has come, not before.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera._extras import needed_for
from accelera.errors import ArgumentError
from accelera.policy._internal import access_signatures, occurrences
from accelera.simulator.scorers.model_text import checked_model_text
from accelera.trace import Trace
from accelera.trace._internal import NEVER, ROLES, stack_distances

FEATURES = (
    "log_size",
    "role",
    "write",
    "log_stride",
    "operand",
    "operands",
    "log_flops",
    "uses",
    "log_last_gap",
    "log_gap_before_that",
    "log_stack_distance",
    "log_age",
    "log_like_last_gap",
    "log_like_mean_gap",
    "like_resolved",
    "like_open",
)
"""Names of the columns. "Like" are earlier accesses of the same op, place among operands, size and kind."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def features(trace: Trace) -> NDArray[np.float32]:
    """Return one row per access, shape (accesses, len(FEATURES)); NaN where there is nothing to know."""
    columns = [*_of_buffers(trace), *_of_steps(trace), *_of_past_uses(trace), *_of_the_like(trace)]
    return np.stack(columns, axis=1).astype(np.float32)


def next_distances(trace: Trace) -> Floats:
    """Return per access how many accesses later the same buffer comes again, infinite for never."""
    after = trace.next_use.astype(np.float64)
    distance = after - np.arange(trace.access_count)
    distance[trace.next_use == NEVER] = np.inf
    return distance


def _of_buffers(trace: Trace) -> list[Floats]:
    roles = np.array([ROLES.index(role) for role in trace.roles], dtype=np.float64)
    accesses = trace.is_access
    return [
        np.log2(1.0 + trace.size_bytes)[trace.accessed],
        roles[trace.accessed],
        trace.kind[accesses].astype(np.float64),
        np.log2(np.maximum(np.abs(trace.stride[accesses]), 1)).astype(np.float64),
    ]


def _of_steps(trace: Trace) -> list[Floats]:
    steps = trace.step[trace.is_access]
    counts = np.bincount(steps, minlength=trace.step_count)
    return [
        occurrences(steps).astype(np.float64),
        counts[steps].astype(np.float64),
        np.log2(1.0 + trace.flops)[steps],
    ]


def _of_past_uses(trace: Trace) -> list[Floats]:
    time = np.arange(trace.access_count, dtype=np.float64)
    last = _previous(trace)
    gap = np.where(last >= 0, time - last, np.nan)
    earlier = np.where(last >= 0, gap[last], np.nan)
    uses = occurrences(trace.accessed).astype(np.float64)
    first = np.full(trace.buffer_count, np.nan)
    first[trace.accessed[::-1]] = time[::-1]
    distance = stack_distances(trace).buffers.astype(np.float64)
    distance[distance < 0] = np.nan
    age = time - first[trace.accessed]
    return [uses, np.log2(gap), np.log2(earlier), np.log2(1 + distance), np.log2(1 + age)]


def _previous(trace: Trace) -> Integers:
    """Return per access the index of the buffer's last one, or -1."""
    last = np.full(trace.access_count, -1, dtype=np.int64)
    again = np.flatnonzero(trace.next_use != NEVER)
    last[trace.next_use[again]] = again
    return last


def _of_the_like(trace: Trace) -> list[Floats]:
    """Return what became of earlier accesses that look the same: last and mean gap, how many are known."""
    count = trace.access_count
    signature = access_signatures(trace)
    reused = np.flatnonzero(trace.next_use != NEVER)
    came = trace.next_use[reused].astype(np.int64)
    gaps = np.log2((came - reused).astype(np.float64))
    key = signature[reused] * (count + 1) + came
    order = np.argsort(key, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(gaps[order])])
    now = np.searchsorted(key[order], signature * (count + 1) + np.arange(count), side="right")
    begin = np.searchsorted(key[order], signature * (count + 1), side="left")
    resolved = now - begin
    newest = gaps[order][np.maximum(now - 1, 0)] if len(order) else np.zeros(count)
    mean = (sums[now] - sums[begin]) / np.maximum(resolved, 1)
    unknown = resolved == 0
    started = occurrences(signature)
    return [
        np.where(unknown, np.nan, newest),
        np.where(unknown, np.nan, mean),
        np.log2(1.0 + resolved),
        np.log2(1.0 + np.maximum(started - resolved, 0)),
    ]


ROUNDS = 80
_PARAMETERS = {
    "objective": "regression",
    "num_leaves": 31,
    "learning_rate": 0.1,
    "min_data_in_leaf": 40,
    "feature_fraction": 0.8,
    "seed": 1,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}


def train_scorer(traces: Iterable[Trace], *, rounds: int = ROUNDS) -> str:
    """Return a model in LightGBM's text form, trained on ``traces``, each of which counts the same.

    It predicts log2 of the number of accesses until the same buffer comes again. Accesses after which it
    never does are left out: what is freed needs no score, and what the end of a trace cuts off is unknown.

    Parameters
    ----------
    traces
        Traces of other models than those to be scored.
    rounds
        Trees to train.

    Raises
    ------
    BackendMissingError
        Without LightGBM.
    ValueError
        When no buffer is used twice.
    """
    lightgbm = import_lightgbm()
    rows, targets, weights = [], [], []
    for trace in traces:
        distance = next_distances(trace)
        known = np.isfinite(distance)
        rows.append(features(trace)[known])
        targets.append(np.log2(distance[known]))
        weights.append(np.full(len(targets[-1]), 1.0 / max(len(targets[-1]), 1)))
    if not sum(map(len, targets)):
        raise ArgumentError(
            "[scorer] no buffer is used twice in these traces; there is nothing to learn from"
        )
    share = np.concatenate(weights)
    data = lightgbm.Dataset(
        np.concatenate(rows),
        np.concatenate(targets),
        weight=share / share.mean(),
        feature_name=list(FEATURES),
    )
    model: str = lightgbm.train(_PARAMETERS, data, num_boost_round=rounds).model_to_string()
    return model


def import_lightgbm() -> Any:
    """Return the module; raises BackendMissingError with the remedy where it is absent."""
    with needed_for("scorer", "or take scorer='replay'"):
        import lightgbm
    return lightgbm


SHIPPED = "learned_model.txt"


def learned_scores(trace: Trace, model: str | None = None) -> NDArray[np.float64]:
    """Return per access the predicted time of its buffer's next use, shape (accesses,).

    Parameters
    ----------
    model
        As ``train_scorer`` returns it; the one shipped with the package when absent.

    Raises BackendMissingError without LightGBM, ArgumentError for a model of other features, and for text
    that is not one.
    """
    booster = _booster(shipped_model() if model is None else model)
    if not trace.access_count:
        return np.empty(0)
    ahead = np.exp2(np.clip(booster.predict(features(trace), num_threads=1), 0.0, 40.0))
    predicted: NDArray[np.float64] = np.arange(trace.access_count) + ahead
    return predicted


@lru_cache(maxsize=1)
def shipped_model() -> str:
    """Return the shipped model in LightGBM's text form."""
    return resources.files("accelera.simulator.scorers").joinpath(SHIPPED).read_text(encoding="utf-8")


@lru_cache(maxsize=4)
def _booster(model: str) -> Any:
    return import_lightgbm().Booster(model_str=checked_model_text(model, FEATURES))
