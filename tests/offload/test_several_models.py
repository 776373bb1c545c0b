"""Several offloaded models: in one operation, with weights in common, and a model offloaded again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from accelera import offload, offloaded
from accelera.errors import DeviceError
from accelera.offload import OffloadedTensor
from accelera.offload.block_cache import BlockCache
from accelera.offload.config import OffloadConfig
from accelera.offload.module import swap_in
from tests.offload.pools import values


def _linear(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(64, 96, bias=False)


def _added(one: Any, other: Any) -> Any:
    return one.add_(other)


@pytest.mark.parametrize("blocks", [(4096, 4096), (65536, 4096), (4096, 65536), (65536, 65536)])
@pytest.mark.parametrize(
    "operation",
    [
        _added,
        lambda one, other: one.copy_(other),
        lambda one, other: one @ other.t(),
        lambda one, other: torch.cat([one, other]),
        lambda one, other: torch.equal(one, other),
        lambda one, other: one.lerp(other, 0.25).sum(),
    ],
)
def test_weights_of_two_models_in_one_operation(
    blocks: tuple[int, int], operation: Callable[[Any, Any], Any]
) -> None:
    plain, others = [_linear(1), _linear(2)], [_linear(1), _linear(2)]
    for model, block_bytes in zip(others, blocks, strict=True):
        swap_in(model, BlockCache(96 << 10, OffloadConfig(least_bytes=64, block_bytes=block_bytes)))
    with torch.no_grad():
        expected, result = (operation(one.weight, other.weight) for one, other in (plain, others))
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(values(result), values(expected))
        else:
            assert result == expected
        for one, other in zip(plain, others, strict=True):
            assert torch.equal(values(other.weight), one.weight)


def test_room_for_the_result_of_weights_of_two_models_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [_linear(1), _linear(2)]
    for model in others:
        swap_in(model, BlockCache(96 << 10, OffloadConfig(least_bytes=64)))
    asked: list[int] = []
    use = BlockCache.use

    def noted(self: BlockCache, uses: Any, op: str = "", output_bytes: int = 0) -> Any:
        asked.append(output_bytes)
        return use(self, uses, op, output_bytes)

    monkeypatch.setattr(BlockCache, "watched", True)
    monkeypatch.setattr(BlockCache, "use", noted)
    with torch.no_grad():
        result = torch.addmm(torch.ones(96, 96), others[0].weight, others[1].weight.t())
    assert sorted(asked) == [0, result.nbytes]


def _tied() -> tuple[nn.Module, nn.Module]:
    one, other = (nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256)) for _ in range(2))
    other[0].weight = one[0].weight
    return one, other


def test_another_model_holds_the_offloaded_weight_that_it_shares() -> None:
    one, other = _tied()
    x = torch.randn(2, 256)
    with torch.no_grad():
        expected = other(x)
        offload(one, "64MiB")
        assert isinstance(other[0].weight, OffloadedTensor)
        assert type(other[1].weight) is nn.Parameter
        assert torch.equal(other(x), expected)
        offloaded(one).restore()
        assert type(other[0].weight) is nn.Parameter
        assert torch.equal(other(x), expected)


def test_a_shared_weight_outlives_the_model_that_was_offloaded() -> None:
    one, other = _tied()
    x = torch.randn(2, 256)
    with torch.no_grad():
        expected = other(x)
        offload(one, "64MiB")
        del one
        assert torch.equal(other(x), expected)


def test_a_second_model_that_shares_a_weight_is_refused_and_left_as_it_was() -> None:
    one, other = _tied()
    offload(one, "64MiB")
    with pytest.raises(DeviceError, match=r"0\.weight.*another model.*ModuleList"):
        offload(other, "64MiB")
    assert type(other[1].weight) is nn.Parameter


def test_models_that_share_a_weight_are_offloaded_together() -> None:
    one, other = _tied()
    x = torch.randn(2, 256)
    with torch.no_grad():
        expected = one(x), other(x)
        both = offload(nn.ModuleList([one, other]), "64MiB")
        assert one[0].weight is other[0].weight
        assert offloaded(one).cache is offloaded(other).cache is offloaded(both).cache
        assert torch.equal(one(x), expected[0])
        assert torch.equal(other(x), expected[1])


@pytest.mark.parametrize("second", [lambda model: model, lambda model: model[0], nn.Sequential])
def test_what_is_offloaded_already_is_refused_whole_or_in_part(second: Any) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    offload(model, "64MiB")
    with pytest.raises(DeviceError, match=r"offloaded already|another model"):
        offload(second(model), "64MiB")
    offloaded(model).restore()
    offload(second(model), "32MiB")
