"""Graphs: gradients against PyTorch, order, release, hooks, functions of the user, errors, threads, leaks."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from accelera.tensora import autograd
from accelera.tensora.core import native
from tests.threads import run_in_threads

F64 = native.dtype.float64


def leaf(values: Any, dtype: Any = F64) -> Any:
    x = native.asarray(values, dtype)
    x.requires_grad = True
    return x


def test_a_perceptron_has_pytorchs_gradients() -> None:
    random = np.random.default_rng(0)
    arrays = [random.normal(size=shape) for shape in ((8, 5), (5, 7), (7,), (7, 3))]
    ours = [leaf(each) for each in arrays]
    theirs = [torch.tensor(each, requires_grad=True) for each in arrays]
    x, w, b, v = ours
    native_loss = native.sum(native.square(native.tanh(x @ w + b) @ v))
    autograd.backward(native_loss)
    x, w, b, v = theirs
    (torch.tanh(x @ w + b) @ v).square().sum().backward()
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(own.grad), other.grad.numpy(), rtol=1e-12)


def test_a_tensor_used_twice_gets_both_gradients() -> None:
    x = leaf(3.0)
    autograd.backward(x * x + x)
    assert x.grad.item() == 7.0


def test_gradients_add_up_over_passes() -> None:
    x = leaf([1.0, 2.0])
    for _ in range(3):
        autograd.backward(native.sum(x * 2))
    assert x.grad.tolist() == [6.0, 6.0]


def test_a_gradient_shares_its_memory_with_nobody() -> None:
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    autograd.backward(native.sum(x + y))
    x.grad[0] = 100.0
    assert y.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_higher_derivatives_of_a_power(order: int) -> None:
    x = leaf(1.5)
    y = x * x * x * x * x
    for _ in range(order):
        (y,) = autograd.grad(y, x, create_graph=True)
    expected = np.prod([5 - i for i in range(order)]) * 1.5 ** (5 - order)
    assert y.item() == pytest.approx(expected, rel=1e-12)


def test_chains_of_any_length_neither_record_nor_end_recursively() -> None:
    x = leaf(1.0)
    y = x
    for _ in range(100_000):
        y = y + x
    autograd.backward(y)
    assert x.grad.item() == 100_001.0
    del y
    deep = leaf(np.ones(4))
    z = deep
    for _ in range(1000):
        z = z + native.tanh(z) * 1e-3
    autograd.backward(native.sum(z))
    assert np.isfinite(deep.grad.tolist()).all()


def test_a_diamond_is_linear_in_its_edges() -> None:
    """Sixty doublings: a walk over paths would never end."""
    x = leaf(1.0)
    y = x
    for _ in range(60):
        y = y + y
    autograd.backward(y)
    assert x.grad.item() == 2.0**60


def test_gradients_of_inner_tensors() -> None:
    x = leaf(2.0)
    y = x * 3
    z = y * y
    assert [g.item() for g in autograd.grad(z, [y, x])] == [12.0, 36.0]
    assert x.grad is None


def test_what_is_not_used_is_named_or_none() -> None:
    x, y = leaf(1.0), leaf(2.0)
    with pytest.raises(RuntimeError, match="nothing leads from the outputs to input 1"):
        autograd.grad(x * 2, [x, y])
    found = autograd.grad(x * 2, [x, y], allow_unused=True)
    assert found[0].item() == 2.0
    assert found[1] is None


def test_a_second_backward_is_refused_unless_the_graph_was_retained() -> None:
    x = leaf(2.0)
    y = native.exp(x)
    autograd.backward(y, retain_graph=True)
    autograd.backward(y)
    with pytest.raises(RuntimeError, match=r"'exp'\] it runs a second time.*retain_graph=True"):
        autograd.backward(y)
    assert x.grad.item() == pytest.approx(2 * np.exp(2.0))


def test_a_value_that_was_overwritten_is_noticed() -> None:
    x = leaf([1.0, 2.0])
    y = x * 1.0
    z = native.sum(y * y)
    y += 1.0
    with pytest.raises(RuntimeError, match=r"input [01], of shape \(2,\), was written in place"):
        autograd.backward(z)


def test_a_result_that_was_overwritten_is_noticed() -> None:
    x = leaf([1.0, 2.0])
    y = native.exp(x)
    z = native.sum(y)
    with autograd.no_grad():
        y += 1.0
    with pytest.raises(RuntimeError, match="output 0"):
        autograd.backward(z)


def test_without_a_graph_and_without_a_weight() -> None:
    with pytest.raises(RuntimeError, match="requires_grad=True, or under no_grad"):
        autograd.backward(native.asarray(1.0))
    with pytest.raises(ValueError, match="one element"):
        autograd.backward(leaf([1.0, 2.0]) * 2)
    with pytest.raises(ValueError, match=r"gradient 0 has shape \(3,\)"):
        autograd.backward(leaf([1.0, 2.0]) * 2, native.asarray([1.0, 2.0, 3.0]))
    with pytest.raises(TypeError, match="int64 have no gradients"):
        native.asarray([1]).requires_grad = True


def test_no_grad_is_of_its_thread_and_nests() -> None:
    x = leaf(1.0)
    seen = []
    with autograd.no_grad():
        assert not (x * 2).requires_grad
        run_in_threads(lambda: seen.append((x * 2).requires_grad))
        with autograd.enable_grad():
            assert (x * 2).requires_grad
        assert not autograd.is_grad_enabled()
    assert seen == [True]


def test_hooks_see_and_change_the_whole_gradient() -> None:
    x = leaf(2.0)
    y = x * 3
    seen: list[float] = []
    first = autograd.register_hook(x, lambda g: seen.append(g.item()))
    autograd.register_hook(y, lambda g: g * 10)
    autograd.backward(y * y + y)
    assert seen == [390.0]  # (2 * 6 + 1) * 10 * 3, once
    assert x.grad.item() == 390.0
    first.remove()
    autograd.backward(x * 1)
    assert seen == [390.0]


def test_a_retained_gradient() -> None:
    x = leaf(2.0)
    y = x * 3
    y.retain_grad()
    autograd.backward(y * y)
    assert y.grad.item() == 12.0


class Cube(autograd.Function):
    @staticmethod
    def forward(ctx: autograd.Context, x: Any, factor: float) -> Any:
        ctx.save_for_backward(x)
        return x * x * x * factor

    @staticmethod
    def backward(ctx: autograd.Context, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * x * x * 3 * 2.0, None


def test_a_function_of_the_user_can_be_differentiated_twice() -> None:
    x = leaf([1.0, 2.0])
    assert autograd.gradcheck(lambda x: Cube.apply(x, 2.0), [x])
    assert autograd.gradgradcheck(lambda x: Cube.apply(x, 2.0), [x])
    y = Cube.apply(x, 2.0)
    assert native.grad_fn(y)[0] == "Cube"


def test_a_function_without_a_backward_part_is_refused() -> None:
    class Half(autograd.Function):
        @staticmethod
        def forward(ctx: autograd.Context, x: Any) -> Any:
            return x * 0.5

    with pytest.raises(TypeError, match=r"\[Half\] it has no backward; define it as a static method"):
        Half.apply(leaf(1.0))


def test_gradcheck_finds_a_wrong_gradient() -> None:
    class Wrong(Cube):
        @staticmethod
        def backward(ctx: autograd.Context, g: Any) -> Any:
            return g * 5, None

    x = leaf([1.0, 2.0])
    with pytest.raises(autograd.GradcheckError, match="with respect to input 0"):
        autograd.gradcheck(lambda x: Wrong.apply(x, 2.0), [x])
    assert not autograd.gradcheck(lambda x: Wrong.apply(x, 2.0), [x], raise_exception=False)


def test_anomaly_mode_names_the_forward_line() -> None:
    x = leaf([0.0, 1.0])
    with autograd.detect_anomaly():
        y = native.sum(native.multiply(native.sqrt(x), 0.0))  # the line that is named
        with pytest.raises(RuntimeError, match=r"(?s)'sqrt'\] a gradient is NaN.*the line that is named"):
            autograd.backward(y)


def test_jacobian_hessian_and_products_agree_with_pytorch() -> None:
    a = np.random.default_rng(0).normal(size=(3,))
    v = np.random.default_rng(1).normal(size=(3,))
    x = native.asarray(a)

    def ours(x: Any) -> Any:
        return native.sin(x) * native.sum(x * x)

    def theirs(x: Any) -> Any:
        return x.sin() * (x * x).sum()

    t, w = torch.tensor(a), torch.tensor(v)
    functional = torch.autograd.functional
    np.testing.assert_allclose(autograd.jacobian(ours, x).tolist(), functional.jacobian(theirs, t).numpy())
    np.testing.assert_allclose(
        autograd.hessian(lambda x: native.sum(ours(x)), x).tolist(),
        functional.hessian(lambda x: theirs(x).sum(), t).numpy(),
    )
    weight = native.asarray(v)
    np.testing.assert_allclose(
        autograd.vjp(ours, x, weight)[1].tolist(), functional.vjp(theirs, t, w)[1].numpy()
    )
    np.testing.assert_allclose(
        autograd.jvp(ours, x, weight)[1].tolist(), functional.jvp(theirs, t, w)[1].numpy()
    )


def test_the_graph_can_be_walked() -> None:
    a, b = leaf(1.0), leaf(2.0)
    c = a + b
    name, first, second = native.grad_fn(c)
    assert (name, first is a, second is b) == ("add", True, True)
    name, inner = native.grad_fn(native.exp(c))
    assert name == "exp"
    assert native.grad_fn(inner)[0] == "add"


def test_two_threads_have_tapes_of_their_own() -> None:
    results: dict[int, float] = {}

    def work(seed: int) -> None:
        x = leaf(float(seed))
        for _ in range(200):
            y = x
            for _ in range(20):
                y = y * 1.01 + x
            autograd.backward(y)
        results[seed] = x.grad.item()

    run_in_threads(*(partial(work, seed) for seed in (1, 2, 3)))
    assert len(set(results.values())) == 1  # the gradient does not depend on x


def test_no_cycle_keeps_a_graph_alive() -> None:
    gc.disable()
    try:
        x = leaf([1.0, 2.0])
        y = native.exp(native.tanh(x) * x)
        gone = weakref.ref(y)
        autograd.backward(native.sum(y), retain_graph=True)
        del y
        assert gone() is None
    finally:
        gc.enable()


def test_ten_thousand_steps_leave_nothing() -> None:
    x = leaf(np.ones(64))

    def step() -> None:
        autograd.backward(native.sum(native.exp(x * 0.5) * x))
        x.grad = None

    for _ in range(500):
        step()
    held, live = psutil.Process().memory_info().rss, native.memory_stats().live_bytes
    for _ in range(10_000):
        step()
    assert native.memory_stats().live_bytes <= live
    assert psutil.Process().memory_info().rss - held < 2**20
