"""What else PyTorch does with an operator goes on as before while everything is cut into tiny tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from accelera.interceptor.config import Route
from tests.interceptor.forcing import counted, forced
from tests.threads import run_in_threads

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

ROUTES: tuple[Route, ...] = ("chunked", "spilled")


class Small(nn.Module):
    """Products, broadcasting, attention and pointwise operators in one expression."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out_of = nn.Linear(12, 24), nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, positions, 12)`` to ``(batch, positions, 5)``."""
        hidden = functional.gelu(self.into(x))
        hidden = functional.scaled_dot_product_attention(hidden, hidden, hidden)
        weighed = torch.matmul(hidden.unsqueeze(1), hidden.mT.unsqueeze(1)).squeeze(1).softmax(-1)
        return self.out_of(torch.einsum("bij,bjk->bik", weighed, hidden) + 1)


def model_and_input() -> tuple[Small, torch.Tensor]:
    torch.manual_seed(0)
    return Small(), torch.randn(3, 14, 12)


def trained(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    out = model(x)
    inputs = list(model.parameters()) if isinstance(model, nn.Module) else []
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), inputs)]


def assert_alike(computed: Callable[[], Any], *, least_calls: int = 1, **tolerances: Any) -> None:
    expected = computed()
    for route in ROUTES:
        with counted() as seen, forced(route):
            found = computed()
        assert seen[0].total.chunked + seen[0].total.spilled >= least_calls
        torch.testing.assert_close(found, expected, **tolerances)


def test_a_model_forward_and_backward() -> None:
    model, x = model_and_input()
    assert_alike(lambda: trained(model, x), least_calls=8)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode: Callable[[], Any]) -> None:
    model, x = model_and_input()

    def computed() -> torch.Tensor:
        with mode():
            return model(x)

    assert_alike(computed, least_calls=4)


def test_autocast() -> None:
    model, x = model_and_input()

    def computed() -> list[torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return trained(model, x)

    assert_alike(computed, rtol=0.05, atol=0.3)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend: str) -> None:
    model, x = model_and_input()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)

    def computed() -> list[torch.Tensor]:
        out = compiled(x)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), list(model.parameters()))]

    assert_alike(computed)


def test_compiled_while_intercepted() -> None:
    model, x = model_and_input()
    expected = model(x)
    torch._dynamo.reset()
    with forced("chunked"):
        found = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(found, expected)


def test_vmap_and_derivatives_by_transformation() -> None:
    model, x = model_and_input()
    weights: dict[str, torch.Tensor] = dict(model.named_parameters())

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (x[None],)).square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    assert_alike(lambda: per_sample(weights, x))
    assert_alike(lambda: torch.func.jvp(lambda x: model(x), (x,), (torch.ones_like(x),)))
    assert_alike(lambda: torch.func.jacrev(lambda x: model(x).sum(0))(x[:1]))


def test_torchscript() -> None:
    model, x = model_and_input()
    scripted, traced = torch.jit.script(model), torch.jit.trace(model, x)
    assert_alike(lambda: [scripted(x), traced(x)])
    with forced("chunked"):
        again = torch.jit.trace(model, x)
    operators = {node.kind() for node in again.inlined_graph.nodes()}
    assert "aten::matmul" in operators
    assert not [kind for kind in operators if kind.startswith("accelera")]


def test_threads() -> None:
    model, x = model_and_input()
    expected = trained(model, x)
    found: list[list[torch.Tensor]] = []
    with forced("chunked"):
        run_in_threads(*[lambda: found.append(trained(model, x))] * 4)
    for each in found:
        torch.testing.assert_close(each, expected)
    assert len(found) == 4


def test_checkpointed() -> None:
    model, x = model_and_input()

    def computed() -> list[torch.Tensor]:
        out = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        return list(torch.autograd.grad(out.square().sum(), list(model.parameters())))

    assert_alike(computed)


def test_gradient_penalty() -> None:
    model, x = model_and_input()

    def computed() -> list[torch.Tensor]:
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(model(leaf).square().sum(), leaf, create_graph=True)
        return list(torch.autograd.grad(first.square().sum(), [leaf, *model.parameters()], allow_unused=True))

    assert_alike(computed, rtol=1e-3, atol=1e-3)


def test_results_given_and_in_place() -> None:
    a, b = torch.randn(20, 30), torch.randn(30, 25)

    def computed() -> list[torch.Tensor]:
        out, grown = torch.empty(25, 20).mT, torch.ones(20, 25)
        torch.mm(a, b, out=out)
        resized = torch.matmul(a, b, out=torch.empty(0))
        grown.addmm_(a, b, beta=0.5).mul_(2).sub_(out)
        return [out, resized, grown, torch.add(a, 1, out=torch.empty(0))]

    with pytest.warns(UserWarning, match="resized"):
        torch.mm(a, b, out=torch.empty(3))
    assert_alike(computed, least_calls=4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_strides_and_element_types(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 1, 24, 18).to(dtype)[..., ::2, ::3]
    y = torch.randn(3, 12, 6).to(dtype).mT
    tolerance = 0.02 if dtype.itemsize == 2 else 1e-5
    assert_alike(lambda: [x @ y, (x @ y).mT * x.mT.sum()], rtol=tolerance, atol=tolerance * 10)


PASSING: dict[str, Callable[[], Any]] = {
    "sparse": lambda: torch.sparse.mm(torch.eye(30).to_sparse(), torch.ones(30, 3)),
    "sparse rows": lambda: torch.eye(30).to_sparse_csr() @ torch.ones(30, 3),
    "meta": lambda: (torch.ones(30, 30, device="meta") @ torch.ones(30, 3, device="meta")).shape,
    "nested": lambda: (
        torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)], layout=torch.jagged) * 2
    ).values(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(30, 3), 0.1, 0, torch.qint8).dequantize(),
}


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.filterwarnings("ignore")
def test_other_layouts_pass(name: str) -> None:
    expected = PASSING[name]()
    with forced("chunked"):
        found = PASSING[name]()
    assert expected == found if isinstance(expected, torch.Size) else torch.equal(found, expected)


def test_errors_of_the_caller_are_torchs_own() -> None:
    a = torch.randn(20, 30)
    for call in (lambda: a @ a, lambda: a + a.T, lambda: torch.mm(a, a.T.double())):
        with pytest.raises(RuntimeError) as expected:
            call()
        with forced("chunked"), pytest.raises(RuntimeError) as found:
            call()
        assert str(found.value) == str(expected.value)
