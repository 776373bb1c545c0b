"""Captured programs lowered to JAX give what Tensora gives; run by XLA's CPU device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.tensora import functional, nn, optim
from tests.tensora.lowered_networks import (
    CASES,
    LANGUAGE_MODELS,
    NETWORKS,
    SPECIAL,
    VIEWS,
    accepts,
    numbers,
    ordinary,
    sample_tensors,
    tokens,
    viewed,
)

jax = pytest.importorskip("jax")

pytestmark = pytest.mark.parametrize("fusion", ["eager"], indirect=True)

TYPES = ("float32", "int32", "bfloat16", "complex64", "float64", "bool", "uint8")
TOLERANCE = {"float64": 1e-10, "bfloat16": 5e-2, "float16": 8e-3}


def check_close(found, wanted, tolerance=2e-4):
    assert found.dtype == wanted.dtype
    assert tuple(found.shape) == tuple(wanted.shape)
    np.testing.assert_allclose(numbers(found), numbers(wanted), rtol=tolerance, atol=tolerance)


def check_lowered(function, *tensors, tolerance=2e-4):
    """The lowered function agrees with the function."""
    found, wanted = ts.to_jax(function, *tensors)(*tensors), function(*tensors)
    if not isinstance(wanted, (tuple, list)):
        found, wanted = [found], [wanted]
    for one, other in zip(found, wanted, strict=True):
        check_close(one, other, tolerance)


# --- every entry of the op table --------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "sample", "i"), CASES)
def test_every_entry_agrees(name, sample, i):
    defined = 0
    for dtype in ("float32", TYPES[1 + (len(name) + i) % (len(TYPES) - 1)], "int32", "complex64"):
        if defined == 2 or not accepts(sample, dtype):
            continue
        tensors = sample_tensors(sample, dtype, 0)
        try:
            sample.call(*tensors)
        except TypeError:
            continue
        program = ts.to_jax(sample.call, *tensors)
        for seed in range(2):
            tensors = sample_tensors(sample, dtype, seed)
            check_close(program(*tensors), sample.call(*tensors), TOLERANCE.get(dtype, 2e-4))
        defined += 1
    assert defined


def positive_definite(n):
    x = ordinary((n, n), 1, np.float64)
    return x @ x.T + ts.asarray(np.eye(n))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ts.argsort(x, axis=-1),
        lambda x: ts.argsort(x, axis=0, descending=True),
        lambda x: ts.argmax(x, axis=1),
        lambda x: ts.argmin(x, axis=0),
        lambda x: ts.cummax(x, axis=1)[1],
        lambda x: ts.topk(x, 2)[1],
        lambda x: ts.searchsorted(ts.asarray(np.array([-1.0, 0, 2, 2, 3], np.float32)), x, side="right"),
    ],
)
def test_searches_agree_with_equal_elements_and_nan(function):
    check_lowered(function, SPECIAL)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: ts.linalg.solve(a, b),
        lambda a, b: ts.linalg.solve_triangular(ts.tril(a), b, upper=False),
        lambda a, b: ts.linalg.inv(a) @ b,
        lambda a, b: ts.linalg.cholesky(a) + b[:, :1],
        lambda a, b: ts.linalg.det(a) * b,
        lambda a, b: ts.linalg.slogdet(a)[1] + b,
        lambda a, b: ts.linalg.svdvals(b),
        lambda a, b: ts.linalg.eigh(a)[0],
        lambda a, b: ts.abs(ts.linalg.qr(b)[1]),
    ],
)
def test_factorizations_agree(function):
    check_lowered(function, positive_definite(5), ordinary((5, 3), 2, np.float64), tolerance=1e-8)


@pytest.mark.parametrize("dtype", [ts.float32, ts.float64, ts.bfloat16])
@pytest.mark.parametrize(
    "draw",
    [
        lambda dtype: ts.random.default_generator.uniform((3, 37), dtype, -2, 3),
        lambda dtype: ts.random.default_generator.normal((101,), dtype, 1, 2),
        lambda dtype: functional.dropout(ts.ones((50,), dtype=dtype), 0.4),
        lambda dtype: ts.random.randint(-5, 1000, (99,)).to(dtype),
        lambda dtype: ts.random.randint(0, 2**31 + 12345, (99,)).to(dtype),
    ],
)
def test_random_numbers_are_the_same(draw, dtype):
    def function(x):
        return draw(dtype) + x

    x = ts.zeros((), dtype=dtype)
    ts.random.manual_seed(3)
    wanted = [function(x) for _ in range(3)]
    ts.random.manual_seed(3)
    program = ts.to_jax(function, x)
    for other in wanted[1:]:
        check_close(program(x), other, 1e-6)


# --- views and writes -------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    chain=st.lists(st.tuples(st.sampled_from(sorted(VIEWS)), st.integers(0, 5)), max_size=6),
    write=st.booleans(),
)
def test_views_of_views_read_and_written(chain, write):
    check_lowered(viewed(chain, write), ordinary((3, 4, 5)), tolerance=1e-6)


def test_overlapping_windows_and_constants_that_are_written():
    table = ts.zeros((6,))

    def function(x):
        counts = ts.zeros((4, 4))
        counts[1:3, ::2] = x[:2, :2]
        counts += 1
        table[1:4] = x[0, :3]
        return counts, ts.as_strided(x, (3, 3), (2, 1)), table * 2

    x = ordinary((4, 4))
    check_lowered(function, x)
    program = ts.to_jax(function, x)
    program(x + 1)
    check_close(table[1:4], x[0, :3] + 1)


def test_an_argument_is_written_in_place():
    def function(x, y):
        x += y
        return x * 2

    program = ts.to_jax(function, ts.ones((3, 4)), ts.ones((4,)))
    x = ts.ones((3, 4))
    check_close(program(x, ts.ones((4,))), ts.full((3, 4), 4.0))
    check_close(x, ts.full((3, 4), 2.0))
    with pytest.raises(ValueError, match="argument 0, which is not contiguous"):
        program(ts.ones((4, 3)).T, ts.ones((4,)))


# --- networks ----------------------------------------------------------------------------------------------


def batches(shape):
    return [(ordinary(shape, seed), ts.asarray(np.arange(5) % 3)) for seed in range(5)]


def trained(kind, lower):
    """Losses of five steps, of which the first two run as they are written."""
    make, shape = NETWORKS[kind]
    ts.random.manual_seed(0)
    model = make()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    data = batches(shape)
    losses = [float(step(*data[0]))]
    if lower:
        step = ts.to_jax(step, *data[1])
    else:
        step(*data[1])
    losses += [float(step(*each)) for each in data[2:]]
    return losses, model


@pytest.mark.parametrize("kind", NETWORKS)
def test_whole_training_steps_give_the_same_losses_and_weights(kind):
    wanted, reference = trained(kind, lower=False)
    found, model = trained(kind, lower=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    for one, other in zip(model.state_dict().values(), reference.state_dict().values(), strict=True):
        check_close(one, other, 1e-3)


@pytest.mark.parametrize("kind", NETWORKS)
def test_forward_passes_follow_new_weights(kind):
    make, shape = NETWORKS[kind]
    model = make().eval()
    x = ordinary(shape)
    program = ts.to_jax(model, x)
    check_close(program(x), model(x))
    for each in model.parameters():
        each.detach()[...] = each.detach() * 0.5
    check_close(program(x), model(x))


@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
def test_language_models_give_the_same_logits(kind):
    model = LANGUAGE_MODELS[kind]().eval()
    check_close(ts.to_jax(model, tokens())(tokens(1)), model(tokens(1)))


def test_gradients_accumulate_where_they_did():
    model = nn.Linear(3, 2)
    x = ordinary((4, 3))

    def step(x):
        model(x).sum().backward()

    step(x)
    program = ts.to_jax(step, x)
    before = ts.asarray(np.array(model.weight.grad))
    program(x)
    check_close(model.weight.grad, before * 1.5)
    model.zero_grad()
    with pytest.raises(RuntimeError, match="has no gradient"):
        program(x)
    fresh = ts.to_jax(step, x)
    with pytest.raises(RuntimeError, match="had none"):
        fresh(x)


# --- as a function of JAX ---------------------------------------------------------------------------------


def test_the_pure_function_goes_into_transformations_of_jax():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    x = ordinary((5, 6))
    program = ts.to_jax(model, x)
    with jax.enable_x64(True):
        parameters = program.parameters
        assert set(parameters) == set(dict(model.named_parameters()))
        array = jax.numpy.asarray(np.array(x))

        @jax.jit
        def loss(parameters):
            return program.function([array], parameters).results[0].sum()

        found = jax.grad(loss)(parameters)
    model(x).sum().backward()
    for name, each in model.named_parameters():
        gradient = np.asarray(found[name]).reshape(tuple(each.shape))
        np.testing.assert_allclose(gradient, np.array(each.grad), rtol=1e-5, atol=1e-6)


def test_the_pure_function_gives_gradients_by_name():
    model = nn.Linear(3, 2)

    def step(x):
        model.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        return loss

    x = ordinary((4, 3))
    program = ts.to_jax(step, x, names=dict(model.named_parameters()))
    with jax.enable_x64(True):
        made = program.function([np.array(x)], program.parameters)
        step(x)
        assert made.gradients.keys() == {"weight", "bias"}
        np.testing.assert_allclose(made.gradients["weight"], np.array(model.weight.grad), rtol=1e-5)
        with pytest.raises(ValueError, match="no array for parameter 'bias'"):
            program.function([np.array(x)], {"weight": program.parameters["weight"]})
    with pytest.raises(RuntimeError, match="enable_x64"):
        program.function([np.array(x)], {})


# --- what is refused --------------------------------------------------------------------------------------


def test_other_arguments_than_the_captured_ones_are_refused():
    program = ts.to_jax(lambda x: x + 1, ts.ones((2, 3)))
    with pytest.raises(ValueError, match=r"shape \(3, 2\) and type float32.*takes \(2, 3\)"):
        program(ts.ones((3, 2)))
    with pytest.raises(ValueError, match="type float64"):
        program(ts.ones((2, 3), dtype=ts.float64))
    with pytest.raises(ValueError, match="another structure"):
        program(ts.ones((2, 3)), 1)


def test_operations_without_a_form_and_elements_in_python_are_refused():
    with pytest.raises(NotImplementedError, match="no form in JAX of eig"):
        ts.to_jax(lambda x: ts.linalg.eigvals(x), ordinary((3, 3)))
    with pytest.raises(NotImplementedError, match="range of"):
        ts.to_jax(lambda x: ts.random.randint(0, 2**40, (3,)) + x, ts.ones(()))(ts.ones(()))
    with pytest.raises(RuntimeError, match=r"\[jit\] "):
        ts.to_jax(lambda x: x + float(x.sum()), ts.ones((2,)))


def test_a_step_with_an_optimizer_is_no_pure_function():
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    program = ts.to_jax(step, ts.ones((1, 3)))
    with jax.enable_x64(True), pytest.raises(NotImplementedError, match="step within the function"):
        program.function([np.ones((1, 3), np.float32)], program.parameters)
