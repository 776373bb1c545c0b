"""Modules: attributes, states, hooks and containers with PyTorch's rules."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.tensora import functional, nn


@pytest.fixture(autouse=True, params=["once"])
def fusion() -> None:
    """Modules know nothing of deferred results: these tests run once."""


def network(library: Any) -> Any:
    """A network with a shared parameter, a buffer that is not saved, and modules inside modules."""

    class Inner(library.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a = library.Linear(3, 3)
            self.b = library.Linear(3, 3)
            self.b.weight = self.a.weight
            self.norm = library.BatchNorm1d(3)
            ones = torch.ones(2) if library is torch.nn else ts.ones(2)
            self.register_buffer("scratch", ones, persistent=False)
            self.register_parameter("nothing", None)

        def forward(self, x: Any) -> Any:
            return self.norm(self.b(self.a(x)))

    return library.Sequential(Inner(), library.ReLU(), library.ModuleList([library.Linear(2, 2)]))


def test_names_come_in_pytorchs_order() -> None:
    mine, theirs = network(nn), network(torch.nn)
    for method in ("named_parameters", "named_buffers", "named_modules", "named_children"):
        assert [name for name, _ in getattr(mine, method)()] == [
            name for name, _ in getattr(theirs, method)()
        ]
    assert list(mine.state_dict()) == list(theirs.state_dict())
    assert len(list(mine.parameters())) == len(list(theirs.parameters()))
    assert list(mine.state_dict(prefix="net.")) == list(theirs.state_dict(prefix="net."))
    names = [name for name, _ in mine.named_parameters(remove_duplicate=False)]
    assert names == [name for name, _ in theirs.named_parameters(remove_duplicate=False)]


def test_a_state_goes_to_another_module_and_back() -> None:
    mine, other = network(nn), network(nn)
    result = other.load_state_dict(mine.state_dict())
    assert result.missing_keys == result.unexpected_keys == []
    for name, value in mine.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name].numpy(), value.numpy())
    assert other[0].a.weight is other[0].b.weight
    wrong = {name: value for name, value in mine.state_dict().items() if name != "0.a.bias"}
    wrong["0.b.bias"] = ts.ones(7)
    wrong["extra"] = ts.ones(1)
    before = other[0].a.weight.detach().numpy().copy()
    with pytest.raises(RuntimeError, match=r"0.b.bias has shape \(7,\).*missing keys: 0.a.bias.*extra"):
        other.load_state_dict(wrong)
    np.testing.assert_array_equal(other[0].a.weight.detach().numpy(), before)
    del wrong["0.b.bias"]
    found = other.load_state_dict(wrong, strict=False)
    assert found.missing_keys == ["0.a.bias", "0.b.bias"]
    assert found.unexpected_keys == ["extra"]


def test_assigned_tensors_become_the_parameters() -> None:
    module = nn.Linear(2, 2)
    module.weight.requires_grad = False
    value = ts.ones((2, 2))
    module.load_state_dict({"weight": value, "bias": ts.zeros(2)}, assign=True)
    value[0, 0] = 5
    assert float(module.weight.detach()[0, 0]) == 5
    assert not module.weight.requires_grad
    assert isinstance(module.weight, nn.Parameter)


def test_copies_and_pickles_have_memory_of_their_own() -> None:
    module = network(nn)[2]
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        twin[0].weight.detach()[...] = 0
        assert float(ts.sum(ts.abs(module[0].weight.detach()))) > 0
        assert isinstance(twin[0].weight, nn.Parameter)
        assert twin[0].weight.requires_grad


def test_conversions_keep_the_parameters_objects() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    before = list(module.parameters())
    module(ts.ones((2, 3))).sum().backward()
    module.double()
    assert all(a is b for a, b in zip(before, module.parameters(), strict=True))
    assert {each.dtype for each in module.parameters()} == {ts.float64}
    assert module[0].weight.grad.dtype == ts.float64
    assert module[1].num_batches_tracked.dtype == ts.int64
    assert module.half().bfloat16().float().cpu().to("cpu", ts.float64)[0].weight.dtype == ts.float64
    with pytest.raises(TypeError, match="floating-point"):
        module.to(ts.int32)


def test_modes_and_gradients_are_set_for_all_inside() -> None:
    module = network(nn)
    assert not module.eval()[0].norm.training
    assert module.train()[0].norm.training
    module.requires_grad_(False)
    assert not any(each.requires_grad for each in module.parameters())
    module.requires_grad_()
    module[0](ts.ones((4, 3))).sum().backward()
    module.zero_grad(set_to_none=False)
    assert float(ts.sum(ts.abs(module[0].a.weight.grad))) == 0
    module.zero_grad()
    assert module[0].a.weight.grad is None
    seen: list[str] = []
    module.apply(lambda each: seen.append(type(each).__name__))
    expected: list[str] = []
    network(torch.nn).apply(lambda each: expected.append(type(each).__name__))
    assert seen == expected
    with pytest.raises(ValueError, match="mode=1"):
        module.train(1)  # type: ignore[arg-type]


def test_hooks_see_and_change_what_pytorchs_do() -> None:
    logs: list[list[Any]] = []
    for library, tensor in ((nn, ts.tensor), (torch.nn, torch.tensor)):
        log = logged(library, tensor)
        logs.append(log)
    assert logs[0] == logs[1]


def logged(library: Any, tensor: Any) -> list[Any]:
    """What hooks of a module saw, and what came of them."""
    log: list[Any] = []
    module = library.Linear(2, 2)
    module.load_state_dict({"weight": tensor([[1.0, 2.0], [3.0, 4.0]]), "bias": tensor([0.5, -0.5])})
    handles = [
        module.register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
        module.register_forward_hook(lambda m, args, output: output + 1),
        module.register_full_backward_pre_hook(lambda m, grads: (grads[0] * 3,)),
        module.register_full_backward_hook(lambda m, gi, go: log.append((gi[0].tolist(), go[0].tolist()))),
    ]
    handles += [module.register_full_backward_hook(lambda m, gi, go: (gi[0] * 10,))]
    x = tensor([[1.0, -1.0]], requires_grad=True)
    y = module(x)
    y.sum().backward()
    log += [y.tolist(), x.grad.tolist(), module.weight.grad.tolist()]
    for handle in handles:
        handle.remove()
    log.append(module(x).tolist())
    named = module.register_forward_pre_hook(lambda m, args, kwargs: ((kwargs["x"],), {}), with_kwargs=True)
    log.append(module(x=x).tolist())
    named.remove()
    return log


def test_wrong_attributes_are_refused() -> None:
    module = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="'weight' is a parameter"):
        module.weight = ts.ones((2, 2))  # type: ignore[assignment]
    with pytest.raises(ValueError, match="has no dot"):
        module.register_buffer("a.b", ts.ones(1))
    with pytest.raises(ValueError, match="exists already"):
        module.register_parameter("forward", None)
    with pytest.raises(TypeError, match=r"nn\.Parameter"):
        module.register_parameter("other", ts.ones(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Tensor or None"):
        module.register_buffer("other", 3)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="no module 'x'"):
        module.get_submodule("x")
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = module.missing
    with pytest.raises(NotImplementedError, match="forward"):
        nn.Module()(1)

    class Early(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter(ts.ones(1))

    with pytest.raises(AttributeError, match=r"super\(\)"):
        Early()


def test_containers_are_lists_and_dictionaries() -> None:
    layers = nn.ModuleList([nn.Linear(1, 1), nn.ReLU()])
    layers.insert(1, nn.Tanh())
    layers.append(nn.Sigmoid())
    assert [type(each).__name__ for each in layers] == ["Linear", "Tanh", "ReLU", "Sigmoid"]
    assert isinstance(layers[1:3], nn.ModuleList)
    assert isinstance(layers.pop(), nn.Sigmoid)
    del layers[0]
    more = layers + [nn.ReLU()]  # noqa: RUF005 - the operator is what is tested
    assert len(more) == 3
    with pytest.raises(IndexError, match="index 9 of 2"):
        _ = layers[9]
    named = nn.ModuleDict({"a": nn.Linear(1, 2)})
    named["b"] = nn.ReLU()
    assert list(named.keys()) == ["a", "b"]
    assert list(named.state_dict()) == ["a.weight", "a.bias"]
    params = nn.ParameterList([ts.ones(2), ts.ones(3)])
    assert list(params.state_dict()) == ["0", "1"]
    assert [name for name, _ in nn.ParameterDict({"x": ts.ones(2)}).named_parameters()] == ["x"]
    sequence = nn.Sequential({"first": nn.Linear(2, 3), "second": nn.ReLU()})
    assert tuple(sequence(ts.ones((1, 2))).shape) == (1, 3)


INITIAL = [
    ("uniform_", (-1.0, 2.0)),
    ("normal_", (1.0, 0.5)),
    ("trunc_normal_", (0.0, 1.0, -0.7, 1.5)),
    ("xavier_uniform_", ()),
    ("xavier_normal_", (2.0,)),
    ("kaiming_uniform_", (0.2,)),
    ("kaiming_normal_", (0.0, "fan_out", "relu")),
    ("orthogonal_", (1.5,)),
    ("sparse_", (0.3,)),
]


@pytest.mark.parametrize(("name", "options"), INITIAL)
def test_initial_values_have_pytorchs_distribution(name: str, options: tuple[Any, ...]) -> None:
    ts.random.manual_seed(0)
    torch.manual_seed(0)
    mine = getattr(nn.init, name)(ts.zeros((200, 160)), *options).numpy().ravel()
    theirs = getattr(torch.nn.init, name)(torch.zeros(200, 160), *options).numpy().ravel()
    for q in (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
        assert abs(np.quantile(mine, q) - np.quantile(theirs, q)) < 0.12 * max(theirs.std(), 1e-3)
    assert mine.std() == pytest.approx(theirs.std(), rel=0.03)


def test_exact_initial_values() -> None:
    for name, shape in (("eye_", (3, 5)), ("dirac_", (4, 2, 3)), ("ones_", (2,)), ("zeros_", (2,))):
        options = {"groups": 2} if name == "dirac_" else {}
        found = getattr(nn.init, name)(ts.full(shape, 7.0), **options).numpy()
        np.testing.assert_array_equal(
            found, getattr(torch.nn.init, name)(torch.full(shape, 7.0), **options).numpy()
        )
    for kind in ("linear", "tanh", "relu", "leaky_relu", "selu"):
        assert nn.init.calculate_gain(kind) == torch.nn.init.calculate_gain(kind)
    with pytest.raises(ValueError, match="no fans"):
        nn.init.xavier_uniform_(ts.ones(3))
    with pytest.raises(ValueError, match="'quick'"):
        nn.init.calculate_gain("quick")


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=5),
    st.floats(0.1, 5),
    st.sampled_from([1.0, 2.0, 3.0, float("inf")]),
)
def test_gradients_are_clipped_as_pytorchs(shapes: list[Any], most: float, order: float) -> None:
    random = np.random.default_rng(len(shapes))
    mine, theirs = [], []
    for shape in shapes:
        grad = random.normal(size=shape)
        mine.append(ts.zeros(shape, dtype=ts.float64).requires_grad_())
        theirs.append(torch.zeros(shape, dtype=torch.float64, requires_grad=True))
        mine[-1].grad, theirs[-1].grad = ts.tensor(grad), torch.tensor(grad)
    found = nn.utils.clip_grad_norm_(mine, most, order)
    expected = torch.nn.utils.clip_grad_norm_(theirs, most, order)
    assert float(found) == pytest.approx(float(expected))
    nn.utils.clip_grad_value_(mine, 0.2)
    torch.nn.utils.clip_grad_value_(theirs, 0.2)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-10)


def test_parameters_are_one_vector() -> None:
    module = nn.Linear(3, 2)
    vector = nn.utils.parameters_to_vector(module.parameters())
    nn.utils.vector_to_parameters(ts.arange(8, dtype=ts.float32), module.parameters())
    assert vector.shape == (8,)
    np.testing.assert_array_equal(module.bias.detach().numpy(), [6, 7])
    with pytest.raises(ValueError, match="8 numbers"):
        nn.utils.vector_to_parameters(ts.ones(5), module.parameters())


def test_a_module_with_a_function_of_cpp_is_pickled_and_copied() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation=functional.relu)
    layer.mine = functional.relu
    for twin in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert twin.mine is functional.relu
        x = ts.ones((3, 1, 8))
        assert ts.array_equal(twin.eval()(x), layer.eval()(x))
