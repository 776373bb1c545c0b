"""The text of a trained scorer is checked before LightGBM reads it."""

from __future__ import annotations

import re

import lightgbm
import numpy as np
import pytest

from accelera.errors import ArgumentError
from accelera.simulator import generate_synthetic_trace
from accelera.simulator.scorers.learned import FEATURES, learned_scores, shipped_model
from accelera.simulator.scorers.model_text import checked_model_text


def test_checked_text_predicts_the_same() -> None:
    model = shipped_model()
    rows = np.random.default_rng(0).normal(size=(500, len(FEATURES))) * 5
    rows[::7, 3] = np.nan
    expected, scores = (
        lightgbm.Booster(model_str=text).predict(rows, num_threads=1)
        for text in (model, checked_model_text(model, FEATURES))
    )
    np.testing.assert_array_equal(scores, expected)


@pytest.mark.parametrize(
    ("pattern", "replacement", "problem"),
    [
        (r"left_child=3 ", "left_child=0 ", "child nodes"),
        (r"left_child=3 ", "left_child=99 ", "left_child"),
        (r"split_feature=15 ", "split_feature=16 ", "split_feature"),
        (r"num_leaves=31", "num_leaves=30", "split_feature"),
        (r"num_leaves=31", "num_leaves=1000000000", "num_leaves"),
        (r"leaf_value=\S+", "leaf_value=nan", "leaf_value"),
        (r"decision_type=2 ", "decision_type=1 ", "decision_type"),
        (r"num_cat=0", "num_cat=1", "num_cat"),
        (r"num_class=1", "num_class=2", "num_class"),
        (r"objective=regression", "objective=custom", "objective"),
        (r"feature_names=log_size", "feature_names=size", "the model looks at size"),
        (r"end of trees", "", "expected a text"),
    ],
)
def test_damaged_text_is_refused(pattern: str, replacement: str, problem: str) -> None:
    damaged = re.sub(pattern, replacement, shipped_model(), count=1)
    with pytest.raises(ArgumentError, match=problem):
        learned_scores(generate_synthetic_trace(num_layers=1), damaged)


def test_a_threshold_beyond_all_finite_values_is_kept() -> None:
    text = re.sub(r"threshold=\S+", "threshold=inf", shipped_model(), count=1)
    checked = checked_model_text(text, FEATURES)
    assert "threshold=inf" in checked
    rows = np.random.default_rng(1).normal(size=(50, len(FEATURES)))
    assert np.isfinite(lightgbm.Booster(model_str=checked).predict(rows, num_threads=1)).all()
