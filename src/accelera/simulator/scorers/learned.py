"""The learned scorer: the predicted time of the next use, by trees trained on other models' traces."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.scorers.features import FEATURES, features
from accelera.simulator.scorers.training import import_lightgbm
from accelera.trace import Trace

SHIPPED = "learned_model.txt"


def learned_scores(trace: Trace, model: str | None = None) -> NDArray[np.float64]:
    """Return per access the predicted time of its buffer's next use, shape (accesses,).

    Parameters
    ----------
    model
        As ``train_scorer`` returns it; the one shipped with the package when absent.

    Raises BackendMissingError without LightGBM, ValueError for a model of other features.
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
    booster = import_lightgbm().Booster(model_str=model)
    found = tuple(booster.feature_name())
    if found != FEATURES:
        raise ValueError(
            f"[scorer] the model looks at {', '.join(found)}, and here are {', '.join(FEATURES)}; "
            "train it again with train_scorer"
        )
    return booster
