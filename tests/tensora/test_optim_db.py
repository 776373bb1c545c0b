"""Optimizers against PyTorch's own list of them (`optim_db`): the same parameters after some steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

import accelera.tensora as ts
from accelera.tensora import optim

NOT_THERE = {"SparseAdam", "Muon"}
OF_IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")
"""Options that say how PyTorch computes; they change no result."""
START = [np.linspace(-1.0, 1.0, 12).reshape(3, 4), np.linspace(0.5, -0.7, 5)]


def infos() -> list[Any]:
    database: list[Any] = optim_db
    names = {info.optim_cls.__name__: info for info in database}
    assert set(names) - NOT_THERE <= set(optim.__all__)
    return [pytest.param(info, id=name) for name, info in names.items() if name not in NOT_THERE]


def loss_of(params: list[Any]) -> Any:
    return 0.5 * ((params[0] - 0.3) ** 2).sum() + 0.1 * ((params[1] * params[0].mean() - 1.0) ** 2).mean()


def trained(library: Any, kind: str, options: dict[str, Any], params: list[Any]) -> list[Any]:
    optimizer = getattr(library, kind)(params, **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(params)
        loss.backward()
        return loss

    for _ in range(8):
        optimizer.step(closure)
    return [each.detach().numpy() for each in params]


@pytest.mark.parametrize("info", infos())
def test_parameters_are_pytorchs(info: Any) -> None:
    kind = info.optim_cls.__name__
    samples = [sample.kwargs for sample in info.optim_inputs_func(device="cpu")]
    assert samples
    for given in samples:
        options = {name: value for name, value in given.items() if name not in OF_IMPLEMENTATION}
        if any(isinstance(value, torch.Tensor) for value in options.values()):
            options = {
                name: value.item() if isinstance(value, torch.Tensor) else value
                for name, value in options.items()
            }
        found = trained(optim, kind, options, [ts.tensor(each, requires_grad=True) for each in START])
        expected = trained(
            torch.optim, kind, options, [torch.tensor(each, requires_grad=True) for each in START]
        )
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9, err_msg=str(options))


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_finds_the_least_of_rosenbrocks_function_as_pytorch_does(line_search: str | None) -> None:
    def run(library: Any, x: Any) -> tuple[list[float], Any]:
        optimizer = library.LBFGS([x], lr=0.02 if line_search is None else 1.0, line_search_fn=line_search)
        losses = []

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
            loss.backward()
            return loss

        for _ in range(8):
            losses.append(optimizer.step(closure).item())
        return losses, x.detach().numpy()

    start = np.array([-1.2, 1.0])
    losses, found = run(optim, ts.tensor(start, requires_grad=True))
    expected, theirs = run(torch.optim, torch.tensor(start, requires_grad=True))
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(found, theirs, rtol=1e-5)
    if line_search:
        np.testing.assert_allclose(found, [1, 1], atol=1e-4)


def test_lbfgs_goes_on_where_its_state_was_saved() -> None:
    def closure_of(optimizer: Any, params: list[Any]) -> Any:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = loss_of(params)
            loss.backward()
            return loss

        return closure

    params = [ts.tensor(each, requires_grad=True) for each in START]
    optimizer = optim.LBFGS(params, max_iter=3, line_search_fn="strong_wolfe")
    optimizer.step(closure_of(optimizer, params))
    twins = [ts.tensor(each.detach().numpy().copy(), requires_grad=True) for each in params]
    other = optim.LBFGS(twins, max_iter=3, line_search_fn="strong_wolfe")
    other.load_state_dict(optimizer.state_dict())
    for _ in range(2):
        optimizer.step(closure_of(optimizer, params))
        other.step(closure_of(other, twins))
    for a, b in zip(params, twins, strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


def test_lion_follows_its_paper() -> None:
    param = ts.tensor(START[0], requires_grad=True)
    optimizer = optim.Lion([param], lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    x, average = START[0].copy(), np.zeros_like(START[0])
    random = np.random.default_rng(0)
    for _ in range(20):
        grad = random.normal(size=x.shape)
        param.grad = ts.tensor(grad)
        optimizer.step()
        x = x * (1 - 0.01 * 0.1) - 0.01 * np.sign(0.9 * average + 0.1 * grad)
        average = 0.99 * average + 0.01 * grad
        np.testing.assert_allclose(param.detach().numpy(), x, rtol=1e-12)


@pytest.mark.parametrize("kind", sorted(set(optim.__all__) - {"Optimizer", "lr_scheduler", "LBFGS"}))
def test_states_saved_in_mid_run_go_on_with_the_same_bits(kind: str) -> None:
    def gradients(step: int) -> list[Any]:
        random = np.random.default_rng(step)
        return [ts.tensor(random.normal(size=each.shape)) for each in START]

    def steps(optimizer: Any, params: list[Any], numbers: range) -> None:
        for number in numbers:
            for param, grad in zip(params, gradients(number), strict=True):
                param.grad = grad
            optimizer.step()

    params = [ts.tensor(each, requires_grad=True) for each in START]
    optimizer = getattr(optim, kind)(params, lr=0.01)
    steps(optimizer, params, range(4))
    twins = [ts.tensor(each.detach().numpy().copy(), requires_grad=True) for each in params]
    other = getattr(optim, kind)(twins, lr=0.5)
    other.load_state_dict(optimizer.state_dict())
    steps(optimizer, params, range(4, 8))
    steps(other, twins, range(4, 8))
    for a, b in zip(params, twins, strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


def translated(value: Any, make: Any) -> Any:
    """Nested values with each tensor made one of the other library."""
    if isinstance(value, dict):
        return {key: translated(each, make) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(translated(each, make) for each in value)
    return make(value) if isinstance(value, (torch.Tensor, ts.Tensor)) else value


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("Adam", {"amsgrad": True}),
        ("AdamW", {"weight_decay": 0.1}),
        ("RMSprop", {"momentum": 0.5, "centered": True}),
        ("Adagrad", {"lr_decay": 0.1}),
        ("NAdam", {}),
        ("ASGD", {"t0": 1.0}),
        ("Adafactor", {}),
    ],
)
def test_states_go_from_pytorch_and_back(kind: str, options: dict[str, Any]) -> None:
    theirs = [torch.tensor(each, requires_grad=True) for each in START]
    torch_optimizer = getattr(torch.optim, kind)(theirs, lr=0.03, **options)

    def steps(optimizer: Any, params: list[Any]) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(params).backward()
            optimizer.step()

    steps(torch_optimizer, theirs)
    ours = [ts.tensor(each.detach().numpy().copy(), requires_grad=True) for each in theirs]
    optimizer = getattr(optim, kind)(ours, lr=0.5)
    optimizer.load_state_dict(torch_optimizer.state_dict())  # tensors of PyTorch as they are
    steps(torch_optimizer, theirs)
    steps(optimizer, ours)
    twins = [torch.tensor(each.detach().numpy().copy(), requires_grad=True) for each in ours]
    again = getattr(torch.optim, kind)(twins, lr=0.5)
    again.load_state_dict(translated(optimizer.state_dict(), lambda x: torch.tensor(x.numpy().copy())))
    for optimizer_of, params in ((torch_optimizer, theirs), (optimizer, ours), (again, twins)):
        steps(optimizer_of, params)
    for first, second, third in zip(theirs, ours, twins, strict=True):
        np.testing.assert_allclose(second.detach().numpy(), first.detach().numpy(), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(third.detach().numpy(), first.detach().numpy(), rtol=1e-7, atol=1e-9)


def test_hooks_are_called_as_pytorchs() -> None:
    def log_of(library: Any, param: Any) -> tuple[list[Any], list[Any]]:
        log: list[Any] = []
        optimizer = library.SGD([param], lr=1.0)
        handles = [
            optimizer.register_step_pre_hook(lambda o, args, _: log.append((o is args[0], len(args)))),
            optimizer.register_step_post_hook(lambda *_: log.append(("after", float(param.detach()[0])))),
            optimizer.register_state_dict_pre_hook(lambda _: log.append("saving")),
            optimizer.register_state_dict_post_hook(lambda _, state: {**state, "more": 1}),
            optimizer.register_load_state_dict_pre_hook(lambda _, state: log.append(sorted(state))),
            optimizer.register_load_state_dict_post_hook(lambda _: log.append("loaded")),
        ]
        param.grad = param.detach() * 0 + 1
        optimizer.step()
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        for handle in handles:
            handle.remove()
        optimizer.step()
        return log, sorted(optimizer.state_dict())

    found = log_of(optim, ts.ones(2).requires_grad_())
    assert found == log_of(torch.optim, torch.ones(2).requires_grad_())
    assert ("after", 0.0) in found[0]


def test_a_step_hook_may_replace_the_closure() -> None:
    param = ts.ones(2).requires_grad_()
    optimizer = optim.SGD([param], lr=0.0)
    optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o, lambda: args[1]() + 1), kwargs))
    assert optimizer.step(lambda: 1) == 2


def test_named_parameters_keep_their_names() -> None:
    def groups_of(library: Any, tensors: Any) -> Any:
        named = [(name, tensors.ones(2).requires_grad_()) for name in ("a", "b")]
        optimizer = library.SGD([{"params": named, "lr": 0.5}], lr=0.1)
        return optimizer.state_dict()["param_groups"][0]

    found, expected = groups_of(optim, ts), groups_of(torch.optim, torch)
    assert (found["param_names"], found["params"]) == (expected["param_names"], expected["params"])
    first = ts.ones(2).requires_grad_()
    assert "param_names" not in repr(optim.SGD([("a", first)], lr=0.1))
    with pytest.raises(TypeError, match="only some parameters have names"):
        optim.SGD([("a", first), ts.ones(2).requires_grad_()], lr=0.1)


def test_wrong_options_are_named() -> None:
    x = [ts.ones(3).requires_grad_()]
    for make, words in (
        (lambda: optim.RMSprop(x, alpha=-1), "alpha=-1"),
        (lambda: optim.Adagrad(x, lr_decay=-1), "lr_decay=-1"),
        (lambda: optim.Adadelta(x, rho=2), "rho=2"),
        (lambda: optim.Rprop(x, etas=(2, 3)), "etas"),
        (lambda: optim.NAdam(x, momentum_decay=-1), "momentum_decay"),
        (lambda: optim.Adafactor(x, beta2_decay=0.1), "beta2_decay"),
        (lambda: optim.Adafactor(x, d=0.5), "d=0.5"),
        (lambda: optim.Adafactor(x, eps=(None, -1)), "eps"),
        (lambda: optim.LBFGS(x, line_search_fn="armijo"), "armijo"),
        (lambda: optim.LBFGS([{"params": x}, {"params": [ts.ones(2).requires_grad_()]}]), "2 groups"),
    ):
        with pytest.raises(ValueError, match=words):
            make()
    with pytest.raises(TypeError, match="closure"):
        optim.LBFGS(x).step()
