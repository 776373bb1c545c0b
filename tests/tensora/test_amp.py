"""Mixed precision: types as under `torch.autocast`, weights cast once, budgets, and the scaling of losses."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.common_modules import module_db

import accelera.tensora as ts
from accelera.tensora import amp, nn, optim
from accelera.tensora.core import native
from tests.tensora.autocast_types import DIFFERENT, cases
from tests.tensora.opinfo_table import agreeing
from tests.tensora.test_nn_modules import ours, tensors
from tests.tensora.test_training_curves import Block
from tests.threads import run_in_threads

LOWER = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def leaf(*shape: int, seed: int = 0) -> Any:
    return ts.tensor(numbers(*shape, seed=seed), requires_grad=True)


def steps_of(function: Any) -> Counter[str]:
    """How often each operation ran."""
    with ts.fusion(False):
        native.begin_record()
        try:
            function()
        finally:
            columns = native.end_record()
    return Counter(columns[6])


# --- types ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", agreeing())
def test_results_have_the_types_of_pytorch(name: str) -> None:
    differing = [each for each in cases(name) if not each.agrees]
    assert bool(differing) == (name in DIFFERENT), differing[:3]


def test_the_op_table_says_what_is_cast() -> None:
    table = {op["name"]: op["autocast"] for op in ts.ops()}
    assert set(table.values()) == {"inputs", "lower", "float32", "widest"}
    assert {name for name, precision in table.items() if precision == "lower"} == {
        "attention", "conv", "conv_input", "linear", "matmul",
    }  # fmt: skip
    assert table["softmax"] == table["exp"] == table["sum"] == table["layer_norm"] == "float32"
    assert table["add"] == table["relu"] == table["reshape"] == "inputs"


@pytest.mark.parametrize("dtype", LOWER)
def test_the_lower_type_is_chosen(dtype: str) -> None:
    x = leaf(3, 3)
    with ts.autocast(getattr(ts, dtype)):
        assert (x @ x).dtype.name == dtype
        assert ts.exp(x @ x).dtype == ts.float32
        assert ((x @ x) + x).dtype == ts.float32


def test_what_is_no_float_and_float64_is_left_alone() -> None:
    with ts.autocast():
        for dtype in (ts.float64, ts.int64, ts.complex64, ts.complex128):
            x = ts.ones((2, 2), dtype=dtype)
            assert (x @ x).dtype == dtype
            assert ts.sum(x).dtype == dtype
        assert ts.exp(ts.ones((2,), dtype=ts.float64)).dtype == ts.float64
        images, kernel = ts.ones((1, 1, 3), dtype=ts.complex64), ts.ones((1, 1, 2))
        assert nn.functional.conv1d(images, kernel).dtype == ts.complex64


def test_numbers_are_as_exact_as_the_type_of_the_operation() -> None:
    half = ts.full((1,), 2.0, dtype=ts.bfloat16)
    with ts.autocast():
        found = [half**0.1, ts.pow(half, 0.1), ts.pow(0.1, half)]
    assert [each.item() for each in found] == pytest.approx([2**0.1, 2**0.1, 0.01], rel=1e-6)


def test_in_place_operations_keep_their_tensor() -> None:
    half = ts.ones((2, 2), dtype=ts.bfloat16)
    with ts.autocast():
        half **= 2
        half += 1
        assert half.dtype == ts.bfloat16
        x = ts.ones((2, 2))
        x @= x
        x[0] = half[0]
    assert x.dtype == ts.float32
    assert half.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def module_samples(info: Any, training: bool) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return list(
            info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
            )
        )


def module_infos() -> list[Any]:
    kept = [
        info
        for info in module_db
        if hasattr(nn, name := info.module_cls.__name__)
        and not name.startswith("Lazy")
        and name != "TransformerEncoder"  # whose samples are given a module of PyTorch
        and info.module_cls.__module__.startswith("torch.nn.modules")
    ]
    return [pytest.param(info, id=f"{info.module_cls.__name__}-{i}") for i, info in enumerate(kept)]


@pytest.mark.parametrize("info", module_infos())
def test_modules_take_both_types_and_train_their_parameters_in_their_own(info: Any) -> None:
    for sample in module_samples(info, True)[:4]:
        made, given = sample.constructor_input, sample.forward_input
        if any(callable(each) for each in (*made.args, *made.kwargs.values())):
            continue
        module = getattr(nn, info.module_cls.__name__)(
            *ours(made.args), **{name: ours(value) for name, value in made.kwargs.items()}
        )
        for lower in (False, True):
            args = tuple(_lowered(each) if lower else each for each in ours(given.args))
            with ts.autocast():
                found = module(*args, **{name: ours(value) for name, value in given.kwargs.items()})
            outputs = [each for each in tensors(found) if each.requires_grad]
            ts.backward([ts.sum(ts.abs(each)) for each in outputs])
            for param in module.parameters():
                assert param.grad is None or param.grad.dtype == param.dtype == ts.float32


def _lowered(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_lowered(each) for each in value)
    is_single = isinstance(value, ts.Tensor) and value.dtype == ts.float32
    return value.detach().to(ts.bfloat16).requires_grad_(value.requires_grad) if is_single else value


@pytest.mark.parametrize(("kind", "states"), [("RNN", 1), ("GRU", 1), ("LSTM", 2)])
def test_recurrent_networks_take_the_results_of_other_layers(kind: str, states: int) -> None:
    x = numbers(5, 3, 6)
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 4), getattr(torch.nn, kind)(4, 3))
    mine = nn.Sequential(nn.Linear(6, 4), getattr(nn, kind)(4, 3))
    mine.load_state_dict({name: ts.tensor(value.numpy()) for name, value in theirs.state_dict().items()})
    with torch.autocast("cpu", torch.bfloat16):
        expected, _ = theirs(torch.tensor(x))
    with ts.autocast():
        found, last = mine(ts.tensor(x))
    assert found.dtype == ts.bfloat16
    assert len(tensors(last)) == states
    np.testing.assert_allclose(
        found.detach().to(ts.float32).numpy(), expected.detach().float().numpy(), atol=0.02
    )


# --- blocks -----------------------------------------------------------------------------------------------


def test_blocks_nest_and_are_left_on_errors() -> None:
    x = ts.ones((2, 2))
    with ts.autocast(ts.bfloat16):
        with ts.autocast(enabled=False):
            assert not amp.is_autocast_enabled()
            assert (x @ x).dtype == ts.float32
            with ts.autocast(ts.float16):
                assert (x @ x).dtype == amp.get_autocast_dtype() == ts.float16
        assert (x @ x).dtype == amp.get_autocast_dtype() == ts.bfloat16
        with pytest.raises(KeyError), ts.autocast(ts.float16):
            raise KeyError
        assert amp.get_autocast_dtype() == ts.bfloat16
    assert not amp.is_autocast_enabled()
    assert (x @ x).dtype == ts.float32


def test_one_object_is_a_decorator_and_a_block_within_itself() -> None:
    block = ts.autocast()

    @block
    def product(x: Any, deeper: int = 2) -> Any:
        with block:
            return product(x, deeper - 1) if deeper else x @ x

    assert product(ts.ones((2, 2))).dtype == ts.bfloat16
    assert not amp.is_autocast_enabled()


def test_other_threads_are_not_in_the_block() -> None:
    found: list[Any] = []

    def work() -> None:
        found.append(amp.is_autocast_enabled())
        with ts.autocast(ts.float16):
            found.append(amp.get_autocast_dtype())

    with ts.autocast():
        run_in_threads(work)
        assert amp.get_autocast_dtype() == ts.bfloat16
    assert found == [False, ts.float16]


def test_a_block_is_for_one_kind_of_device() -> None:
    x = ts.ones((2, 2))
    with ts.autocast(device="cuda"):
        assert amp.is_autocast_enabled("cuda:0")
        assert not amp.is_autocast_enabled("cpu")
        assert amp.get_autocast_dtype("cuda") == ts.float16
        assert (x @ x).dtype == ts.float32
        with ts.autocast():
            assert amp.is_autocast_enabled("cuda")
            assert (x @ x).dtype == ts.bfloat16


def test_what_is_asked_wrongly_is_refused() -> None:
    with pytest.raises(ValueError, match="give float16 or bfloat16"):
        ts.autocast(ts.float32)
    with pytest.raises(ValueError, match="give 'cpu' or 'cuda'"):
        ts.autocast(device="tpu")
    block = ts.autocast()
    with pytest.raises(RuntimeError, match="has none open"):
        block.__exit__()
    with pytest.raises(ValueError, match="give 'inputs', 'lower', 'float32' or 'widest'"), ts.autocast():
        amp.computes_in("double")(ts.exp)(ts.ones(()))


def test_a_function_is_cast_as_one_operation() -> None:
    @amp.computes_in("float32")
    def types(first: Any, *rest: Any, more: list[Any]) -> list[str]:
        product = first @ first  # not cast: the function is what is cast
        return [each.dtype.name for each in (first, *rest, *more, product)]

    half, double = ts.ones((2, 2), dtype=ts.bfloat16), ts.ones((2, 2), dtype=ts.float64)
    assert types(half, double, more=[half]) == ["bfloat16", "float64", "bfloat16", "bfloat16"]
    with ts.autocast():
        assert types(half, double, more=[half]) == ["float32", "float64", "float32", "float32"]


def test_gradients_have_the_type_of_the_parameter_and_pytorchs_values() -> None:
    x, weight = numbers(8, 6), numbers(4, 6, seed=1)
    expected = torch.tensor(weight, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        torch.nn.functional.linear(torch.tensor(x), expected).exp().sum().backward()
    found = ts.tensor(weight, requires_grad=True)
    with ts.autocast():
        loss = ts.sum(ts.exp(nn.functional.linear(ts.tensor(x), found)))
    loss.backward()
    assert found.grad.dtype == ts.float32
    np.testing.assert_allclose(found.grad.numpy(), expected.grad.numpy(), rtol=2e-2, atol=2e-2)


def test_the_backward_pass_is_not_cast() -> None:
    def gradient(inside: bool) -> Any:
        x = leaf(4, 4)
        with ts.autocast():
            y = ts.sum(ts.tanh(x @ x) @ x)
            if inside:
                y.backward()
        if not inside:
            y.backward()
        return x.grad.numpy()

    np.testing.assert_array_equal(gradient(True), gradient(False))


# --- the cache of cast weights ----------------------------------------------------------------------------


def test_a_weight_is_cast_once_for_all_its_uses() -> None:
    weight, x = leaf(4, 4), ts.tensor(numbers(4, 4, seed=1))

    def products(cache: bool) -> None:
        with ts.autocast(cache_enabled=cache):
            for _ in range(3):
                with ts.autocast(cache_enabled=cache):
                    ts.compute(x @ weight)

    assert steps_of(lambda: products(False))["cast"] - steps_of(lambda: products(True))["cast"] == 2


def test_a_weight_that_was_written_is_cast_again() -> None:
    weight, x = leaf(4, 4), ts.eye(4)
    optimizer = optim.SGD([weight], lr=0.5)
    with ts.autocast():
        for _ in range(3):
            y = x @ weight
            np.testing.assert_array_equal(
                y.detach().to(ts.float32).numpy(), weight.detach().to(ts.bfloat16).to(ts.float32).numpy()
            )
            optimizer.zero_grad()
            y.sum().backward()
            optimizer.step()
    with ts.autocast():
        before = (x @ weight).detach().to(ts.float32)
        with ts.no_grad():
            weight[...] = 3.0
        after = (x @ weight).detach().to(ts.float32)
    assert not ts.array_equal(before, after)
    assert after.tolist() == [[3.0] * 4] * 4


def test_a_weight_cast_without_gradients_is_cast_again_for_them() -> None:
    weight, x = leaf(4, 4), ts.eye(4)
    with ts.autocast():
        with ts.no_grad():
            assert not (x @ weight).requires_grad
        y = x @ weight
    y.sum().backward()
    assert weight.grad.tolist() == [[1.0] * 4] * 4


def test_cast_weights_go_when_the_outermost_block_ends() -> None:
    weight, x = leaf(256, 256), ts.ones((1, 256))
    with ts.no_grad():
        before = ts.memory_stats().live_bytes
        with ts.autocast():
            with ts.autocast():
                ts.compute(x @ weight)
            assert ts.memory_stats().live_bytes - before >= weight.size * 2
        assert ts.memory_stats().live_bytes - before < weight.size


def test_one_graph_serves_two_passes_through_a_cast_weight() -> None:
    weight, x = leaf(3, 3), ts.eye(3)
    with ts.autocast():
        for _ in range(2):
            (x @ weight).sum().backward()
    assert weight.grad.tolist() == [[2.0] * 3] * 3


# --- training ---------------------------------------------------------------------------------------------


def batches(model: Any, steps: int) -> list[tuple[Any, Any]]:
    random = np.random.default_rng(3)
    drawn = [
        random.normal(size=(16, 20)).astype("f")
        if model is Block.mlp
        else random.integers(0, 11, size=(16, 6))
        for _ in range(steps)
    ]
    return [(x, x[:, :5].argmax(1)) for x in drawn]


def pair(build: Any) -> tuple[Any, Any]:
    """A model of each library, with the same weights."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = build(torch.nn)
    ours = build(nn)
    ours.load_state_dict({name: ts.tensor(value.numpy()) for name, value in theirs.state_dict().items()})
    return ours, theirs


@pytest.mark.parametrize("dtype", LOWER)
@pytest.mark.parametrize("build", [Block.mlp, Block.transformer])
def test_losses_are_pytorchs_up_to_the_precision(build: Any, dtype: str) -> None:
    ours, theirs = pair(build)
    optimizer, expected_of = optim.Adam(ours.parameters(), lr=2e-3), torch.nn.CrossEntropyLoss()
    torch_optimizer = torch.optim.Adam(theirs.parameters(), lr=2e-3)
    losses, expected = [], []
    for x, y in batches(build, 60):
        torch_optimizer.zero_grad()
        with torch.autocast("cpu", LOWER[dtype]):
            loss = expected_of(theirs(torch.tensor(x)), torch.tensor(y))
        loss.backward()
        torch_optimizer.step()
        expected.append(loss.item())
        optimizer.zero_grad()
        with ts.autocast(getattr(ts, dtype)):
            found = nn.CrossEntropyLoss()(ours(ts.tensor(x)), ts.tensor(y))
        found.backward()
        optimizer.step()
        losses.append(float(found))
        assert found.dtype == ts.float32
    np.testing.assert_allclose(losses, expected, atol={"float16": 0.01, "bfloat16": 0.06}[dtype])
    assert losses[-1] < losses[0]


def network(depth: int = 16, width: int = 128) -> Any:
    ts.random.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers)


def train(model: Any, around: Any, lower: bool, steps: int = 4) -> list[float]:
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    x, y = ts.tensor(numbers(512, 128)), ts.tensor(numbers(512, 128, seed=1))

    def step() -> float:
        optimizer.zero_grad()
        with ts.autocast(enabled=lower):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss)

    return [around(step) for _ in range(steps)]


def free_peak(lower: bool) -> tuple[list[float], int]:
    model = network()
    gc.collect()
    before = ts.memory_stats().live_bytes
    ts.reset_peak()
    losses = train(model, lambda step: step(), lower)
    return losses, ts.memory_stats().peak_bytes - before


def test_saved_activations_take_half_the_bytes() -> None:
    assert free_peak(True)[1] < 0.75 * free_peak(False)[1]


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_steps_inside_a_budget_follow_their_plan_with_the_same_losses(share: float) -> None:
    losses, peak = free_peak(True)
    model = network()
    weights = sum(param.size * 4 for param in model.parameters())
    limit = int(weights + share * peak)
    budget = ts.budget(limit)

    def around(step: Any) -> Any:
        with budget:
            return step()

    assert train(model, around, True) == losses
    assert budget.report.followed
    assert budget.report.peak_bytes <= limit


# --- scaled losses ----------------------------------------------------------------------------------------


def scalers(**options: Any) -> tuple[amp.GradScaler, Any]:
    return ts.GradScaler(**options), torch.amp.GradScaler("cpu", **options)


def test_the_state_goes_step_by_step_as_pytorchs() -> None:
    ours, theirs = scalers(init_scale=1000.0, growth_interval=2, growth_factor=1.7, backoff_factor=0.3)
    weight = leaf(3, 2)
    torch_weight = torch.tensor(weight.detach().numpy().copy(), requires_grad=True)
    optimizer, torch_optimizer = optim.SGD([weight], lr=0.1), torch.optim.SGD([torch_weight], lr=0.1)
    for bad in (0, 0, 1, 0, np.inf, np.nan, 0, 0, 0, 0):
        factor = numbers(3, 2, seed=2)
        factor[1, 1] = bad if bad != 1 else -np.inf
        optimizer.zero_grad()
        torch_optimizer.zero_grad()
        ours.scale((weight * ts.tensor(factor)).sum()).backward()
        theirs.scale((torch_weight * torch.tensor(factor)).sum()).backward()
        ours.step(optimizer)
        theirs.step(torch_optimizer)
        np.testing.assert_array_equal(weight.grad.numpy(), torch_weight.grad.numpy())
        np.testing.assert_array_equal(weight.detach().numpy(), torch_weight.detach().numpy())
        ours.update()
        theirs.update()
        assert ours.get_scale() == theirs.get_scale()
        assert ours.state_dict() == theirs.state_dict()


def settings_of(scaler: Any) -> tuple[float, float, int]:
    return scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()


def test_a_scaler_takes_pytorchs_state_and_gives_its_own() -> None:
    ours, theirs = scalers(init_scale=8.0)
    theirs.load_state_dict({**theirs.state_dict(), "scale": 4.0, "_growth_tracker": 7})
    ours.load_state_dict(theirs.state_dict())
    assert ours.state_dict() == theirs.state_dict()
    assert settings_of(ours) == (2.0, 0.5, 2000)
    ours.set_growth_factor(3.0)
    ours.set_backoff_factor(0.25)
    ours.set_growth_interval(5)
    other = torch.amp.GradScaler("cpu")
    other.load_state_dict(ours.state_dict())
    assert settings_of(other) == (3.0, 0.25, 5)
    with pytest.raises(RuntimeError, match="an empty state"):
        ours.load_state_dict(ts.GradScaler(enabled=False).state_dict())


def test_the_scale_neither_overflows_nor_is_lost() -> None:
    ours, theirs = scalers(init_scale=2.0**127, growth_interval=1)
    weight, torch_weight = leaf(1), torch.ones(1, requires_grad=True)
    for scaler, param, sgd in (
        (ours, weight, optim.SGD([weight], lr=0.0)),
        (theirs, torch_weight, torch.optim.SGD([torch_weight], lr=0.0)),
    ):
        scaler.scale((param * 1e-3).sum()).backward()
        scaler.step(sgd)
        scaler.update()
    assert ours.get_scale() == theirs.get_scale() == 2.0**127
    ours.update(5.0)
    assert ours.get_scale() == 5.0


def test_unscaled_gradients_can_be_clipped_before_the_step() -> None:
    scaler, weight = ts.GradScaler(init_scale=4.0), leaf(2)
    optimizer = optim.SGD([weight], lr=1.0)
    scaler.scale(weight.sum() * 3).backward()
    assert weight.grad.tolist() == [12.0, 12.0]
    scaler.unscale_(optimizer)
    assert weight.grad.tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert weight.grad.tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="after step"):
        scaler.unscale_(optimizer)
    scaler.update()
    scaler.unscale_(optimizer)


def test_what_a_scaler_cannot_do_is_refused() -> None:
    scaler, weight = ts.GradScaler(), leaf(2)
    optimizer = optim.SGD([weight], lr=1.0)
    with pytest.raises(RuntimeError, match="no parameter of this optimizer has a gradient"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="before any gradients"):
        ts.GradScaler().update()
    with pytest.raises(RuntimeError, match="no closure"):
        scaler.step(optimizer, lambda: 0.0)
    with pytest.raises(TypeError, match="give a tensor"):
        scaler.scale(3)
    refused: list[dict[str, Any]] = [{"growth_factor": 1.0}, {"backoff_factor": 1.0}]
    for options in refused:
        with pytest.raises(ValueError, match="than 1"):
            ts.GradScaler(**options)
    half = ts.tensor(numbers(2), dtype=ts.float16, requires_grad=True)
    half.sum().backward()
    with pytest.raises(ValueError, match="gradients of float16"):
        ts.GradScaler().unscale_(optim.SGD([half], lr=1.0))


def test_a_scaler_that_is_off_lets_everything_through() -> None:
    scaler, weight = ts.GradScaler(enabled=False), leaf(2)
    optimizer, loss = optim.SGD([weight], lr=1.0), weight.sum()
    assert not scaler.is_enabled()
    assert scaler.scale(loss) is loss
    loss.backward()
    before = weight.detach().numpy().copy()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    np.testing.assert_array_equal(weight.detach().numpy(), before - 1)
    assert scaler.get_scale() == 1.0
    assert scaler.state_dict() == {}


@pytest.mark.parametrize("where", [None, 0, -1])
@pytest.mark.parametrize("kind", ["contiguous", "transposed", "float64", "bfloat16", "complex64", "empty"])
def test_gradients_of_any_kind_are_divided_in_place_and_looked_at(kind: str, where: int | None) -> None:
    dtype = kind if kind in ("float64", "bfloat16", "complex64") else "float32"
    grad = ts.tensor(numbers(37, 41), dtype=getattr(ts, dtype))
    if kind == "empty":
        grad, where = ts.zeros((0, 3)), None
    if where is not None:
        grad[where, where] = np.inf if where else np.nan
    grad = grad.mT if kind == "transposed" else grad
    wide = ts.complex128 if kind == "complex64" else ts.float64
    with np.errstate(invalid="ignore"):  # infinity times the zero of an imaginary part
        expected = grad.to(wide).numpy() * 0.125
    assert native.unscale([ts.ones((5,)), grad], 0.125) is (where is None)
    np.testing.assert_array_equal(grad.to(wide).numpy(), expected)


def test_lists_of_losses_are_scaled_and_two_optimizers_kept_apart() -> None:
    scaler, first, second = ts.GradScaler(init_scale=2.0), leaf(2), leaf(3)
    optimizers = [optim.SGD([first], lr=1.0), optim.SGD([second], lr=1.0)]
    for loss in scaler.scale([first.sum(), (second * np.inf).sum()]):
        loss.backward()
    before = [each.detach().numpy().copy() for each in (first, second)]
    for optimizer in optimizers:
        scaler.step(optimizer)
    np.testing.assert_array_equal(first.detach().numpy(), before[0] - 1)
    np.testing.assert_array_equal(second.detach().numpy(), before[1])
    scaler.update()
    assert scaler.get_scale() == 1.0
    assert scaler.scale((first.sum(), first.sum()))[1].dtype == ts.float32


# --- on a CUDA device -------------------------------------------------------------------------------------


def test_on_a_device_types_and_gradients_are_those_of_the_cpu(device: str) -> None:
    def gradient(place: str) -> tuple[str, Any, float]:
        weight = ts.tensor(numbers(8, 8), requires_grad=True, device=place)
        scaler = ts.GradScaler(init_scale=16.0)
        optimizer = optim.SGD([weight], lr=0.0)
        with ts.autocast(ts.float16, device=place):
            y = ts.ones((4, 8), device=place) @ weight
            loss = nn.functional.mse_loss(y, ts.zeros((4, 8), device=place))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return y.dtype.name, weight.grad.to("cpu").numpy(), scaler.get_scale()

    kind, found, scale = gradient(device)
    expected_kind, expected, expected_scale = gradient("cpu")
    assert kind == expected_kind == "float16"
    assert scale == expected_scale
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
