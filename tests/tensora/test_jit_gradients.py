"""Gradients through captured functions: to the bit those of the functions, for any use of their results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accelera.tensora as ts
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
