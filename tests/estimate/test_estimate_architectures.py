"""What many architectures take, estimated from shapes, beside what torch's allocator counts in a real run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from accelera import estimate
from tests.capture.measured import inference_peak_bytes, training_peak_bytes
from tests.estimate.architectures import architectures

TOLERANCE = 0.05
"""What ``estimate`` promises."""


def converted(inputs: Any, dtype: str) -> Any:
    kind = getattr(torch, dtype)
    return pytree.tree_map(lambda each: each.to(kind) if each.is_floating_point() else each, inputs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(architectures()))
def test_the_allocator_counts_what_was_estimated(name: str, dtype: str) -> None:
    if (name, dtype) == ("unet", "bfloat16") and not torch.cpu._is_amx_tile_supported():
        pytest.skip("without AMX each thread takes 590 KB for this model's convolutions, in some runs")
    model = architectures()[name]
    told = estimate(model.build, model.inputs, dtypes=[dtype])
    inputs, kind = converted(model.inputs(), dtype), getattr(torch, dtype)
    took = {
        "inference": inference_peak_bytes(model.build().to(kind), inputs),
        "training": training_peak_bytes(model.build().to(kind), inputs, iterations=2),
    }
    estimated = {phase: told.phase(phase, dtype).peak_bytes for phase in took}
    assert estimated == pytest.approx(took, rel=TOLERANCE)


@pytest.mark.parametrize("keep_outputs", [True, False])
def test_a_loop_that_keeps_the_outputs_takes_more(keep_outputs: bool) -> None:
    model = architectures()["llama"]
    wanted: dict[str, Any] = {"dtypes": ["float32"], "train": True, "keep_outputs": keep_outputs}
    told = estimate(model.build, model.inputs, **wanted).phase("training")
    took = training_peak_bytes(model.build(), model.inputs(), iterations=2, keep_outputs=keep_outputs)
    assert told.peak_bytes == pytest.approx(took, rel=0.01)
    logits, cache, loss = 4 * 96 * 1000 * 4, 2 * 2 * 4 * 96 * 192 * 4, 4
    assert told.outputs_bytes == (logits + cache + loss if keep_outputs else 0)


def test_inference_may_keep_what_the_pass_before_returned() -> None:
    model = architectures()["unet"]
    freed, kept = (
        estimate(model.build, model.inputs, train=False, dtypes=["float32"], keep_outputs=keep).phase(
            "inference"
        )
        for keep in (None, True)
    )
    assert kept.peak_bytes == freed.peak_bytes + kept.outputs_bytes
    assert kept.outputs_bytes == 2 * 3 * 96 * 96 * 4
