"""An offloaded weight does what a weight does, or says why not; its bytes stay where they are."""

from __future__ import annotations

import copy
import gc
import io
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import nn

import accelera
from accelera.errors import DeviceError
from accelera.offload import OffloadedTensor
from accelera.offload.block_cache import BlockCache
from accelera.offload.config import OffloadConfig
from accelera.offload.module import swap_in, swap_out
from accelera.offload.tensor import as_mapped, wrap
from tests.offload.pools import MAKERS, pair, same, values
from tests.threads import run_in_threads


def _mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64))


@pytest.fixture
def models() -> tuple[nn.Module, nn.Module]:
    return pair(_mlp())


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(4, 64, generator=torch.Generator().manual_seed(1))


def _both(models: Any, do: Callable[[nn.Module], Any]) -> bool:
    results = [do(model) for model in models]
    return same(*[[values(one) for one in r] if isinstance(r, (list, tuple)) else values(r) for r in results])


def test_it_is_a_parameter_that_tells_its_shape_without_reading(models: Any) -> None:
    weight = models[1][0].weight
    assert isinstance(weight, nn.Parameter)
    assert isinstance(weight, OffloadedTensor)
    assert weight.shape == (96, 64)
    assert weight.numel() == 96 * 64
    assert weight.requires_grad
    assert weight.is_leaf
    before = weight.cache.report().uses
    assert "0.weight" in repr(weight)
    assert "24.0 KiB" in repr(weight)
    assert "Linear" in str(models[1])
    assert weight.cache.report().uses == before


def test_autocast_casts_into_the_pool(models: Any, x: torch.Tensor) -> None:
    def run(model: nn.Module) -> Any:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            results = [model(x), model(x)]
            results[1].float().sum().backward()
        return [*results, *(one.grad for one in model.parameters())]

    assert _both(models, run)
    report = models[1][0].weight.cache.report()
    assert report.peak_bytes <= report.capacity_bytes


@pytest.mark.filterwarnings("ignore:Complex modules:UserWarning")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_types(dtype: torch.dtype) -> None:
    models = pair(nn.Linear(64, 96, dtype=dtype))
    x = torch.randn(4, 64).to(dtype)
    assert _both(models, lambda model: model(x))
    assert _both(models, lambda model: x @ model.weight.detach().conj().T)


@pytest.mark.filterwarnings("ignore:Complex modules:UserWarning")
def test_conjugated_and_negative_views_of_several_blocks() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(64, 96, dtype=torch.complex64)
    models: Any = plain, copy.deepcopy(plain)
    swap_in(models[1], BlockCache(96 << 10, OffloadConfig(least_bytes=64, block_bytes=4 << 10)))
    assert len(models[1].weight.blocks) > 1
    x = torch.randn(4, 64).to(torch.complex64)
    for do in (
        lambda weight: x @ weight.conj().T,
        lambda weight: weight.conj(),
        lambda weight: weight.conj().imag,
        lambda weight: weight.conj().sum(),
        lambda weight: torch.linalg.qr(weight.conj())[1],
    ):
        expected, result = (values(do(model.weight.detach())) for model in models)
        torch.testing.assert_close(result, expected)


def test_float8_buffers() -> None:
    class Eighths(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randn(64, 96).to(torch.float8_e4m3fn))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.to(torch.bfloat16)

    models = pair(Eighths())
    assert isinstance(models[1].weight, OffloadedTensor)
    assert _both(models, lambda model: model(torch.ones(4, 64, dtype=torch.bfloat16)))


def test_tied_weights_stay_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(50, 64), nn.Linear(64, 50, bias=False)
            self.head.weight = self.table.weight

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(index))

    models = pair(Tied())
    index = torch.arange(12).view(3, 4)
    for model in models:
        model(index).square().sum().backward()
    assert models[1].table.weight is models[1].head.weight
    assert _both(models, lambda model: [model(index), model.table.weight.grad])


def test_parameters_that_share_a_storage_still_do() -> None:
    model: Any = nn.Linear(32, 32, bias=False)
    model.turned = nn.Parameter(model.weight.detach().t())
    strides = model.turned.stride()
    swap_in(model, MAKERS["pool"]())
    with torch.no_grad():
        model.weight.fill_(3)
    assert bool((values(model.turned) == 3).all())
    assert model.turned.stride() == strides
    swap_out(model, model.weight.cache)
    assert model.weight.untyped_storage().data_ptr() == model.turned.untyped_storage().data_ptr()


def test_hooks(models: Any, x: torch.Tensor) -> None:
    x = x.requires_grad_()

    def run(model: nn.Module) -> Any:
        seen: list[torch.Tensor] = []
        model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        model[0].register_forward_hook(lambda module, args, result: result + 1)
        model[0].register_full_backward_hook(lambda module, given, taken: seen.append(taken[0]))
        model[0].weight.register_hook(lambda gradient: gradient * 3)
        model(x).sum().backward()
        return [*seen, model[0].weight.grad]

    assert _both(models, run)


def test_an_optimizer_and_hooks_from_before_go_on(x: torch.Tensor) -> None:
    model, seen = nn.Linear(64, 64), []
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    handle = model.weight.register_hook(lambda gradient: seen.append("gradient"))
    model.weight.register_post_accumulate_grad_hook(lambda weight: seen.append("accumulated"))
    before = model.weight.detach().clone()
    swap_in(model, MAKERS["pool"]())
    model(x).sum().backward()
    optimizer.step()
    handle.remove()
    model(x).sum().backward()
    assert seen == ["gradient", "accumulated", "accumulated"]
    assert not torch.equal(values(model.weight), before)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_function_transforms(models: Any, x: torch.Tensor) -> None:
    def loss(weight: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, weight).sin().sum()

    ones = torch.ones(96, 64)
    assert _both(models, lambda model: torch.func.grad(loss)(model[0].weight))
    assert _both(models, lambda model: torch.func.jvp(loss, (model[0].weight,), (ones,)))
    assert _both(models, lambda model: torch.func.vmap(model)(x))
    assert _both(models, lambda model: torch.func.functional_call(model, dict(model.named_parameters()), x))


def test_changes_in_place(models: Any) -> None:
    def run(model: nn.Module) -> list[torch.Tensor]:
        with torch.no_grad():
            weight = model[0].weight
            weight.mul_(2).add_(1)
            weight[3:5] = 7
            weight.data[0] = 0
            torch.mul(weight, weight, out=weight)
            torch.manual_seed(3)
            nn.init.xavier_uniform_(model[2].weight)
            model[2].bias.data = torch.ones(64)
        return list(model.parameters())

    assert _both(models, run)


@pytest.mark.parametrize("change", [lambda m: m.double(), lambda m: m.half().float(), lambda m: m.to("cpu")])
def test_conversions_of_the_module(models: Any, x: torch.Tensor, change: Any) -> None:
    for model in models:
        change(model)
    dtype = models[0][0].weight.dtype
    assert isinstance(models[1][0].weight, OffloadedTensor)
    assert models[1][0].weight.dtype == dtype
    assert _both(models, lambda model: model(x.to(dtype)))


def test_it_does_not_leave_its_device(models: Any) -> None:
    with pytest.raises(DeviceError, match="cannot be moved to meta"):
        models[1][0].weight.data = torch.empty(3, device="meta")


def test_state_can_be_saved_and_loaded_without_this_package(models: Any) -> None:
    plain, other = models
    file = io.BytesIO()
    torch.save(other.state_dict(), file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    assert all(type(one) is torch.Tensor for one in loaded.values())
    assert same(dict(loaded), dict(plain.state_dict()))
    plain[0].weight.data.zero_()
    other.load_state_dict(plain.state_dict())
    assert _both(models, lambda model: list(model.parameters()))
    plain.load_state_dict(other.state_dict())


@pytest.mark.parametrize("block_bytes", [1 << 16, 1000])
def test_the_bytes_of_a_state_dict_outlive_their_weight(block_bytes: int) -> None:
    cache = BlockCache(1 << 16, OffloadConfig(least_bytes=1, block_bytes=block_bytes))
    weight = wrap(cache, torch.arange(1000.0).view(10, 100))
    shown = as_mapped(weight)
    del weight
    gc.collect()
    cache.report()
    others = [wrap(cache, torch.zeros(10, 100)) for _ in range(3)]
    cache.flush()
    assert torch.equal(shown, torch.arange(1000.0).view(10, 100))
    assert all(not other.any() for other in others)


def test_the_module_can_be_pickled_and_copied(models: Any, x: torch.Tensor) -> None:
    plain, other = models
    file = io.BytesIO()
    torch.save(other, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert type(loaded[0].weight) is nn.Parameter
    assert same(loaded(x), plain(x))
    copied = copy.deepcopy(other)
    assert isinstance(copied[0].weight, OffloadedTensor)
    assert same(copied(x), plain(x))
    with torch.no_grad():
        copied[0].weight.zero_()
    assert same(other(x), plain(x))


def test_arrays_and_lists_are_copies(models: Any) -> None:
    plain, other = models
    array = other[0].weight.detach().numpy()
    assert np.array_equal(array, plain[0].weight.detach().numpy())
    assert not array.flags.writeable
    assert np.asarray(other[0].weight.detach(), dtype=np.float64).dtype == np.float64
    assert other[0].bias.tolist() == plain[0].bias.tolist()
    with pytest.raises(RuntimeError, match="requires grad"):
        other[0].weight.numpy()


@pytest.mark.parametrize("ask", ["data_ptr", "share_memory_"])
def test_what_needs_an_address_is_refused(models: Any, ask: str) -> None:
    with pytest.raises(DeviceError, match="materialized"):
        getattr(models[1][0].weight, ask)()


@pytest.mark.parametrize("name", ["resize_", "as_strided_"])
def test_other_shapes_in_place_are_refused(models: Any, name: str) -> None:
    with pytest.raises(DeviceError, match="without the underscore"):
        getattr(models[1][0].weight.detach(), name)((1, 2), *[(1, 1)] * (name == "as_strided_"))


def test_an_error_of_the_user_is_torchs_own_and_pins_nothing() -> None:
    model = _mlp()
    cache = MAKERS["copies"]()
    swap_in(model, cache)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        model(torch.randn(3, 5))
    assert cache.pinned == 0


def test_threads(models: Any, x: torch.Tensor) -> None:
    expected, results = models[0](x), []
    run_in_threads(*[lambda: results.append(models[1](x))] * 4)
    assert len(results) == 4
    assert all(same(one, expected) for one in results)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.filterwarnings("ignore")
def test_compiled(models: Any, x: torch.Tensor, backend: str) -> None:
    plain, other = models
    compiled = torch.compile(other, backend=backend)
    assert same(compiled(x), plain(x))
    with torch.no_grad():
        for model in models:
            model[0].weight.mul_(2)
    assert same(compiled(x), plain(x))
    torch.compiler.reset()


def test_given_back(models: Any, x: torch.Tensor) -> None:
    plain, other = models
    weight = other[0].weight
    swap_out(other, weight.cache)
    assert other[0].weight is weight
    assert type(weight) is nn.Parameter
    assert weight.requires_grad
    assert same(other(x), plain(x))
    assert weight.data_ptr()


def test_the_handle(tmp_path: Path, x: torch.Tensor) -> None:
    model = _mlp()
    expected = model(x)
    assert accelera.offload(model, "256MiB", tmp_path) is model
    small = [one for one in model.parameters() if not isinstance(one, OffloadedTensor)]
    assert len(small) == 4, "tensors below 64 KiB stay ordinary"
    with pytest.raises(DeviceError, match="offloaded already"):
        accelera.offload(model, "256MiB")
    assert accelera.offloaded(model).restore() is model
    assert same(model(x), expected)
    with pytest.raises(DeviceError, match="is not offloaded"):
        accelera.offloaded(nn.Linear(2, 2))


def test_ending_the_model_ends_the_pool(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    others = set(threading.enumerate())
    accelera.offload(model, "256MiB", tmp_path)
    model(torch.randn(2, 256))
    cache = weakref.ref(accelera.offloaded(model).cache)
    movers = [each for each in threading.enumerate() if each not in others and "accelera-" in each.name]
    assert movers
    del model
    gc.collect()
    assert cache() is None
    for each in movers:
        each.join(300)
    assert not [each for each in movers if each.is_alive()]


def test_a_model_without_values_is_refused() -> None:
    with torch.device("meta"):
        model = nn.Linear(256, 256)
    with pytest.raises(DeviceError, match="meta device"):
        accelera.offload(model, "256MiB")
