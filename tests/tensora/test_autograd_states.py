"""Autograd of tensors that change around it: frozen leaves, older graphs, writes, hooks, arrays of NumPy."""

from __future__ import annotations

import contextlib
import gc
import itertools
import weakref
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts
from accelera.tensora import nn, optim

torch = pytest.importorskip("torch")


def _leaf(module: Any, values: Any) -> Any:
    if module is torch:
        return torch.tensor(values, dtype=torch.float64, requires_grad=True)
    return ts.tensor(np.array(values, np.float64), requires_grad=True)


def _grad(x: Any) -> Any:
    return None if x.grad is None else np.asarray(x.grad).tolist()


# --- frozen between the forward and the backward pass -----------------------------------------------------

TWO_LEAVES = {
    "product": lambda a, b: (a * b).sum(),
    "matmul": lambda a, b: (a @ b).sum(),
    "sum": lambda a, b: (a + b).sum(),
    "reused": lambda a, b: (a * b + b * b + a[0]).sum(),
    "view of the leaf": lambda a, b: (a[0] * b[:, 1]).sum(),
    "chain": lambda a, b: ((a @ b).tanh() @ b).sum(),
}


@pytest.mark.parametrize("name", TWO_LEAVES)
@pytest.mark.parametrize("frozen", [0, 1])
def test_leaf_frozen_after_forward_gets_no_gradient(name, frozen):
    values = ([[0.5, 2.0], [1.0, -1.0]], [[3.0, 1.0], [-2.0, 0.25]])
    grads = []
    for module in (ts, torch):
        leaves = [_leaf(module, value) for value in values]
        loss = TWO_LEAVES[name](*leaves)
        leaves[frozen].requires_grad_(False)
        loss.backward()
        grads.append([_grad(leaf) for leaf in leaves])
    np.testing.assert_allclose(grads[0][1 - frozen], grads[1][1 - frozen], rtol=1e-12)
    assert grads[0][frozen] is None


def test_modules_frozen_after_forward_train_on():
    net = nn.Sequential(nn.Conv1d(2, 3, 3), nn.SiLU(), nn.Flatten(), nn.Linear(18, 2), nn.LayerNorm(2))
    for module in (net[0], net[3], net[4]):
        loss = net(ts.ones((4, 2, 8))).square().mean()
        net.zero_grad()
        module.requires_grad_(False)
        loss.backward()
        assert all(p.grad is None for p in module.parameters())
        assert any(p.grad is not None for p in net.parameters()) or module is net[4]
    assert net[4].weight.grad is None


def test_leaf_frozen_by_a_hook_gets_no_gradient():
    a, b = (_leaf(ts, [1.0, 2.0]) for _ in range(2))

    def freeze(_grad: Any) -> None:
        b.requires_grad_(False)

    b.register_hook(freeze)
    (a * b).sum().backward()
    assert b.grad is None
    assert _grad(a) == [1.0, 2.0]


# --- hooks of leaves that several graphs read -------------------------------------------------------------


def _use(module: Any, w: Any, kind: str) -> Any:
    if kind == "power":
        return w**3
    if kind == "sum":
        return w + 1.0
    return (w * 2.0) * w


@pytest.mark.parametrize(("first", "second"), list(itertools.product(["power", "sum", "twice"], repeat=2)))
@pytest.mark.parametrize("passes", [1, 2])
def test_leaf_hook_sees_the_whole_gradient(first, second, passes):
    results = []
    for module in (ts, torch):
        w = _leaf(module, [0.5, -0.5])
        seen: list[Any] = []

        def clip(grad: Any, seen: list[Any] = seen) -> Any:
            seen.append(np.asarray(grad.detach()).tolist())
            return grad.clip(-1, 1)

        w.register_hook(clip)
        old = _use(module, w, first)
        for _ in range(passes):
            (w * 4.0).sum().backward()
        w.grad = None
        seen.clear()
        newer = old * 1.5  # newer than the last backward pass, but leads to older operations
        (newer * 2.0 + _use(module, w, second) * 6.0).sum().backward()
        results.append((seen, _grad(w)))
    assert len(results[0][0]) == 1
    assert results[0] == results[1]


def test_optimizer_of_a_budget_steps_once_with_an_older_graph():
    def train(inside: bool) -> float:
        w = ts.tensor(np.full(200, 0.25), requires_grad=True)
        optimizer = optim.SGD([w], lr=0.05, momentum=0.5)
        old = w * 3
        (w * 2).sum().backward()
        w.grad = None
        for _ in range(3):
            with ts.budget("32MiB", optimizer=optimizer) if inside else contextlib.nullcontext():
                (old + w * 4).sum().backward(retain_graph=True)
                optimizer.step()
                optimizer.zero_grad()
        return w[0].item()

    assert train(True) == train(False)


# --- writes in place after hooks and retain_grad ----------------------------------------------------------


def _watched(module: Any, how: str, x: Any, calls: list[Any]) -> None:
    if how == "retain":
        x.retain_grad()
    elif how == "hook":
        x.register_hook(lambda grad: calls.append(np.asarray(grad.detach()).tolist()))
    elif how == "both":
        x.register_hook(lambda grad: calls.append(np.asarray(grad.detach()).tolist()))
        x.retain_grad()


WRITES = {
    "base": ["base"],
    "view": ["view"],
    "view twice": ["view", "view"],
    "view and base": ["view", "base"],
}


@pytest.mark.parametrize("how", ["retain", "hook", "both"])
@pytest.mark.parametrize("watched", ["base", "view", "sibling"])
@pytest.mark.parametrize("written", WRITES)
@pytest.mark.parametrize("summed", ["base", "view", "both"])
def test_watched_tensors_that_are_written(how, watched, written, summed):
    results = []
    for module in (ts, torch):
        x = _leaf(module, np.arange(12.0).reshape(3, 4).tolist())
        base = x * 2.0
        tensors = {"base": base, "view": base[1], "sibling": base[:, 2:]}
        calls: list[Any] = []
        _watched(module, how, tensors[watched], calls)
        for name in WRITES[written]:
            tensors[name] *= 0.5
        parts = {"base": [base], "view": [tensors["view"] * 3.0], "both": [base * 2.0, tensors["view"] * 3.0]}
        loss = sum(part.sum() for part in parts[summed])
        loss.backward()
        kept = _grad(tensors[watched]) if how != "hook" else None
        if watched == "view" and written != "base":
            calls = []  # PyTorch calls the hooks of written tensors, but not those of views
        results.append((_grad(x), kept, calls))
    assert results[0] == results[1]


def test_hook_of_a_written_view_sees_the_earlier_value():
    x = _leaf(ts, [1.0, 2.0, 3.0])
    view = (x * 2.0)[1:]
    calls: list[Any] = []
    view.register_hook(lambda grad: calls.append(grad.tolist()))
    view *= 5.0
    view.sum().backward()
    assert calls == [[5.0, 5.0]]
    assert _grad(x) == [0.0, 10.0, 10.0]


@pytest.mark.parametrize("how", ["retain", "hook"])
def test_watched_tensor_without_views_that_is_written(how):
    results = []
    for module in (ts, torch):
        x = _leaf(module, [1.0, 2.0, 3.0])
        y = x * 3.0
        calls: list[Any] = []
        _watched(module, how, y, calls)
        y += x
        y *= 2.0
        _watched(module, "hook", y, calls)
        (y * y).sum().backward()
        results.append((_grad(x), _grad(y) if how == "retain" else None, calls))
    assert results[0] == results[1]


def test_assigned_grad_does_not_break_written_views():
    x = _leaf(ts, np.full((3, 8), 2.0).tolist())
    base = ts.exp(x * 0.0) + 1.0
    part = ts.reshape(base, (-1,))
    part.grad = None
    base *= 3.0
    part.sum().backward()
    assert _grad(x) == [[0.0] * 8] * 3


# --- graphs that no backward pass uses --------------------------------------------------------------------


def _residual(w: Any, norm: Any) -> None:
    y = w * 1.5
    y += norm(y)
    y *= ts.sigmoid(y)


def _half(w: Any, _norm: Any) -> None:
    y = w + 1
    y[:, :32] = ts.sigmoid(y[:, :32]) * y[:, 32:]
    y[:, 32:] *= y[:, :32]


def _untracked_buffer(w: Any, _norm: Any) -> None:
    y = ts.ones((64, 64))
    y += y * w
    y -= ts.exp(y) * y


def _view_of_view(w: Any, _norm: Any) -> None:
    y = ts.reshape(w * 2, (32, 128))
    y[0] *= y[1]
    y.T[3] += ts.tanh(y.T[4]) * y.T[5]


def _saved_result(w: Any, _norm: Any) -> None:
    y = ts.exp(w)
    y *= ts.sin(y)
    y /= y + ts.sqrt(ts.abs(y) + 1.0)


def _where_and_clip(w: Any, _norm: Any) -> None:
    y = w - 0.5
    y += ts.where(y > 0, y * y, ts.maximum(y, 0.1) * y)


@pytest.mark.parametrize(
    "forward", [_residual, _half, _untracked_buffer, _view_of_view, _saved_result, _where_and_clip]
)
def test_graph_without_backward_is_freed(forward):
    w, norm = ts.ones((64, 64)).requires_grad_(), nn.LayerNorm(64)
    forward(w, norm)
    gc.collect()
    before = ts.memory_stats().live_bytes
    for _ in range(20):
        forward(w, norm)
    gc.collect()
    assert ts.memory_stats().live_bytes - before < 64 * 64 * 4


def test_saved_tensor_that_was_written_is_refused():
    w = ts.ones((4,)).requires_grad_()
    y = w * 2
    y += y * y
    with pytest.raises(RuntimeError, match="written in place"):
        y.sum().backward()


def test_long_chain_of_writes_takes_linear_time():
    w = ts.ones((8,)).requires_grad_()
    rows, state = ts.zeros((2000, 8)), w * 1.0
    for i in range(2000):
        state = ts.tanh(state * w)
        rows[i] = state
    rows.sum().backward()
    assert np.isfinite(np.asarray(w.grad)).all()


# --- arrays of NumPy --------------------------------------------------------------------------------------

ARRAY = np.arange(12.0, dtype=np.float32).reshape(4, 3) - 5
KEPT = {
    "w @ array": lambda w, array: w @ array,
    "array @ w": lambda w, array: array.T @ w.T,
    "w @ vector": lambda w, array: w @ array[:, 0],
    "vector @ w": lambda w, array: array[:, 1] @ w.T,
    "w * array": lambda w, array: w * array[:, 0],
    "array - w": lambda w, array: array[:, 0] - w,
    "array / w": lambda w, array: array[:, 2] / w,
    "w ** array": lambda w, array: w ** array[:, 2],
    "number * w": lambda w, array: np.float32(2) * w,
}
REFUSED = {
    "exp": lambda w: np.exp(w),
    "tanh": lambda w: np.tanh(w),
    "add": lambda w: np.add(w, 1),
    "add array": lambda w: np.add(ARRAY[:, 0], w),
    "matmul": lambda w: np.matmul(w, ARRAY),
    "dot": lambda w: np.dot(w, ARRAY),
    "einsum": lambda w: np.einsum("ij,jk->ik", w, ARRAY),
    "concatenate": lambda w: np.concatenate([w, w]),
    "where": lambda w: np.where(w > 0, w, 0),
    "asarray": lambda w: np.asarray(w),
    "array": lambda w: np.array(w),
    "memoryview": lambda w: memoryview(w),
    "from_dlpack": lambda w: np.from_dlpack(w),
    "write through a view": lambda w: np.asarray(w).__setitem__(1, 50.0),
    "norm": lambda w: np.linalg.norm(w),
}


@pytest.mark.parametrize("name", KEPT)
def test_operators_with_arrays_keep_the_gradient(name):
    w = (ts.reshape(ts.arange(20, dtype=ts.float32), (5, 4)) / 7 + 0.5).detach().requires_grad_()
    twin = w.detach().clone().requires_grad_()
    KEPT[name](w, ARRAY).sum().backward()
    KEPT[name](twin, ts.asarray(ARRAY)).sum().backward()
    np.testing.assert_array_equal(np.asarray(w.grad), np.asarray(twin.grad))


def test_array_plus_assigned_keeps_the_gradient():
    w, array = ts.ones((5, 4)).requires_grad_(), np.ones((5, 4), np.float32)
    array += w
    array.sum().backward()
    assert _grad(w) == [[1.0] * 4] * 5


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("leaf", [True, False])
def test_numpy_functions_of_tracked_tensors_are_refused(name, leaf):
    w = ts.full((5, 4), 2.0).requires_grad_()
    with pytest.raises((RuntimeError, TypeError, ValueError, BufferError)):
        REFUSED[name](w if leaf else w * 1.0)
    assert w.tolist() == [[2.0] * 4] * 5


def test_numpy_functions_of_untracked_tensors_work():
    w = ts.full((5, 4), 2.0).requires_grad_()
    for x in (w.detach(), ts.full((5, 4), 2.0)):
        np.testing.assert_allclose(np.exp(x), np.exp(2.0), rtol=1e-6)
        np.testing.assert_allclose(np.asarray(x), 2.0)
        assert (x @ ARRAY).shape == (5, 3)
    with ts.no_grad():
        np.testing.assert_allclose(np.asarray(w), 2.0)


def test_in_place_operators_with_arrays_keep_the_graph():
    w = ts.ones((4, 4)).requires_grad_()
    y = w * 2.0
    y += ARRAY[:, :1]
    y @= np.eye(4, dtype=np.float32) * 3
    y.sum().backward()
    assert _grad(w) == [[6.0] * 4] * 4
    with pytest.raises(RuntimeError):
        w += ARRAY[:, :1]


def test_tensor_saved_by_a_dropped_graph_is_freed():
    class Marker:
        pass

    w, marker = ts.ones((4,)).requires_grad_(), Marker()
    y = w * 2
    y.register_hook(lambda grad, marker=marker: None)
    y += y * w
    alive = weakref.ref(marker)
    del y, marker
    gc.collect()
    assert alive() is None
