"""One tensor library that trains one network, in a process of its own that is told when to run.

``python -m benchmarks.training_contenders NAME MODEL [--small]`` writes a line of JSON with the losses of the
first steps, and for each line of its input another one with the seconds of single steps and those of the
processor. It needs nothing but the library and NumPy.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.training_models import MODELS, Training

THREADS = 2
FIRST_STEPS = 10
"""Steps whose losses are compared; they also warm up and compile."""
TURN_S = 0.4
"""Seconds of steps each time it is told to run."""

Step = Callable[[], float]


def tensora(training: Training) -> Step:
    """Tensora, eager."""
    import accelera.tensora as ts

    ts.set_num_threads(THREADS)
    parameters = [ts.tensor(each, requires_grad=True) for each in training.parameters]
    batch = ts.tensor(training.inputs), ts.tensor(training.targets)
    optimizer = getattr(ts.optim, training.optimizer)(parameters, **training.options)
    return _eager_step(lambda: training.loss(ts.functional, parameters, *batch), optimizer)


def tensora_jit(training: Training) -> Step:
    """Tensora, the whole step captured."""
    import accelera.tensora as ts

    ts.set_num_threads(THREADS)
    parameters = [ts.tensor(each, requires_grad=True) for each in training.parameters]
    batch = ts.tensor(training.inputs), ts.tensor(training.targets)
    optimizer = getattr(ts.optim, training.optimizer)(parameters, **training.options)

    @ts.jit
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = training.loss(ts.functional, parameters, x, y)
        loss.backward()
        optimizer.step()
        return loss

    return lambda: float(step(*batch))


def torch(training: Training) -> Step:
    """PyTorch, eager, with the optimizer's fused kernels."""
    return _torch(training, lambda function: function)


def torch_compile(training: Training) -> Step:
    """PyTorch, the loss and its gradients compiled by inductor."""
    return _torch(training, importlib.import_module("torch").compile)


def _torch(training: Training, compiled: Callable[[Any], Any]) -> Step:
    import torch

    torch.set_num_threads(THREADS)
    parameters = [torch.tensor(each, requires_grad=True) for each in training.parameters]
    batch = torch.tensor(training.inputs), torch.tensor(training.targets)
    optimizer = getattr(torch.optim, training.optimizer)(parameters, **training.options, fused=True)
    run = compiled(lambda p, x, y: training.loss(torch.nn.functional, p, x, y))
    return _eager_step(lambda: run(parameters, *batch), optimizer)


def _eager_step(loss_of: Callable[[], Any], optimizer: Any) -> Step:
    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def jax(training: Training) -> Step:
    """JAX, the whole step compiled by XLA, its buffers reused."""
    jax = importlib.import_module("jax")
    functions, update = JaxFunctions(jax), JAX_UPDATES[training.optimizer]

    def whole(state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        number, parameters, first, second = state
        slopes_of = jax.value_and_grad(lambda given: training.loss(functions, given, x, y))
        loss, slopes = slopes_of(parameters)
        changed = [
            update(jax.numpy, number + 1, training.options, *each)
            for each in zip(parameters, slopes, first, second, strict=True)
        ]
        return loss, (number + 1, *(list(column) for column in zip(*changed, strict=True)))

    run = jax.jit(whole, donate_argnums=0)
    parameters = [jax.numpy.array(each) for each in training.parameters]
    zeros = [[jax.numpy.zeros_like(each) for each in parameters] for _ in range(2)]
    held = [(jax.numpy.zeros((), "float32"), parameters, *zeros)]
    batch = jax.numpy.array(training.inputs), jax.numpy.array(training.targets)

    def step() -> float:
        loss, held[0] = run(held[0], *batch)
        jax.block_until_ready(held[0])
        return float(loss)

    return step


class JaxFunctions:
    """The names of ``torch.nn.functional`` that the losses use, from JAX."""

    def __init__(self, jax: Any) -> None:
        self._jax, self._np = jax, jax.numpy

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        product = x @ weight.T
        return product if bias is None else product + bias

    def relu(self, x: Any) -> Any:
        return self._jax.nn.relu(x)

    def gelu(self, x: Any, approximate: str) -> Any:
        return self._jax.nn.gelu(x, approximate=approximate == "tanh")

    def conv2d(self, x: Any, weight: Any, bias: Any, padding: int) -> Any:
        convolve = self._jax.lax.conv_general_dilated
        return convolve(x, weight, (1, 1), [(padding, padding)] * 2) + bias[:, None, None]

    def max_pool2d(self, x: Any, edge: int) -> Any:
        n, c, h, w = x.shape
        return self._np.max(x.reshape((n, c, h // edge, edge, w // edge, edge)), axis=(3, 5))

    def embedding(self, index: Any, table: Any) -> Any:
        return table[index]

    def layer_norm(self, x: Any, _shape: Any, weight: Any, bias: Any) -> Any:
        return self._jax.nn.standardize(x, axis=-1, epsilon=1e-5) * weight + bias

    def scaled_dot_product_attention(self, q: Any, k: Any, v: Any, *, is_causal: bool) -> Any:
        q, k, v = (each.swapaxes(1, 2) for each in (q, k, v))
        return self._jax.nn.dot_product_attention(q, k, v, is_causal=is_causal).swapaxes(1, 2)

    def cross_entropy(self, logits: Any, classes: Any) -> Any:
        chosen = self._np.take_along_axis(self._jax.nn.log_softmax(logits), classes[:, None], axis=-1)
        return -self._np.mean(chosen)


def _jax_sgd(_np: Any, _number: Any, options: Any, weight: Any, slope: Any, mean: Any, second: Any) -> Any:
    mean = options["momentum"] * mean + slope
    return weight - options["lr"] * mean, mean, second


def _jax_adam(np: Any, number: Any, options: Any, weight: Any, slope: Any, mean: Any, second: Any) -> Any:
    mean, second = 0.9 * mean + 0.1 * slope, 0.999 * second + 0.001 * slope * slope
    rate = options["lr"] / (1 - 0.9**number)
    spread = np.sqrt(second / (1 - 0.999**number)) + 1e-8
    kept = weight * (1 - options["lr"] * options.get("weight_decay", 0.0))
    return kept - rate * mean / spread, mean, second


JAX_UPDATES: dict[str, Callable[..., Any]] = {"SGD": _jax_sgd, "Adam": _jax_adam, "AdamW": _jax_adam}
"""Next weight and states of one parameter, by optimizer."""


def tinygrad(training: Training) -> Step:
    """Tinygrad, the whole step captured by TinyJit."""
    tinygrad = importlib.import_module("tinygrad")
    optim = importlib.import_module("tinygrad.nn.optim")
    tensor = tinygrad.Tensor
    tensor.swapaxes = tensor.transpose  # the losses' name of it
    parameters = [tensor(each).realize() for each in training.parameters]
    batch = tensor(training.inputs).realize(), tensor(training.targets).realize()
    optimizer = getattr(optim, training.optimizer)(parameters, **training.options)

    @tinygrad.TinyJit  # type: ignore[untyped-decorator]
    def whole() -> Any:
        optimizer.zero_grad()
        with tinygrad.Context(TRAINING=1):
            loss = training.loss(TinygradFunctions(), parameters, *batch)
            loss.backward()
            return loss.realize(*optimizer.schedule_step())

    return lambda: float(whole().item())


class TinygradFunctions:
    """The names of ``torch.nn.functional`` that the losses use, from tinygrad's methods."""

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return x.linear(weight.T, bias)

    def relu(self, x: Any) -> Any:
        return x.relu()

    def gelu(self, x: Any, approximate: str) -> Any:
        assert approximate == "tanh"
        return x.gelu()

    def conv2d(self, x: Any, weight: Any, bias: Any, padding: int) -> Any:
        return x.conv2d(weight, bias, padding=padding)

    def max_pool2d(self, x: Any, edge: int) -> Any:
        return x.max_pool2d((edge, edge))

    def embedding(self, index: Any, table: Any) -> Any:
        return table[index]

    def layer_norm(self, x: Any, _shape: Any, weight: Any, bias: Any) -> Any:
        return x.layernorm(eps=1e-5) * weight + bias

    def scaled_dot_product_attention(self, q: Any, k: Any, v: Any, *, is_causal: bool) -> Any:
        return q.scaled_dot_product_attention(k, v, is_causal=is_causal)

    def cross_entropy(self, logits: Any, classes: Any) -> Any:
        return logits.sparse_categorical_crossentropy(classes)


CONTENDERS: dict[str, Callable[[Training], Step]] = {
    "torch": torch,
    "torch.compile": torch_compile,
    "tensora": tensora,
    "tensora.jit": tensora_jit,
    "jax": jax,
    "tinygrad": tinygrad,
}


def main(name: str, model: str, *options: str) -> None:
    """Train, tell, and wait for more."""
    # JAX and tinygrad take as many threads as they may have cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    step = CONTENDERS[name](MODELS[model](small="--small" in options))
    losses = [step() for _ in range(FIRST_STEPS)]
    library = name.partition(".")[0]
    package = {"tensora": "accelera-engine"}.get(library, library)
    tell({"losses": losses, "version": importlib.metadata.version(package)})
    for _ in sys.stdin:
        tell(turn(step, 0.0 if "--small" in options else TURN_S))


def turn(step: Step, seconds: float) -> dict[str, Any]:
    """Seconds of each of at least three steps, after one that is not timed; processor seconds of all."""
    cpu = time.process_time()
    step()
    took: list[float] = []
    while len(took) < 3 or sum(took) < seconds:
        began = time.perf_counter()
        step()
        took.append(time.perf_counter() - began)
    return {"steps": took, "cpu_s": time.process_time() - cpu}


def tell(figures: Any) -> None:
    print("told", json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
