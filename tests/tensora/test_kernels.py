"""Kernels of Python functions have the values and gradients of the operations that they are made of."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.tensora import functional, optim
from accelera.tensora.core import native

UNARY = ["tanh", "exp", "sin", "cos", "abs", "negative", "square", "sqrt", "log", "sigmoid", "reciprocal"]
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "where", "pow"]


def apply(name, x, y):
    if name in {"sqrt", "log"}:
        return getattr(ts, name)(ts.abs(x) + 0.5)
    if name == "exp":
        return ts.exp(x * 0.1)
    if name in {"reciprocal", "divide"}:
        return (y if name == "divide" else 1.0) / (ts.abs(x) + 1)
    if name == "where":
        return ts.where(x > y, x * 2, y)
    if name == "pow":
        return (ts.abs(x) + 0.5) ** 1.5
    return getattr(ts, name)(x, y) if name in BINARY else getattr(ts, name)(x)


def evaluated(program, inputs):
    made = list(inputs)
    for name, i, j in program:
        made.append(apply(name, made[i % len(made)], made[j % len(made)]))
    return made[-1] * 0.5


def made_of(program, n):
    """Function of n parameters."""
    if n == 1:
        return lambda x: evaluated(program, [x])
    if n == 2:
        return lambda x, y: evaluated(program, [x, y])
    return lambda x, y, z: evaluated(program, [x, y, z])


def named(function, name="generated"):
    function.__name__ = name
    return function


def numbers(shape, seed=0, dtype="float64"):
    return ts.asarray(np.random.default_rng(seed).standard_normal(shape), dtype=getattr(ts, dtype))


def derivatives(function, inputs):
    """Value, gradients, and gradients of the gradients; zeros where there are none."""
    leaves = [each.detach() for each in inputs]
    for leaf in leaves:
        leaf.requires_grad = True
    value = function(*leaves)
    first = gradients(value.sum(), leaves)
    second = gradients(sum((each * each).sum() for each in first), leaves)
    return [each.detach() for each in (value, *first, *second)]


def gradients(value, leaves):
    zeros = [leaf.detach() * 0 for leaf in leaves]
    if not value.requires_grad:
        return zeros
    found = ts.grad(value, leaves, create_graph=True, allow_unused=True)
    return [zero if each is None else each for each, zero in zip(found, zeros, strict=True)]


def close(found, wanted, tolerance=1e-9):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


instructions = st.lists(
    st.tuples(st.sampled_from(UNARY + BINARY), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=instructions, n=st.integers(1, 3), shape=st.sampled_from([(5,), (3, 4), (700,), ()]))
def test_random_functions_have_the_values_and_gradients_of_their_operations(program, n, shape):
    function = made_of(program, n)
    kernel = ts.kernel(named(function))
    inputs = [numbers(shape, seed) for seed in range(n)]
    close(derivatives(kernel, inputs), derivatives(function, inputs))


@ts.kernel
def swish(x, beta):
    return x * ts.sigmoid(beta * x)


def test_inputs_are_broadcast_and_gradients_summed():
    inputs = [numbers((6, 1, 5), 1), numbers((4, 1), 2)]
    close(derivatives(swish, inputs), derivatives(lambda x, b: x * ts.sigmoid(b * x), inputs))
    assert swish(*inputs).shape == (6, 4, 5)


def test_values_and_gradients_are_those_of_pytorch():
    inputs = [numbers((50, 20), 1), numbers((20,), 2)]
    x, beta = (torch.tensor(np.asarray(each), requires_grad=True) for each in inputs)
    value = x * torch.sigmoid(beta * x)
    value.sum().backward()
    close(derivatives(swish, inputs)[:3], [value.detach(), x.grad, beta.grad], 1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_float_has_the_values_of_its_operations(dtype):
    inputs = [numbers((100,), seed, dtype) for seed in range(2)]
    found, wanted = swish(*inputs), inputs[0] * ts.sigmoid(inputs[1] * inputs[0])
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(np.asarray(found.to(ts.float64)), np.asarray(wanted.to(ts.float64)))


def test_types_are_promoted_as_by_operations():
    @ts.kernel
    def mixed(x, n):
        return x * n + (n > 1)

    x, n = numbers((7,), 1, "float32"), ts.arange(7)
    found = mixed(x, n)
    assert found.dtype == ts.float32
    np.testing.assert_array_equal(np.asarray(found), np.asarray(x * n + (n > 1)))
    x.requires_grad = True
    mixed(x, n).sum().backward()
    np.testing.assert_array_equal(np.asarray(x.grad), np.arange(7, dtype="float32"))


def test_views_empty_tensors_and_numbers():
    x = numbers((6, 8))
    for each in (x.T, x[::2, 1:], x[:0], x[0, 0]):
        close([swish(each, 2.0)], [each * ts.sigmoid(2.0 * each)], 1e-12)


def test_one_entry_of_the_op_table():
    before = {each["name"] for each in native.ops()}

    @ts.kernel
    def cubed_shift(x):
        return x**3 + 1

    names = {each["name"] for each in native.ops()} - before
    assert names == {cubed_shift.name}
    again = ts.kernel(cubed_shift.__wrapped__)
    assert again.name not in names
    assert again.name.startswith("cubed_shift.")


def test_in_a_captured_function_and_inside_a_budget():
    x = numbers((64, 64), 1, "float32")
    x.requires_grad = True
    optimizer = optim.SGD([x], lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = swish(x, 1.5).sum()
        loss.backward()
        optimizer.step()
        return loss

    start = np.array(x.detach())
    wanted = [float(step()) for _ in range(4)]
    with ts.no_grad():
        x[...] = ts.asarray(start)
    captured = ts.jit(step)
    assert [float(captured()) for _ in range(4)] == wanted
    with ts.no_grad():
        x[...] = ts.asarray(start)
    budget = ts.budget("1MiB")
    found = []
    for _ in range(4):
        with budget:
            found.append(float(step()))
    assert found == wanted


@pytest.mark.parametrize("inside", ["jit", "budget", "autocast", "record"])
def test_a_kernel_is_defined_where_it_is_called_first(inside):
    @ts.kernel
    def fresh(x, y):
        return ts.tanh(x) * y

    def step(x, y):
        x.grad = None
        loss = fresh(x, y).sum()
        loss.backward()
        return loss

    x, y = numbers((32, 32), 1), numbers((32, 32), 2)
    x.requires_grad = True
    run = ts.jit(step) if inside == "jit" else step
    scopes: dict[str, Any] = {"budget": ts.budget("1MiB"), "autocast": ts.autocast()}
    for _ in range(3):
        scope = ts.Recording() if inside == "record" else scopes.get(inside, contextlib.nullcontext())
        with scope:
            loss = run(x, y)
        np.testing.assert_allclose(float(loss), float((ts.tanh(x) * y).sum()), rtol=1e-12)
        close([x.grad], [((1 - ts.tanh(x) ** 2) * y).detach()])


def test_bytecode_and_cuda_source_are_of_the_same_function():
    assert swish.bytecode() == (
        "v0 = multiply<float32>(x1, x0)\nv1 = sigmoid<float32>(v0)\nv2 -> out0 = multiply<float32>(x0, v1)\n"
    )
    assert "sigmoid_formula, double" in swish.cuda_source("float64", "float64")
    assert repr(swish) == "TileKernel(swish, inputs=2)"


# --- tiles ---------------------------------------------------------------------------------------------


@ts.kernel(tile=True)
def softmax_row(x):
    e = ts.exp(x - x.max())
    return e / e.sum()


@ts.kernel(tile=True)
def norm_row(x, weight, bias):
    centered = x - x.mean()
    return centered * ts.rsqrt((centered * centered).mean() + 1e-5) * weight + bias


@ts.kernel(tile=True)
def log_sum_exp(x):
    top = x.max()
    return ts.log(ts.exp(x - top).sum()) + top


@ts.kernel(tile=True)
def rms_row(x, weight):
    return x * ts.rsqrt((x * x).mean() + 1e-6) * weight


TILES: Any = {
    "softmax": (softmax_row, lambda x: functional.softmax(x, -1), [(4, 3, 7)]),
    "layer_norm": (
        norm_row,
        lambda x, w, b: functional.layer_norm(x, (7,), w, b),
        [(4, 3, 7), (7,), (7,)],
    ),
    "rms_norm": (rms_row, lambda x, w: functional.rms_norm(x, (7,), w, 1e-6), [(5, 7), (7,)]),
    "logsumexp": (log_sum_exp, lambda x: ts.logsumexp(x, axis=-1), [(4, 3, 7)]),
    "one_row": (softmax_row, lambda x: functional.softmax(x, -1), [(9,)]),
}


@pytest.mark.parametrize("name", TILES)
def test_tiles_have_the_values_and_gradients_of_fused_operations(name):
    tile, reference, shapes = TILES[name]
    inputs = [numbers(shape, i) for i, shape in enumerate(shapes)]
    found, wanted = derivatives(tile, inputs), derivatives(reference, inputs)
    assert found[0].shape == wanted[0].shape
    assert len(found) == len(wanted)
    close(found, wanted, 1e-8)


def test_tiles_of_pytorch():
    inputs = [numbers((20, 33), 1), numbers((33,), 2), numbers((33,), 3)]
    x, w, b = (torch.tensor(np.asarray(each), requires_grad=True) for each in inputs)
    value = torch.nn.functional.layer_norm(x, (33,), w, b)
    value.sum().backward()
    close(derivatives(norm_row, inputs)[:4], [value.detach(), x.grad, w.grad, b.grad], 1e-9)


def test_tiles_of_views_halves_and_many_rows():
    x = numbers((40, 300), 1)
    for view in (x.T, x[:, ::3]):
        close([softmax_row(view)], [functional.softmax(view, -1)])
    half = numbers((3000, 65), 2, "bfloat16")
    wanted = functional.softmax(half.to(ts.float64), -1)
    np.testing.assert_allclose(np.asarray(softmax_row(half).to(ts.float64)), np.asarray(wanted), atol=0.01)
    many = numbers((5000, 64), 3, "float32")
    close([softmax_row(many)], [functional.softmax(many, -1)], 1e-5)
    assert softmax_row(numbers((0, 5))).shape == (0, 5)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=instructions, reductions=st.lists(st.sampled_from(["sum", "max", "min", "mean"]), max_size=3))
def test_random_tiles_have_the_values_of_their_operations(program, reductions):
    def row(x, y):
        for name in reductions:
            x = x - getattr(ts, name)(x) * 0.1
        return evaluated(program, [x, y]) + x * 0

    def rows(x, y):
        for name in reductions:
            x = x - getattr(ts, name)(x, axis=-1, keepdims=True) * 0.1
        return evaluated(program, [x, y]) + x * 0

    inputs = [numbers((6, 9), 1), numbers((9,), 2)]
    close(derivatives(ts.kernel(named(row), tile=True), inputs), derivatives(rows, inputs), 1e-8)


# --- what is refused -----------------------------------------------------------------------------------


def test_what_is_no_operation_on_elements_is_refused():
    outside = numbers((2,))
    with pytest.raises(TypeError, match=r"kernel .*\] a truth needs elements.*use ts.where"):
        ts.kernel(named(lambda x: x if x.sum() > 0 else -x))(numbers((3,)))
    with pytest.raises(TypeError, match="made 1 elements of two"):
        ts.kernel(named(lambda x: x.sum()))(numbers((3,)))
    with pytest.raises(TypeError, match="sum is no operation on single elements"):
        ts.kernel(named(lambda x: x - x.sum()))(numbers((3,)))
    with pytest.raises(TypeError, match="a tensor from outside"):
        ts.kernel(named(lambda x: x * outside))(numbers((3,)))
    with pytest.raises(TypeError, match="returned int"):
        ts.kernel(named(lambda x: 3))(numbers((3,)))
    with pytest.raises(TypeError, match="cumsum of shape"):
        ts.kernel(named(lambda x: ts.cumulative_sum(x)), tile=True)(numbers((3,)))
    with pytest.raises(TypeError, match="a result of shape"):
        ts.kernel(named(lambda x: x[1:]), tile=True)(numbers((3,)))


def test_wrong_inputs_are_refused():
    with pytest.raises(TypeError, match="1 inputs given, 2 needed"):
        swish(numbers((3,)))
    with pytest.raises(TypeError, match="no input is a Tensor"):
        swish(1.0, 2.0)
    with pytest.raises(TypeError, match="an input of type list"):
        swish(numbers((3,)), [1, 2, 3])
    with pytest.raises(ValueError, match="swish"):
        swish(numbers((3,)), numbers((4,)))
    for function in (lambda: 1, lambda *x: x, lambda a, b, c, d, e, f, g: a):
        with pytest.raises(TypeError, match="give one to 6"):
            ts.kernel(function)  # type: ignore[arg-type]


# --- both back ends ---------------------------------------------------------------------------------------


@ts.kernel
def bent(x, y, slope):
    inside = ts.where(x > y, ts.tanh(x) * slope, ts.exp(y * 0.1) + 1.5)
    return inside / (ts.abs(x) + 1) - ts.minimum(y, slope)


on_both = pytest.mark.parametrize("fusion", ["eager"], indirect=True)
TOLERANCES = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 2e-4, "float64": 1e-9}


def check_both(kernel, inputs, device, tolerance):
    """Value, gradients and their gradients on the CPU and on a device."""
    wanted = derivatives(kernel, inputs)
    found = derivatives(kernel, [each.to(device) for each in inputs])
    assert all(each.device == device for each in found)
    assert [each.shape for each in found] == [each.shape for each in wanted]
    wide = [[each.to("cpu").to(ts.float64) for each in all_of] for all_of in (found, wanted)]
    for a, b in zip(*wide, strict=True):
        size = max(float(ts.max(ts.abs(b))) if b.size else 0, 1)
        np.testing.assert_allclose(np.asarray(a) / size, np.asarray(b) / size, atol=tolerance)


@on_both
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("length", [1, 7, 32, 33, 1000, 5000])
@pytest.mark.parametrize("kernel", [swish, softmax_row, norm_row, log_sum_exp], ids=lambda each: each.name)
def test_the_same_function_on_the_cpu_and_on_a_device(kernel, length, dtype, device):
    shapes = {"swish": 2, "softmax_row": 1, "norm_row": 3, "log_sum_exp": 1}
    inputs = [numbers((3, length) if i == 0 else (length,), i, dtype) for i in range(shapes[kernel.name])]
    check_both(kernel, inputs, device, TOLERANCES[dtype])


@on_both
@pytest.mark.parametrize(
    ("kernel", "shapes"),
    [
        (swish, [(33, 5), (5,)]),
        (bent, [(33, 5), (5,), (33, 1)]),
        (rms_row, [(4, 1, 3, 7), (2, 1, 7)]),
        (rms_row, [(4, 3, 7), (3, 1)]),
        (rms_row, [(7,), (40, 7)]),
        (softmax_row, [(300, 5)]),
        (softmax_row, [(0, 5)]),
        (log_sum_exp, [()]),
    ],
)
def test_inputs_are_broadcast_on_a_device(kernel, shapes, device):
    check_both(kernel, [numbers(shape, i) for i, shape in enumerate(shapes)], device, 1e-9)


@on_both
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    program=instructions,
    reductions=st.lists(st.sampled_from(["sum", "max", "min", "mean"]), max_size=3),
    length=st.sampled_from([1, 9, 40]),
)
def test_random_tiles_have_the_values_of_the_cpu_on_a_device(program, reductions, length, device):
    def row(x, y):
        for name in reductions:
            x = x - getattr(ts, name)(x) * 0.1
        return evaluated(program, [x, y]) + x * 0

    check_both(
        ts.kernel(named(row), tile=True), [numbers((6, length), 1), numbers((length,), 2)], device, 1e-8
    )


@on_both
def test_tiles_of_views_windows_and_other_types_on_a_device(device):
    @ts.kernel(tile=True)
    def steepest(x):
        change = ts.exp(x[1:]) - ts.exp(x[:-1])
        return ts.where(ts.any(change > 3), change.max() + x[2] * 2, ts.sum(x[::2]))

    @ts.kernel(tile=True)
    def counts(x, n):
        return ts.sum(x > n) + n * 2

    x, n = numbers((40, 30), 1), ts.arange(30)
    for view in (lambda x: x, lambda x: x.T[:, 3:], lambda x: x[:, ::3]):
        for kernel in (steepest, softmax_row):
            close([kernel(view(x.to(device))).to("cpu")], [kernel(view(x))])
    found, wanted = counts(x.to(device), n.to(device)), counts(x, n)
    assert found.dtype == wanted.dtype
    close([found.to("cpu")], [wanted])


def test_the_text_of_a_tile_has_a_pass_for_each_reduction_that_waits_for_others():
    text = norm_row.cuda_source()
    assert text.count("for (int64_t k") == 3
    assert "over_block<Sum<float>>" in text
    assert "rsqrt_formula, float" in text
    assert norm_row.cuda_source(length=50) == text
    assert "over_block" in norm_row.gradient_source("float64", "float64", "float64")
    assert "sigmoid_formula" in swish.gradient_source()
