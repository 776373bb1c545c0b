"""Values that follow from small inputs are known on fake tensors, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import DataDependentOutputException

from accelera import capture
from accelera.capture import peak_live_bytes
from accelera.capture._internal import ShapeMode, as_fake

Change = Callable[[list[torch.Tensor]], torch.Tensor]

CHANGES: dict[str, Change] = {
    "add": lambda held: held[-1] + held[0].sum(),
    "compare": lambda held: (held[-1] > held[0].sum() // held[0].numel()).long(),
    "row": lambda held: held[-1].reshape(-1)[:3],
    "transpose": lambda held: held[-1].T if held[-1].dim() == 2 else held[-1],
    "change a view": lambda held: held[0][0].add_(5),
    "change all": lambda held: held[-1].mul_(2),
    "fill": lambda held: held[0][..., 1:2].fill_(7),
    "index": lambda held: held[0][held[0] > 3],
    "put": lambda held: held[0].index_put_((torch.tensor([0]),), torch.tensor(9)),
    "places": lambda held: (held[-1] > 2).nonzero(),
    "unique": lambda held: torch.unique(held[-1]),
    "arange": lambda held: torch.arange(max(0, int(held[-1].sum())) % 7 + 1),
    "repeat": lambda held: held[-1].reshape(-1)[:2].repeat_interleave(held[0].reshape(-1)[:1].abs() % 4),
    "float": lambda held: (held[-1].float() * 1.5).long(),
    "sorted": lambda held: held[-1].reshape(-1).sort().values,
    "cat": lambda held: torch.cat([held[0].reshape(-1), held[-1].reshape(-1)]),
}


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(-3, 9), min_size=6, max_size=6),
    st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=8),
)
def test_every_value_is_that_of_a_real_run(numbers: list[int], names: list[str]) -> None:
    real = [torch.tensor(numbers).reshape(2, 3)]
    mode = ShapeMode()
    fake = [as_fake(real[0].clone(), mode)]
    for name in names:
        if real[-1].numel() == 0:
            break
        real.append(CHANGES[name](real))
        with mode:
            fake.append(CHANGES[name](fake))
    with mode:
        for expected, actual in zip(real, fake, strict=True):
            assert actual.shape == expected.shape
            assert actual.tolist() == expected.tolist()


UNKNOWN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "drawn": lambda x: torch.randint(9, (3,)) + x,
    "drawn in place": lambda x: x.random_(),
    "written from an unknown tensor": lambda x: x.copy_(torch.randint(9, (3,))),
    "a view that is written": lambda x: (x[1:].copy_(torch.randint(9, (2,))), x)[1],
    "a write to its base": lambda x: (x[:2], x.copy_(torch.randint(9, (3,))))[0],
    "without contents": lambda x: torch.empty_like(x),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_does_not_follow_from_inputs_stays_unknown(name: str) -> None:
    mode = ShapeMode()
    x = as_fake(torch.tensor([1, 2, 3]), mode)
    with mode, pytest.raises(DataDependentOutputException):
        UNKNOWN[name](x).sum().item()


def test_large_inputs_and_inputs_on_meta_are_unknown() -> None:
    mode = ShapeMode()
    large = as_fake(torch.zeros(1 << 21, dtype=torch.int8), mode)
    with torch.device("meta"):
        without_contents = torch.zeros(3, dtype=torch.long)
    with mode:
        for each in (large, as_fake(without_contents, mode)):
            with pytest.raises(DataDependentOutputException):
                each.sum().item()


class Selecting(torch.nn.Module):
    """Reads counts and places from its inputs, as vision-language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 16)
        self.patch = torch.nn.Linear(12, 16)

    def forward(self, tokens: Any, patches: Any, sizes: Any) -> torch.Tensor:
        parts = [rows[: int(size)] for rows, size in zip(patches, sizes.tolist(), strict=True)]
        images = self.patch(torch.cat(parts))
        mask = tokens == 7
        if int(mask.sum()) != images.shape[0]:
            raise ValueError("images and image tokens do not match")
        text = self.embedding(tokens)
        assert text[mask].shape == images.shape
        offsets = torch.tensor([sizes[0], sizes.max()])
        return text.masked_scatter(mask[..., None].expand_as(text), images) * offsets.sum()


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("sizes", [(2, 3), (0, 1), (4, 4)])
def test_a_capture_of_shapes_equals_that_of_a_real_run(sizes: tuple[int, int], inference: bool) -> None:
    tokens = torch.arange(10, 22)[None].clone()
    tokens[:, 1 : 1 + sum(sizes)] = 7
    inputs = (tokens, torch.randn(2, 4, 12), torch.tensor(sizes))
    with torch.inference_mode(inference):
        traces = [capture(Selecting(), inputs, train=False, fake=fake) for fake in (False, True)]
    assert peak_live_bytes(traces[0]) == peak_live_bytes(traces[1])
