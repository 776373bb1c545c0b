"""The peak that a trace tells is that of a real run, as the allocator saw it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from accelera import capture
from accelera.capture import live_bytes, peak_live_bytes
from accelera.trace import Kind, Trace
from benchmarks.models import small_references
from tests.capture.measured import training_peak_bytes
from tests.capture.reading import check_conserved

TOLERANCE = 0.02


@pytest.mark.parametrize("name", sorted(small_references()))
def test_of_models_without_their_weights(name: str) -> None:
    model = small_references()[name]
    trace = capture(model.build, model.inputs, steps=2)
    check_conserved(trace)
    told = trace.meta["peak_live_bytes"] + trace.meta["idle_bytes"]
    measured = training_peak_bytes(model.build(), model.inputs(), iterations=2)
    assert told == pytest.approx(measured, rel=TOLERANCE)


@settings(max_examples=8, deadline=None)
@given(
    widths=st.lists(st.integers(1, 200), min_size=2, max_size=5),
    batch=st.integers(1, 200),
    activation=st.sampled_from([nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU]),
)
def test_of_perceptrons_of_any_shape(widths: list[int], batch: int, activation: type[nn.Module]) -> None:
    parts = [part for i, o in pairwise(widths) for part in (nn.Linear(i, o), activation())]
    module, inputs = nn.Sequential(*parts), torch.randn(batch, widths[0])
    trace = capture(module, inputs, steps=2)
    check_conserved(trace)
    measured = training_peak_bytes(module, inputs, iterations=2)
    # The iteration's last temporaries are a few numbers of four bytes.
    assert trace.meta["peak_live_bytes"] == pytest.approx(measured, rel=TOLERANCE, abs=64)


def test_is_counted_from_the_events_alone() -> None:
    trace = Trace.from_arrays(
        [0, 1, 1, 2, 0, 2],
        [10, 4, 4, 7, 10, 7],
        kinds=[Kind.READ, Kind.WRITE, Kind.FREE, Kind.WRITE, Kind.READ, Kind.FREE],
        steps=[0, 0, 0, 1, 1, 1],
    )
    assert live_bytes(trace).tolist() == [10, 14, 10, 17, 17, 10]
    assert peak_live_bytes(trace) == 17
    assert peak_live_bytes(Trace.from_arrays([], [])) == 0


def test_what_is_made_again_after_a_free_is_alive_again() -> None:
    trace = Trace.from_arrays(
        [0, 0, 0, 1, 0], [10, 10, 10, 4, 10], kinds=[Kind.WRITE, Kind.FREE, Kind.WRITE, Kind.READ, Kind.FREE]
    )
    assert live_bytes(trace).tolist() == [14, 4, 14, 14, 4]


def test_weights_that_are_never_touched_are_idle() -> None:
    module = nn.Linear(4, 4)
    module.register_parameter("spare", nn.Parameter(torch.ones(10)))
    trace = capture(module, torch.ones(1, 4), optimizer=None)
    assert trace.meta["idle_bytes"] == 40
    assert "spare" not in trace.names
    assert np.all(live_bytes(trace) >= 0)
