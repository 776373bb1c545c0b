"""Connectionist temporal classification against PyTorch: losses and gradients of random samples, errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.tensora import functional, nn


@dataclass
class Sample:
    """Logits, labels and lengths."""

    logits: Any
    targets: Any
    input_lengths: Any
    target_lengths: Any
    blank: int

    @staticmethod
    def drawn(seed: int) -> Sample:
        random = np.random.default_rng(seed)
        ranges = ((1, 12), (1, 5), (2, 7), (1, 6))
        times, batch, classes, longest = (int(random.integers(*each)) for each in ranges)
        blank = int(random.integers(0, classes))
        labels = np.array([each for each in range(classes) if each != blank])
        return Sample(
            random.normal(size=(times, batch, classes)),
            labels[random.integers(0, classes - 1, (batch, longest))],
            random.integers(1, times + 1, batch),
            random.integers(0, longest + 1, batch),
            blank,
        )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.sampled_from(["none", "mean", "sum"]), st.booleans())
def test_losses_and_gradients_are_pytorchs(seed: int, reduction: str, zero_infinity: bool) -> None:
    sample = Sample.drawn(seed)
    options: dict[str, Any] = {"reduction": reduction, "zero_infinity": zero_infinity, "blank": sample.blank}
    theirs = torch.tensor(sample.logits, requires_grad=True)
    expected = torch.nn.functional.ctc_loss(
        theirs.log_softmax(2),
        torch.tensor(sample.targets),
        torch.tensor(sample.input_lengths),
        torch.tensor(sample.target_lengths),
        **options,
    )
    ours = ts.tensor(sample.logits, requires_grad=True)
    found = functional.ctc_loss(
        functional.log_softmax(ours, dim=2),
        ts.tensor(sample.targets),
        ts.tensor(sample.input_lengths),
        ts.tensor(sample.target_lengths),
        **options,
    )
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-9)
    expected.sum().backward()
    found.sum().backward()
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-7, atol=1e-12)


def test_labels_one_after_the_other_and_a_single_sample_are_the_same() -> None:
    logits = ts.tensor(np.random.default_rng(0).normal(size=(9, 2, 5)))
    log_probs = functional.log_softmax(logits, dim=2)
    padded = nn.CTCLoss(reduction="none")(log_probs, ts.tensor([[1, 2, 2], [3, 4, 0]]), [9, 7], [3, 2])
    joined = functional.ctc_loss(log_probs, ts.tensor([1, 2, 2, 3, 4]), [9, 7], [3, 2], reduction="none")
    first = functional.ctc_loss(log_probs[:, 0], ts.tensor([1, 2, 2]), 9, 3, reduction="none")
    assert padded.tolist() == joined.tolist()
    assert first.item() == padded[0].item()


def test_a_network_learns_a_sequence() -> None:
    weight = ts.zeros((10, 1, 4)).requires_grad_()
    losses = []
    for _ in range(60):
        weight.grad = None
        loss = functional.ctc_loss(functional.log_softmax(weight, dim=2), ts.tensor([[1, 1, 3]]), [10], [3])
        loss.backward()
        weight.detach()[...] = weight.detach() - weight.grad
        losses.append(loss.item())
    best = np.argmax(weight.detach().numpy()[:, 0], 1).tolist()
    labels = [a for a, b in zip(best, [0, *best[:-1]], strict=True) if a not in (0, b)]
    assert labels == [1, 1, 3]
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"blank": 5}, "blank=5"),
        ({"reduction": "max"}, "reduction='max'"),
        ({"input_lengths": [10, 9]}, "give input lengths from 0 to 9"),
        ({"input_lengths": [9]}, "1 input lengths and 2 target lengths for a batch of 2"),
        ({"target_lengths": [3, 4]}, "target lengths \\[3, 4\\]"),
        ({"targets": [[1, 0, 1], [1, 1, 1]]}, "a label is 0, the blank"),
        ({"targets": [[1, 5, 1], [1, 1, 1]]}, "not in 0 to 4"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    fitting: dict[str, Any] = {
        "targets": [[1, 2, 2], [3, 4, 1]],
        "input_lengths": [9, 9],
        "target_lengths": [3, 2],
    }
    options = fitting | change
    targets = ts.tensor(options.pop("targets"))
    with pytest.raises(ValueError, match=words):
        functional.ctc_loss(ts.zeros((9, 2, 5)), targets, **options)
