"""Budgets by device: a model on simulated accelerators, the rest in bounded RAM and in files."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from accelera import offload, offload_checkpoint, offloaded, plan_offload
from accelera.devices import SimulatedDevice
from accelera.errors import ArgumentError, BudgetExceededError, DeviceError, UnknownNameError
from accelera.offload.api import load_code
from accelera.offload.backing import RamBacking, RamRegion
from accelera.offload.memory_guard import ArenaCount, arenas_in_torch
from accelera.offload.multi_device import units_of
from accelera.testing import FakeCuda
from tests.offload.language_model import language_model, train
from tests.offload.pools import same, values
from tests.offload.training_models import losses_by

MIB = 1 << 20

pytestmark = pytest.mark.skipif(not arenas_in_torch(), reason="the library for this torch is not built")


def device(name: str = "sim", capacity: str = "64MiB") -> SimulatedDevice:
    return SimulatedDevice(capacity, name=name)


def layers(count: int = 8, width: int = 512) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))


def weights_of(one: nn.Module, other: nn.Module) -> Any:
    return zip(one.parameters(), other.parameters(), strict=True)


def file_bytes(folder: Path) -> int:
    """Return the room that scratch files in ``folder`` take; they have no name, only descriptors."""
    taken = {}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target, facts = os.readlink(f"/proc/self/fd/{descriptor}"), os.stat(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith(str(folder)):
            taken[facts.st_ino] = facts.st_blocks * 512
    return sum(taken.values())


@pytest.fixture
def ram_peak(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of slabs in RAM after each that was made, counted by their lives."""
    load_code()  # makes a small home of its own, once in a process
    alive: dict[int, int] = {}
    peaks: list[int] = []
    create, release = RamBacking.create, RamRegion.release

    def counted(self: RamBacking, nbytes: int, *args: Any) -> RamRegion:
        home = create(self, nbytes, *args)
        alive[id(home)] = home.slab.nbytes
        peaks.append(sum(alive.values()))
        return home

    def released(self: RamRegion) -> None:
        alive.pop(id(self), None)
        release(self)

    monkeypatch.setattr(RamBacking, "create", counted)
    monkeypatch.setattr(RamRegion, "release", released)
    return peaks


@pytest.mark.parametrize(
    ("budget", "error", "says"),
    [
        ({}, ArgumentError, "names no device"),
        ({"cpu": "64MiB", "CPU": "1GiB"}, ArgumentError, "'CPU' is cpu, which has a budget already"),
        ({"cpu": "64MiB", torch.device("cpu"): "1GiB"}, ArgumentError, "has a budget already"),
        ({"sim:64MiB": 0}, ArgumentError, "leaves no memory"),
        ({"sim:64MiB": None}, ArgumentError, "has no size"),
        ({"sim:64MiB": "much"}, ArgumentError, "'much' is not a size"),
        ({"sim:64MiB": -5}, ArgumentError, "not negative"),
        ({"sim:64MiB": "65MiB"}, ArgumentError, "the device has 67108864"),
        ({"nope": "1GiB"}, UnknownNameError, "known: cpu"),
        ({"disk": "1GiB"}, UnknownNameError, "known: cpu"),
        ({"cuda:0": "1GiB", "cpu": "1GiB"}, DeviceError, "cuda:0 was asked for"),
        ({0: "1GiB"}, DeviceError, "cuda:0 was asked for"),
        ({"sim:64MiB": "2MiB"}, BudgetExceededError, "raise it to at least"),
    ],
)
def test_budgets_that_are_none_are_refused(
    budget: Any, error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    model = nn.Linear(300, 300)
    with pytest.raises(error, match=says):
        offload(model, budget)
    assert type(model.weight) is nn.Parameter


def test_a_device_beside_budgets_by_device_is_refused() -> None:
    model = nn.Linear(300, 300)
    with pytest.raises(ArgumentError, match="these say which devices compute"):
        offload(model, {"sim:64MiB": "32MiB"}, device="cpu")
    with pytest.raises(ArgumentError, match="these say which devices compute"):
        plan_offload(model, torch.ones(1, 300), {"sim:64MiB": "32MiB"}, device="cpu")


def test_a_budget_of_the_cpu_alone_is_the_budget() -> None:
    handles = [offloaded(offload(layers(2), budget)) for budget in ("48MiB", {"cpu": "48MiB"})]
    assert len({handle.report().capacity_bytes for handle in handles}) == 1
    assert {str(handle.cache.device) for handle in handles} == {"cpu"}
    assert not any(handle.report().home_bytes for handle in handles)


def test_ram_beside_an_accelerator_is_bounded_and_files_take_the_rest(
    tmp_path: Path, ram_peak: list[int]
) -> None:
    """8 MiB of weights, 3 MiB of RAM: 5 MiB are in files of ``store``."""
    plain, x = layers(), torch.randn(4, 512)
    model, simulated = copy.deepcopy(plain), device()
    with torch.no_grad():
        expected = plain(x)
        offload(model.eval(), {simulated: "12MiB", "cpu": "3MiB"}, store=tmp_path)
        for _ in range(3):
            assert torch.equal(model(x), expected)
    handle = offloaded(model)
    assert handle.report().home_bytes == {"ram": 3 * MIB, "files": 5 * MIB}
    assert max(ram_peak) == 3 * MIB
    assert 5 * MIB <= file_bytes(tmp_path) < 5 * MIB + 65536
    facts = simulated.report()
    assert 0 < facts.peak_bytes <= handle.report().capacity_bytes < 12 * MIB
    assert facts.bytes_up == handle.report().bytes_read > 8 * MIB
    handle.restore()
    assert all(same(one, other) for one, other in weights_of(plain, model))
    assert handle.report().home_bytes == {"ram": 0, "files": 0}


def test_training_takes_no_more_ram_than_its_budget(tmp_path: Path, ram_peak: list[int]) -> None:
    """Gradients, which come and go with every step, and states use the RAM that others gave back."""
    plain = layers(4)
    model, x = copy.deepcopy(plain), torch.randn(64, 512)
    offload(model, {"sim:64MiB": "16MiB", "cpu": "6MiB"}, store=tmp_path)
    for one in (plain, model):
        optimizer = torch.optim.AdamW(one.parameters(), lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            one(x).square().mean().backward()
            optimizer.step()
    assert all(
        same(values(a), values(b)) for a, b in zip(plain.parameters(), model.parameters(), strict=True)
    )
    assert 5 * MIB < max(ram_peak) <= 6 * MIB
    assert file_bytes(tmp_path) > 0


def test_a_plan_for_an_accelerator_and_ram() -> None:
    model, x = layers(), torch.randn(4, 512)
    with torch.no_grad():
        expected = model(x)
    model.eval()
    plan = plan_offload(model, x, {"sim:64MiB": "12MiB", "cpu": "3MiB"}, train=False)
    assert (plan.tier, plan.home, plan.budget_bytes) == ("sim", "disk", 12 * MIB)
    assert plan_offload(model, x, {"sim:64MiB": "12MiB", "cpu": "30MiB"}).home == "ram"
    offload(model, {"sim:64MiB": "12MiB", "cpu": "3MiB"}, inputs=x)
    with torch.no_grad():
        assert torch.equal(model(x), expected)
    assert offloaded(model).plan is not None
    assert offloaded(model).report().peak_bytes <= plan.peak_pool_bytes


def test_what_leaves_memory_is_priced_as_the_place_where_it_goes() -> None:
    model, x = layers(6), torch.randn(2048, 512)
    plans = [
        plan_offload(model, x, {"sim:64MiB": "24MiB", "cpu": ram}, train=True) for ram in ("1MiB", "200MiB")
    ]
    assert [plan.home for plan in plans] == ["disk", "ram"]
    disk, ram = (plan.activation_plan for plan in plans)
    assert disk is not None
    assert ram is not None
    assert disk.bytes_by_fate() == ram.bytes_by_fate()
    assert disk.added_s == pytest.approx(ram.added_s * 8.5)


def test_a_checkpoint_on_an_accelerator_beside_bounded_ram(tmp_path: Path) -> None:
    plain, x = layers(4), torch.randn(4, 512)
    offload(plain, "64MiB")
    offloaded(plain).save(tmp_path)
    opened = offload_checkpoint(tmp_path, lambda: layers(4), budget={"sim:64MiB": "12MiB", "cpu": "1MiB"})
    with torch.no_grad():
        assert torch.equal(opened(x), plain(x))


class Peaks:
    """Most bytes of blocks and tensors together that each device's arena held, across all resets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: dict[int, int] = {}
        restart = ArenaCount.restart_peak

        def restarted(count: ArenaCount) -> int:
            self.note(count.arena)
            return restart(count)

        monkeypatch.setattr(ArenaCount, "restart_peak", restarted)

    def note(self, arena: Any) -> int:
        most = self.of[id(arena)] = max(self.of.get(id(arena), 0), arena.peak_bytes)
        return most


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> Peaks:
    return Peaks(monkeypatch)


def check_peaks(model: nn.Module, budgets: dict[Any, Any], peaks: Peaks) -> None:
    """Each device held at most its budget, and something."""
    for cache, (one, budget) in zip(offloaded(model).caches, budgets.items(), strict=False):
        assert 0 < peaks.note(cache.scope.arena) <= int(budget[:-3]) * MIB
        assert 0 < one.report().peak_bytes <= cache.capacity_bytes


def is_on(tensor: torch.Tensor, cache: Any) -> bool:
    """Whether a tensor beside the blocks lies in the memory of a simulated device."""
    return bool(cache.scope.arena.block_at(tensor.untyped_storage().data_ptr()) >= 0)


def losses_of(model: nn.Module, x: torch.Tensor, steps: int = 3) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return losses_by(optimizer, lambda _: model(x).square().mean(), steps)


def over_two(model: nn.Module) -> nn.Module:
    return offload(model, {device("one"): "16MiB", device("two"): "16MiB"})


def test_a_model_over_two_devices_and_ram_gives_the_same_bits(
    tmp_path: Path, ram_peak: list[int], peaks: Peaks
) -> None:
    """16 MiB of weights in 12 + 24 MiB, cut 1 : 2; what is not there is in 5 MiB of RAM and in files."""
    plain, x = layers(16).eval(), torch.randn(32, 512)
    model = copy.deepcopy(plain)
    budgets = {device("one"): "12MiB", device("two"): "24MiB", "cpu": "5MiB"}
    offload(model, budgets, store=tmp_path)
    handle = offloaded(model)
    assert [handle.caches.index(each.weight.cache) for each in model] == [0] * 5 + [1] * 11
    with torch.no_grad():
        expected = plain(x)
        for _ in range(3):
            assert torch.equal(model(x), expected)
    report, crossing = handle.report(), 3 * x.nbytes
    there = [("host", "one"), ("one", "two"), ("two", "one")]
    assert report.crossed_bytes == dict.fromkeys(there, crossing)
    assert [each.device for each in report.by_device] == ["one", "two"]
    assert report.uses == sum(each.uses for each in report.by_device) >= 3 * 16
    assert report.home_bytes == {"ram": 5 * MIB, "files": 11 * MIB}
    assert max(ram_peak) == 5 * MIB
    assert file_bytes(tmp_path) >= 11 * MIB
    check_peaks(model, budgets, peaks)
    assert "one, two" in repr(handle)


class Half(nn.Module):
    """A product, and an operation without weights; looks where its tensors and gradients lie."""

    def __init__(self, seen: list[bool]) -> None:
        super().__init__()
        self.linear: Any = nn.Linear(512, 512)
        self.seen = seen

    def forward(self, x: torch.Tensor, *, mask: tuple[torch.Tensor, int]) -> torch.Tensor:
        product = self.linear(x) + mask[0]
        result = nn.functional.gelu(product)
        for each in (x, mask[0], product, result):
            self.note(each)
        for each in (product, result):
            each.register_hook(self.note)
        return result

    def note(self, tensor: torch.Tensor) -> None:
        self.seen.append(is_on(tensor, self.linear.weight.cache))


class Halves(nn.Module):
    """Gives all its units one mask."""

    def __init__(self, seen: list[bool]) -> None:
        super().__init__()
        self.units = nn.ModuleList(Half(seen) for _ in range(6))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        mask = torch.ones(len(x), 1).expand_as(x).contiguous()
        for unit in self.units:
            x = unit(x, mask=(mask, 1))
        return {"result": x}


def test_what_a_unit_works_with_lies_on_its_device() -> None:
    """Arguments, intermediate values, results and gradients: in the memory where the unit's weights are."""
    seen: list[bool] = []
    model, x = Halves(seen), torch.randn(64, 512)
    offload(model, {device("one"): "16MiB", device("two"): "16MiB", device("three"): "16MiB"})
    y = model(x)["result"]
    assert is_on(y, offloaded(model).caches[0])
    y.square().mean().backward()
    assert seen == [True] * 6 * 6
    once = [("host", "one"), ("two", "three"), ("three", "one"), ("two", "one"), ("three", "two")]
    with_masks = [("one", "two"), ("one", "three")]  # to two units each
    crossed = dict.fromkeys(once, x.nbytes) | dict.fromkeys(with_masks, 3 * x.nbytes)
    assert offloaded(model).report().crossed_bytes == crossed


@pytest.mark.parametrize("activations", ["auto", "offload", "keep", "recompute"])
def test_training_over_two_devices_gives_the_same_bits(activations: str, peaks: Peaks) -> None:
    plain, x = layers(6), torch.randn(256, 512)
    model = copy.deepcopy(plain)
    budgets: dict[Any, Any] = {device("one"): "20MiB", device("two"): "20MiB"}
    offload(model, budgets, activations=activations, record=True)
    assert losses_of(model, x) == losses_of(plain, x)
    for one, other in weights_of(plain, model):
        assert same(values(one), values(other))
        assert same(values(one.grad), values(other.grad))
    for unit in model:
        assert unit.weight.grad.cache is unit.weight.cache
    saved = ["activation" in cache.trace().roles for cache in offloaded(model).caches]
    assert saved == [activations != "keep"] * 2
    with pytest.raises(ValueError, match="each device has a trace"):
        offloaded(model).trace()
    check_peaks(model, budgets, peaks)


def test_a_tie_across_the_boundary(tmp_path: Path, peaks: Peaks) -> None:
    """The last layer's weight is the embedding's: it runs on the first device, last."""
    sizes = {"words": 2000, "width": 128, "blocks": 4}
    plain: Any = language_model(**sizes)
    model: Any = language_model(**sizes)
    budgets: dict[Any, Any] = {device("one"): "16MiB", device("two"): "16MiB", "cpu": "2MiB"}
    offload(model, budgets, store=tmp_path)
    handle = offloaded(model)
    assert model.head.weight is model.words.weight
    assert model.head.weight.cache is handle.caches[0]
    assert model.blocks[3].wide.weight.cache is handle.caches[1]
    seen: list[bool] = []
    model.head.register_forward_pre_hook(lambda _, args: seen.append(is_on(args[0], handle.caches[0])))
    assert train(model, 3, micro_batches=2) == train(plain, 3, micro_batches=2)
    assert all(same(values(one), values(other)) for one, other in weights_of(plain, model))
    assert seen == [True] * 6
    moved = handle.report().crossed_bytes
    assert moved["one", "two"] > 0 < moved["two", "one"]
    assert handle.report().home_bytes["ram"] <= 2 * MIB
    check_peaks(model, budgets, peaks)


@pytest.mark.filterwarnings("ignore")
def test_gpt2_generates_and_trains_the_same() -> None:
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_layer": 4, "n_head": 4, "n_embd": 128, "vocab_size": 1000, "n_positions": 64}
    plain = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    model = over_two(copy.deepcopy(plain))
    assert model.lm_head.weight is model.transformer.wte.weight
    assert len({each.attn.c_attn.weight.cache for each in model.transformer.h}) == 2
    ids = torch.randint(1, 1000, (2, 7))
    how = {"max_new_tokens": 6, "pad_token_id": 0, "eos_token_id": None}
    assert same(*(each.generate(ids, **how) for each in (plain, model)))
    for one in (plain, model):
        one(ids, labels=ids).loss.backward()
    assert all(same(values(one.grad), values(other.grad)) for one, other in weights_of(plain, model))
    assert offloaded(model).report().crossed_bytes["two", "one"] > 0


def test_restored_it_is_an_ordinary_model() -> None:
    plain, x = layers(4), torch.randn(4, 512)
    model = over_two(copy.deepcopy(plain))
    model(x).sum().backward()
    handle = offloaded(model)
    assert handle.restore() is model
    assert all(type(each) is nn.Parameter and type(each.grad) is torch.Tensor for each in model.parameters())
    assert all(same(one, other) for one, other in weights_of(plain, model))
    moved = handle.report().crossed_bytes
    assert torch.equal(model(x), plain(x))
    assert handle.report().crossed_bytes == moved
    assert not any(each._forward_pre_hooks or each._forward_hooks for each in model.modules())
    over_two(model)


def test_closed_it_is_of_no_use_on_any_device() -> None:
    model = over_two(layers(4))
    offloaded(model).close()
    for number in (0, 3):
        with pytest.raises(DeviceError, match="the weights are gone"):
            model[number](torch.ones(1, 512))


def test_saved_and_loaded(tmp_path: Path) -> None:
    plain = layers(4)
    model = over_two(copy.deepcopy(plain))
    offloaded(model).save(tmp_path)
    opened = offload_checkpoint(tmp_path, lambda: layers(4), budget="64MiB")
    torch.save(model.state_dict(), tmp_path / "state")
    loaded = torch.load(tmp_path / "state")
    for name, weight in plain.state_dict().items():
        assert torch.equal(values(opened.state_dict()[name]), weight)
        assert torch.equal(loaded[name], weight)
        assert torch.equal(offloaded(model).state_dict()[name], weight)


def test_a_copy_is_on_the_same_devices_and_a_pickle_on_none(tmp_path: Path) -> None:
    plain, x = layers(4), torch.randn(64, 512)
    model = over_two(copy.deepcopy(plain))
    copied = copy.deepcopy(model)
    assert offloaded(copied).caches == offloaded(model).caches
    assert losses_of(copied, x) == losses_of(plain, x)
    assert offloaded(model).report().crossed_bytes["one", "two"] > 0
    offloaded(copied).restore()
    assert all(same(one, other) for one, other in weights_of(plain, copied))
    assert not any(each._forward_pre_hooks for each in copied.modules())
    torch.save(model, tmp_path / "model")
    pickled = torch.load(tmp_path / "model", weights_only=False)
    assert torch.equal(pickled(x), model(x))
    assert all(type(each) is nn.Parameter for each in pickled.parameters())


def test_a_part_runs_on_its_own_device() -> None:
    model, x = over_two(layers(4)), torch.randn(8, 512)
    assert is_on(model[3](x), offloaded(model).caches[1])
    assert offloaded(model).report().crossed_bytes == {("host", "two"): x.nbytes}


def test_compiled_it_crosses_the_same_boundaries() -> None:
    plain, x = layers(4), torch.randn(8, 512)
    model = over_two(copy.deepcopy(plain))
    with torch.no_grad():
        assert torch.equal(torch.compile(model, backend="eager")(x), plain(x))
    there = [("host", "one"), ("one", "two"), ("two", "one")]
    assert offloaded(model).report().crossed_bytes == dict.fromkeys(there, x.nbytes)


class Recalled(nn.Sequential):
    """Calls its units again in the backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for unit in self:
            x = checkpoint(unit.__call__, x, use_reentrant=False)
        return x


def test_units_that_are_called_again_in_the_backward_pass() -> None:
    plain, x = Recalled(*layers(4)), torch.randn(64, 512)
    model = over_two(copy.deepcopy(plain))
    assert losses_of(model, x) == losses_of(plain, x)
    assert all(same(values(one), values(other)) for one, other in weights_of(plain, model))


def test_the_gradient_of_a_gradient_crosses_too() -> None:
    plain, x = layers(4), torch.randn(8, 512, requires_grad=True)
    model = over_two(copy.deepcopy(plain))
    found = []
    for one in (plain, model):
        (gradient,) = torch.autograd.grad(one(x).tanh().sum(), x, create_graph=True)
        found.append(
            [values(each) for each in torch.autograd.grad(gradient.square().sum(), [*one.parameters()])]
        )
    assert same(*found)


def test_a_device_that_is_spelled_in_two_ways_is_one() -> None:
    with FakeCuda("1GiB", devices=2):
        for spellings in (("cuda:1", 1), ("cuda", "cuda:0"), (torch.device("cuda", 0), " CUDA:0")):
            with pytest.raises(ArgumentError, match="has a budget already"):
                offload(nn.Linear(300, 300), dict.fromkeys(spellings, "64MiB"))


def test_an_error_of_the_model_leaves_it_as_it_was() -> None:
    plain, x = layers(4), torch.randn(8, 512)
    model = over_two(copy.deepcopy(plain))
    broken = model[3].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(x)
    broken.remove()
    assert not any(is_on(torch.ones(4096), cache) for cache in offloaded(model).caches)
    assert torch.equal(model(x), plain(x))


def test_a_checkpoint_over_several_accelerators_is_refused(tmp_path: Path) -> None:
    model = offload(layers(2), "64MiB")
    offloaded(model).save(tmp_path)
    budgets = {device("one"): "16MiB", device("two"): "16MiB"}
    with pytest.raises(ArgumentError, match=r"\[offload_checkpoint\] budgets of 2 accelerators"):
        offload_checkpoint(tmp_path, lambda: layers(2), budget=budgets)


@pytest.mark.parametrize("plans", [True, False])
def test_plans_for_several_accelerators_are_refused(plans: bool) -> None:
    model, x = layers(2), torch.ones(1, 512)
    budgets = {device("one"): "16MiB", device("two"): "16MiB"}
    with pytest.raises(ArgumentError, match="accelerators"):
        plan_offload(model, x, budgets) if plans else offload(model, budgets, inputs=x)
    assert type(model[0].weight) is nn.Parameter


def test_a_device_that_is_too_small_for_its_part_is_told_by_its_budget() -> None:
    model = layers(4)
    with pytest.raises(BudgetExceededError, match=r"a budget of 6\.0 MiB"):
        offload(model, {device("one"): "12MiB", device("two"): "6MiB"})
    assert type(model[0].weight) is nn.Parameter


def _net(**children: nn.Module) -> nn.Module:
    net = nn.Module()
    for name, child in children.items():
        net.add_module(name, child)
    return net


def _linear() -> nn.Linear:
    return nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (_linear(), [""]),
        (_net(a=_linear(), b=nn.GELU(), c=_linear()), ["a", "c"]),
        (_net(net=_net(a=_linear(), b=_linear())), ["net.a", "net.b"]),
        (_net(a=_net(b=_linear(), c=_linear()), d=_linear()), ["a", "d"]),
        (_net(a=_linear(), h=nn.ModuleList([_net(x=_linear()), _net(x=_linear())])), ["a", "h.0", "h.1"]),
        (nn.Sequential(nn.Sequential(_linear(), _linear()), _linear()), ["0.0", "0.1", "1"]),
        (nn.ModuleList([_net(experts=nn.ModuleList([_linear(), _linear()])), _linear()]), ["0", "1"]),
        (_net(a=_linear(), b=Recalled(_linear(), _linear())), ["a", "b"]),
    ],
)
def test_units_stay_whole(model: nn.Module, names: list[str]) -> None:
    """A subclass of a list may do anything with its children, and an element of a list with its own lists."""
    of = {module: name for name, module in model.named_modules()}
    assert [of[unit] for unit in units_of(model)] == names
