"""Tensor libraries that Tensora is measured beside: arrays, calls, gradients and training steps of each."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

Arrays = list[Any]
Loss = Callable[[Any, Arrays, Any, Any], Any]
"""Functions of the library, parameters, inputs and targets to the loss."""


class Tensora:
    """Our own, eager."""

    name = "tensora"

    def __init__(self) -> None:
        import accelera.tensora as ts

        self._ts = ts
        self.functions = ts.functional
        self.tanh = ts.tanh

    def array(self, values: Any, *, leaf: bool = False) -> Any:
        """Return an array of the library; ``leaf``: one with a gradient."""
        return self._ts.tensor(values, requires_grad=leaf)

    def call(self, function: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
        """Return a call of ``function`` that ends when its result is computed."""
        return lambda: self._ts.compute(function(*arrays))

    def gradient(self, function: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
        """Return a call that computes the gradient of the result's sum with respect to the first array."""
        ones = self._ts.ones(arrays[0].shape)
        return lambda: self._ts.compute(*self._ts.grad(function(*arrays), [arrays[0]], ones))

    def step(self, loss: Loss, parameters: Arrays, x: Any, y: Any) -> Callable[[], Any]:
        """Return a call that does one step of AdamW."""
        optimizer = self._ts.optim.AdamW(parameters, lr=1e-4)

        def step() -> None:
            optimizer.zero_grad()
            loss(self.functions, parameters, x, y).backward()
            optimizer.step()

        return step


class Torch:
    """PyTorch, eager."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.functions = torch.nn.functional
        self.tanh = torch.tanh

    def array(self, values: Any, *, leaf: bool = False) -> Any:
        made = self._torch.tensor(values)
        return made.requires_grad_() if leaf else made

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def call(self, function: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
        run = self.compiled(function)
        return lambda: run(*arrays)

    def gradient(self, function: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
        run, ones = self.compiled(function), self._torch.ones_like(arrays[0])
        return lambda: self._torch.autograd.grad(run(*arrays), arrays[0], ones)

    def step(self, loss: Loss, parameters: Arrays, x: Any, y: Any) -> Callable[[], Any]:
        optimizer = self._torch.optim.AdamW(parameters, lr=1e-4, fused=True)
        run = self.compiled(lambda *given: loss(self.functions, list(given), x, y))

        def step() -> None:
            optimizer.zero_grad()
            run(*parameters).backward()
            optimizer.step()

        return step


class TorchCompile(Torch):
    """PyTorch with torch.compile."""

    name = "torch.compile"

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = self._torch.compile(function)
        return compiled


class _Functions:
    """The functions of torch.nn.functional that the cases use, built from those of JAX or MLX."""

    def __init__(self, library: Any) -> None:
        self._lib = library

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        product = x @ weight.T
        return product if bias is None else product + bias

    def relu(self, x: Any) -> Any:
        return self._lib.maximum(x, 0)

    def gelu(self, x: Any, approximate: str = "tanh") -> Any:
        return 0.5 * x * (1 + self._lib.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))

    def softmax(self, x: Any, axis: int) -> Any:
        powers = self._lib.exp(x - self._lib.max(x, axis=axis, keepdims=True))
        return powers / self._lib.sum(powers, axis=axis, keepdims=True)

    def embedding(self, index: Any, table: Any) -> Any:
        return table[index]

    def layer_norm(self, x: Any, shape: Any, weight: Any, bias: Any) -> Any:
        centered = x - self._lib.mean(x, axis=-1, keepdims=True)
        variance = self._lib.mean(centered * centered, axis=-1, keepdims=True)
        return centered / self._lib.sqrt(variance + 1e-5) * weight + bias

    def scaled_dot_product_attention(self, q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
        scores = q @ self._lib.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
        if is_causal:
            places = self._lib.arange(q.shape[-2])
            scores = self._lib.where(places[:, None] >= places, scores, -1e30)
        return self.softmax(scores, -1) @ v

    def cross_entropy(self, logits: Any, classes: Any) -> Any:
        highest = self._lib.max(logits, axis=-1, keepdims=True)
        sums = self._lib.log(self._lib.sum(self._lib.exp(logits - highest), axis=-1)) + highest[:, 0]
        chosen = self._lib.take_along_axis(logits, classes[:, None], axis=-1)[:, 0]
        return self._lib.mean(sums - chosen)


class Jax:
    """JAX, compiled by XLA."""

    name = "jax.jit"

    def __init__(self) -> None:
        self._jax = importlib.import_module("jax")
        self.functions = _Functions(self._jax.numpy)
        self.tanh = self._jax.numpy.tanh

    def array(self, values: Any, *, leaf: bool = False) -> Any:
        return self._jax.numpy.asarray(values)

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = self._jax.jit(function)
        return compiled

    def _wait(self, result: Any) -> None:
        self._jax.block_until_ready(result)

    def _gradients(self, function: Callable[..., Any], places: Any) -> Callable[..., Any]:
        slopes: Callable[..., Any] = self._jax.grad(function, argnums=places)
        return slopes

    def call(self, function: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
        run = self._compiled(function)
        return lambda: self._wait(run(*arrays))

    def gradient(self, function: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
        run = self._compiled(self._gradients(lambda *given: function(*given).sum(), 0))
        return lambda: self._wait(run(*arrays))

    def step(self, loss: Loss, parameters: Arrays, x: Any, y: Any) -> Callable[[], Any]:
        places = tuple(range(len(parameters)))
        slopes = self._gradients(lambda *given: loss(self.functions, list(given), x, y), places)

        def update(state: Arrays) -> Arrays:
            n = len(places)
            found = []
            for each, grad, mean, square in zip(
                state[:n], slopes(*state[:n]), state[n : 2 * n], state[2 * n :], strict=True
            ):
                first, second = 0.9 * mean + 0.1 * grad, 0.999 * square + 0.001 * grad * grad
                found.append((each * (1 - 1e-6) - 1e-4 * first / (second**0.5 + 1e-8), first, second))
            return [column[i] for i in range(3) for column in found]

        run = self._compiled(update)
        zeros = [self.array(np.zeros(each.shape, np.float32)) for each in parameters]
        held = [[*parameters, *zeros, *zeros]]

        def step() -> None:
            held[0] = run(held[0])
            self._wait(held[0])

        return step


class Mlx(Jax):
    """MLX, with mlx.compile."""

    name = "mlx.compile"

    def __init__(self) -> None:
        self._mx = importlib.import_module("mlx.core")
        self.functions = _Functions(self._mx)
        self.tanh = self._mx.tanh

    def array(self, values: Any, *, leaf: bool = False) -> Any:
        return self._mx.array(values)

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = self._mx.compile(function)
        return compiled

    def _wait(self, result: Any) -> None:
        self._mx.eval(result)

    def _gradients(self, function: Callable[..., Any], places: Any) -> Callable[..., Any]:
        slopes: Callable[..., Any] = self._mx.grad(function, argnums=places)
        return slopes


class Tinygrad:
    """Tinygrad, whose lazy results are compiled; elementwise functions and products only."""

    name = "tinygrad"

    def __init__(self) -> None:
        tinygrad = importlib.import_module("tinygrad")
        self._tensor = tinygrad.Tensor
        self._tensor.ones(2).realize()  # finds out whether there is a compiler
        self._jit = tinygrad.TinyJit
        self.functions = None

    def tanh(self, x: Any) -> Any:
        return x.tanh()

    def array(self, values: Any, *, leaf: bool = False) -> Any:
        return self._tensor(values).realize()

    def call(self, function: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
        run = self._jit(lambda *given: function(*given).realize())
        return lambda: run(*arrays).numpy()


class Tensorax:
    """The package tensorax, eager; sums and products only."""

    name = "tensorax"

    def __init__(self) -> None:
        self._tensor = importlib.import_module("tensorax").Tensor
        self.functions = None

    def array(self, values: Any, *, leaf: bool = False) -> Any:
        return self._tensor(values.tolist())

    def call(self, function: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
        return lambda: function(*arrays)


class Numpy:
    """NumPy."""

    name = "numpy"
    functions = None
    tanh = np.tanh

    def array(self, values: Any, *, leaf: bool = False) -> Any:
        return values

    def call(self, function: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
        return lambda: function(*arrays)


ALL = (Tensora, Torch, TorchCompile, Numpy, Jax, Mlx, Tinygrad, Tensorax)


def present() -> tuple[list[Any], dict[str, str]]:
    """Return the contenders that work on this machine, and why the others do not."""
    found, absent = [], {}
    for contender in ALL:
        try:
            found.append(contender())
        except Exception as error:  # whatever a library raises where it cannot work
            absent[contender.name] = f"{type(error).__name__}: {error}".split("\n")[0]
    return found, absent
