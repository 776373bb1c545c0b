"""einops and TensorBoard with tensors of Tensora: gradients flow, and events hold the numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import accelera.tensora as ts

einops = pytest.importorskip("einops", reason="einops is part of the dev extra")
array_api = pytest.importorskip("einops.array_api", reason="einops is part of the dev extra")

CUBE = np.random.default_rng(3).normal(size=(2, 3, 4))
CASES: dict[str, Callable[[Any, Any], Any]] = {
    "rearrange": lambda library, x: library.rearrange(x, "a b c -> (c a) b"),
    "split": lambda library, x: library.rearrange(x, "a b (c d) -> a d b c", d=2),
    "mean": lambda library, x: library.reduce(x, "a b c -> a c", "mean"),
    "max": lambda library, x: library.reduce(x, "a b c -> b", "max"),
    "repeat": lambda library, x: library.repeat(x, "a b c -> a (b r) c", r=3),
    "pack": lambda library, x: library.pack([x, x], "a *")[0],
}


def compare_with_torch(compute: Callable[[Any], Any], expected_of: Callable[[Any], Any]) -> None:
    x, reference = ts.tensor(CUBE, requires_grad=True), torch.tensor(CUBE, requires_grad=True)
    actual, expected = compute(x), expected_of(reference)
    assert isinstance(actual, ts.Tensor)
    np.testing.assert_allclose(actual.detach().numpy(), expected.detach().numpy())
    (actual * actual).sum().backward()
    (expected * expected).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), reference.grad.numpy())


@pytest.mark.parametrize("case", CASES)
def test_einops_gradients_equal_those_of_torch(case: str) -> None:
    compare_with_torch(lambda x: CASES[case](array_api, x), lambda x: CASES[case](einops, x))


def test_einsum_gradients_equal_those_of_torch() -> None:
    compare_with_torch(
        lambda x: ts.einsum("abc,adc->bd", x, x), lambda x: einops.einsum(x, x, "a b c, a d c -> b d")
    )


def test_tensorboard_events_hold_the_numbers(tmp_path: Path) -> None:
    writers = pytest.importorskip("tensorboardX", reason="tensorboardX is part of the dev extra")
    records = pytest.importorskip("tensorboardX.proto.event_pb2")
    weight = ts.tensor(CUBE, requires_grad=True)
    loss = (weight * weight).sum()
    with writers.SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", loss.item(), 1)
        writer.add_histogram("weight", weight.detach().numpy(), 1)
    (file,) = tmp_path.iterdir()
    events = read_events(file.read_bytes(), records.Event)
    values = {value.tag: value for event in events for value in event.summary.value}
    assert values["loss"].simple_value == pytest.approx((CUBE**2).sum())
    histogram = values["weight"].histo
    assert (histogram.num, histogram.min, histogram.max) == (CUBE.size, CUBE.min(), CUBE.max())
    assert histogram.sum == pytest.approx(CUBE.sum())


def read_events(data: bytes, kind: Any) -> list[Any]:
    """Return the events of a file; each is between 8 bytes of length, 4 of checksum, and 4 of checksum."""
    events, place = [], 0
    while place < len(data):
        length = int.from_bytes(data[place : place + 8], "little")
        events.append(kind.FromString(data[place + 12 : place + 12 + length]))
        place += 16 + length
    return events
