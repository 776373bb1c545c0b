"""Gradients through captured functions: to the bit those of the functions, for any use of their results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.tensora import nn
from tests.tensora.random_programs import programs, run_program, values

pytestmark = pytest.mark.parametrize("fusion", ["eager"], indirect=True)

N_LEAVES = 3


def check_gradients(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def weighted_sum(results, used, seed):
    """A loss that uses some of the results, each in one or two ways."""
    loss = ts.zeros(())
    for i, result in enumerate(results):
        if used >> i & 1:
            loss = loss + (result * values((1,), seed + i)).sum() + (result * result).sum() * 0.1
    return loss


uses = st.fixed_dictionaries(
    {
        "used": st.integers(1, 15),
        "are_computed": st.booleans(),
        "used_before": st.booleans(),
        "used_after": st.booleans(),
        "is_shared": st.booleans(),
        "keeps_gradient": st.booleans(),
    }
)


def gradients_of(call, outside, use, seed):
    """Gradients of the leaves of a call, and of what is computed with the same leaves around it."""
    leaves = [values((3, 3), seed + i) for i in range(2)] + [outside]
    for leaf in leaves:
        leaf.requires_grad = True
        if not use["keeps_gradient"]:
            leaf.grad = None
    loss = ts.zeros(())
    arguments = [leaf * 1.5 if use["are_computed"] else leaf for leaf in leaves[:2]]
    if use["is_shared"]:
        arguments[1] = arguments[0]
    if use["used_before"]:
        loss = loss + sum(((each * 0.7).sum() for each in [*arguments, outside]), ts.zeros(()))
    results = call(*arguments)
    if use["used_after"]:
        loss = loss + sum(((each * each).sum() for each in [*arguments, outside]), ts.zeros(()))
    loss = loss + weighted_sum(results, use["used"], seed)
    if loss.requires_grad:
        loss.backward()
    return [leaf.grad if leaf.grad is None else leaf.grad * 1 for leaf in leaves]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs, n_results=st.integers(1, 4), uses=st.lists(uses, min_size=1, max_size=2))
def test_gradients_have_the_bits_for_any_use_of_results(program, n_results, uses):
    outside = [values((3, 3), 7), values((3, 3), 7)]

    def function_of(parameter):
        return lambda x, y: run_program(program, [x, y, parameter])[-n_results:]

    function, captured = function_of(outside[0]), ts.jit(function_of(outside[1]))
    for seed in range(4):
        for use in uses:
            wanted = gradients_of(function, outside[0], use, seed)
            check_gradients(gradients_of(captured, outside[1], use, seed), wanted)


def test_gradients_of_one_tensor_returned_twice():
    def function(x):
        y = ts.tanh(x) * x
        return y, {"again": y}, y

    captured, gradients = ts.jit(function), []
    for seed in range(4):
        for call in (function, captured):
            x = values((9, 7), seed)
            x.requires_grad = True
            first, second, third = call(x)
            assert first is second["again"] is third
            loss = (first * values((9, 7), 1)).sum() + (second["again"] * values((9, 7), 2)).sum() * 0.3
            (loss + (third * first * 0.7).sum()).backward()
            gradients.append(x.grad)
    check_gradients(gradients[1::2], gradients[::2])


HOOKS = {
    "of a leaf": lambda module, calls: module[0].weight.register_hook(lambda g: g * 2),
    "of a leaf, which counts": lambda module, calls: module[0].weight.register_hook(
        lambda g: calls.append(1)
    ),
    "after a leaf": lambda module, calls: module[0].weight.register_post_accumulate_grad_hook(
        lambda p: calls.append(1)
    ),
    "of a layer": lambda module, calls: module[1].register_full_backward_hook(
        lambda layer, given, grads: (given[0] * 3,)
    ),
    "of a layer, which counts": lambda module, calls: module[1].register_full_backward_hook(
        lambda layer, given, grads: calls.append(1)
    ),
    "of a value": lambda module, calls: module[1].register_forward_hook(
        lambda layer, given, result: result.register_hook(lambda g: g * 5) and None
    ),
}


@pytest.mark.filterwarnings("ignore:.*jit. .* runs as written")
@pytest.mark.parametrize("hook", HOOKS)
def test_gradient_hooks_are_called_as_by_the_function(hook):
    outcomes = []
    for wrap in (lambda function: function, ts.jit):
        ts.random.manual_seed(0)
        module, calls = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), []
        HOOKS[hook](module, calls)
        run, gradients = wrap(module), []
        for seed in range(4):
            module.zero_grad()
            run(values((3, 4), seed)).sum().backward()
            gradients += [each.grad for each in module.parameters()]
        outcomes.append((gradients, len(calls)))
    check_gradients(outcomes[1][0], outcomes[0][0])
    assert outcomes[1][1] == outcomes[0][1]


def test_gradients_with_a_graph_of_their_own_are_refused():
    captured = ts.jit(lambda x: (x**3).sum())
    for _ in range(3):
        x = values((3,))
        x.requires_grad = True
        with pytest.raises(
            RuntimeError, match="create_graph=True, but the backward pass of a captured function"
        ):
            ts.grad(captured(x), x, create_graph=True)


def test_gradients_inside_of_computed_arguments_reach_their_graph():
    def step(x):
        (x * x).sum().backward()
        return x * 2

    captured = ts.jit(step)
    for call in (step, captured, captured, captured):
        leaf = values((5,))
        leaf.requires_grad = True
        call(leaf * 3.0)
        np.testing.assert_allclose(np.asarray(leaf.grad), 18 * np.asarray(leaf.detach()), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*jit. .* runs as written")
def test_tensors_that_a_function_leaves_elsewhere_keep_their_graph():
    kept = []

    def function(x):
        kept.append(x * 2)
        return x

    captured = ts.jit(function)
    leaf = values((3,))
    leaf.requires_grad = True
    for _ in range(3):
        captured(leaf * 1.0)
        leaf.grad = None
        kept.pop().sum().backward()
        np.testing.assert_array_equal(np.asarray(leaf.grad), [2, 2, 2])
