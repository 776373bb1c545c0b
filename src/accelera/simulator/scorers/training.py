"""Trees that learn from traces how long it takes until a buffer is used again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from accelera.extras import needed_for
from accelera.simulator.scorers.features import FEATURES, features, next_distances
from accelera.trace import Trace

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
        raise ValueError("[scorer] no buffer is used twice in these traces; there is nothing to learn from")
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
