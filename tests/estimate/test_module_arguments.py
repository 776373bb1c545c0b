"""Estimates of convolutions and pooling by every form in which their arguments can be given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import accelera

SIDE = 12
CONVOLUTIONS: Any = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: Any = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
POOLS = [nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool2d, nn.AvgPool3d]
ADAPTIVE = [nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool2d]


def image(axes: int, channels: int = 6) -> torch.Tensor:
    return torch.zeros(2, channels, *[SIDE] * axes)


def peaks(model: nn.Module, x: torch.Tensor) -> list[int]:
    """Return the estimated peaks of inference and training, after a check that torch runs the model."""
    model(x).sum().backward() if any(True for _ in model.parameters()) else model(x)
    found = accelera.estimate(model, x, dtypes=["float32"])
    return [phase.peak_bytes for phase in found.phases]


@pytest.mark.parametrize(
    ("axes", "groups", "mode"), [(1, 1, "zeros"), (2, 2, "zeros"), (2, 1, "circular"), (3, 1, "zeros")]
)
def test_padding_by_name_is_padding_by_number(axes: int, groups: int, mode: str) -> None:
    build = CONVOLUTIONS[axes]
    options: dict[str, Any] = {"groups": groups, "padding_mode": mode}
    x = image(axes)
    by_number = peaks(build(6, 8, 3, padding=0, **options), x)
    assert peaks(build(6, 8, 3, padding="valid", **options), x) == by_number
    same = peaks(build(6, 8, 3, padding="same", dilation=2, **options), x)
    assert same == peaks(build(6, 8, 3, padding=2, dilation=2, **options), x)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("axes", [2, 3])
def test_uneven_padding_by_name(axes: int) -> None:
    """Filters of an even width are padded on one side more, by an operation before the convolution."""
    assert peaks(CONVOLUTIONS[axes](6, 8, 4, padding="same"), image(axes))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_numbers_for_all_axes_are_one_per_axis(axes: int) -> None:
    for build in (CONVOLUTIONS[axes], TRANSPOSED[axes]):
        once = build(6, 8, 3, stride=2, padding=1, dilation=1)
        each = build(6, 8, (3,) * axes, stride=(2,) * axes, padding=(1,) * axes, dilation=(1,) * axes)
        assert peaks(once, image(axes)) == peaks(each, image(axes))


@pytest.mark.parametrize("axes", [2, 3])
def test_functions_with_one_number(axes: int) -> None:
    class Functional(nn.Module):
        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, 6, *[3] * axes))
            self.options = options

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return getattr(nn.functional, f"conv{axes}d")(x, self.weight, **self.options)

    expected = peaks(Functional(stride=(2,) * axes, padding=(1,) * axes), image(axes))
    assert peaks(Functional(stride=[2], padding=[1]), image(axes)) == expected


@pytest.mark.parametrize("build", POOLS)
def test_pools(build: Any) -> None:
    axes = int(build.__name__[-2])
    dilation = {"dilation": 2} if "Max" in build.__name__ else {}
    for option in ({"padding": 1}, {"ceil_mode": True, "stride": 2, **dilation}):
        model = nn.Sequential(CONVOLUTIONS[axes](6, 6, 1), build(3, **option))
        assert peaks(model, image(axes))


@pytest.mark.parametrize("build", ADAPTIVE)
def test_adaptive_pools(build: Any) -> None:
    axes = int(build.__name__[-2])
    for size in (5, (None,) * axes if axes > 1 else 1):
        model = nn.Sequential(CONVOLUTIONS[axes](6, 6, 1), build(size))
        assert peaks(model, image(axes))
