"""Models of every kind: nested, shared, recomputed, cast, complex, sparse, decoding …"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from accelera import capture
from accelera.trace import Kind, Trace
from benchmarks.models import MoE, ids, small_references, tokens
from tests.capture.reading import alive_at_end, check_conserved, events, told
from tests.capture.test_sequence import Runs


def roles(trace: Trace) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, role in zip(trace.names, trace.roles, strict=True):
        found.setdefault(role, set()).add(name)
    return found


def both(model: nn.Module, inputs: Any, **how: Any) -> Trace:
    """The trace of the real model, equal to that of its shapes."""
    trace = capture(model, inputs, **how)
    check_conserved(trace)
    assert events(capture(model, inputs, fake=True, **how)) == events(trace)
    return trace


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_experts(dtype: torch.dtype) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "vocab_size": 32,
    }
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 3}
    model: Any = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **heads))
    model = model.to(dtype)
    rows = torch.randint(32, (2, 5))
    trace = both(model, {"input_ids": rows, "labels": rows})
    assert any("_grouped_mm" in op for op in trace.ops)


def test_activations_are_named_after_their_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    trace = both(model, torch.ones(1, 2), optimizer="sgd")
    found = roles(trace)
    assert found["weight"] == {"0.weight", "0.bias", "1.1.weight", "1.1.bias"}
    assert {"0.addmm", "1.0.relu", "1.1.addmm", "mean"} <= found["activation"]
    assert {"backward.threshold_backward", "1.1.weight.grad"} <= found["gradient"]
    nameless = capture(model, torch.ones(1, 2), names=False)
    assert {"addmm", "relu"} <= roles(nameless)["activation"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_computes_again_is_an_activation(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(lambda y: functional.relu(self.inner(y)).sin(), x, use_reentrant=reentrant)

    trace = both(Checkpointed(), torch.ones(2, 8, requires_grad=True), optimizer="sgd")
    assert Counter(trace.ops)["addmm"] == 2
    assert Counter(zip(trace.names, trace.roles, strict=True))["relu", "activation"] == 2
    assert "input.0.grad" not in trace.names


def test_a_model_may_keep_no_graph() -> None:
    inference = both(nn.Linear(4, 4), torch.ones(2, 4), train=False)
    assert set(roles(inference)) == {"weight", "input", "activation"}
    assert alive_at_end(inference) == {"weight", "bias", "input.0"}

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fixed, self.learned = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                hidden = self.fixed(x)
            return self.learned(hidden)  # type: ignore[no-any-return]

    assert "fixed.weight.grad" not in both(Mixed(), torch.ones(2, 4)).names


def test_many_inputs_and_outputs() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, *, more: list[torch.Tensor]) -> dict[str, Any]:
            return {"first": self.inner(x), "rest": (more[0] * x, more[1] + 1)}

    given = {"x": torch.ones(2, 4), "more": [torch.ones(2, 4), torch.ones(3)]}
    trace = both(Many(), given, loss=lambda found: found["first"].sum() + found["rest"][1].sum())
    assert roles(trace)["input"] == {"input.0", "input.1", "input.2"}
    assert both(Many(), given).step_count


def test_casts_of_autocast_are_seen() -> None:
    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ w

    trace = both(Runs(forward), (torch.ones(2, 4), torch.ones(4, 3)), train=False)
    assert trace.ops == ("_to_copy", "_to_copy", "mm")
    assert trace.dtypes[1] == "bfloat16"
    assert trace.size_bytes.tolist()[:2] == [48, 24]


def test_inference_mode_is_heard_operator_by_operator() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.ReLU()), torch.ones(2, 4)

    class Inference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                return self.inner(x).to(torch.float64)  # type: ignore[no-any-return]

    trace = capture(Inference(), x, train=False)
    assert trace.ops == ("addmm", "relu", "_to_copy")


def test_complex_views_share_their_storage() -> None:
    trace = both(
        Runs(lambda z: torch.view_as_real(z.conj().resolve_conj()).sum() + z.real.sum()),
        (torch.ones(3, dtype=torch.complex64),),
        train=False,
    )
    assert trace.dtypes[0] == "complex64"
    assert "sum READ input.0" in told(trace)


def test_attention_is_one_operator_with_its_own_flops() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    trace = both(Runs(attend), (torch.ones(1, 2, 5, 8),), train=False)
    assert trace.step_count == 1
    # q·kᵀ and its product with v, for two heads of 5 rows and 8 columns.
    assert trace.flops[0] == 2 * (2 * 2 * 5 * 5 * 8)


def test_sparse_gradients_are_their_parts() -> None:
    model = nn.Embedding(8, 4, sparse=True)
    trace = capture(model, torch.zeros(5, dtype=torch.long), optimizer=torch.optim.SparseAdam)
    check_conserved(trace)
    assert Counter(trace.names)["weight.grad"] >= 2


def test_wrapped_tensors_are_taken_apart() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    model = Runs(lambda: model.weight * 2)
    model.weight = nn.Parameter(TwoTensor(torch.ones(3), torch.ones(3)))
    trace = capture(model, (), train=False)
    assert told(trace)[:4] == ["mul READ weight", "mul WRITE mul", "mul READ weight", "mul WRITE mul"]


def test_double_backward() -> None:
    def penalty(x: torch.Tensor) -> torch.Tensor:
        (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return slope.square().sum()

    trace = both(Runs(penalty), (torch.ones(3, requires_grad=True),), optimizer=None)
    check_conserved(trace)


def test_recurrent_layers() -> None:
    trace = capture(nn.GRU(4, 4, 2), torch.ones(3, 2, 4), optimizer="sgd")
    check_conserved(trace)
    assert "weight_hh_l1.grad" in trace.names


def test_experts_and_routing() -> None:
    trace = both(MoE(layers=1, width=16, inner=32, experts=4, vocabulary=32), (ids(2, 8, 32),))
    weights = roles(trace)["weight"]
    assert {f"blocks.0.experts.experts.{each}.0.weight" for each in range(4)} <= weights


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_decoding_grows_a_cache(name: str) -> None:
    model = small_references()[name]
    trace = capture(model.build, lambda: ids(2, 8), train=False, generate_tokens=3)
    check_conserved(trace)
    assert len(trace.meta["iterations"]) == 3
    keys = [i for i, each in enumerate(trace.names) if each == "layers.0.key"]
    assert {trace.roles[each] for each in keys} == {"kv_cache"}
    # Two sequences of 64 numbers of 4 bytes for each of 8, 9 and 10 tokens.
    width = 128 * {"float32": 4, "bfloat16": 2}[trace.dtypes[keys[0]]]
    assert trace.size_bytes[keys].tolist() == [width * length for length in (8, 9, 10)]


def test_routing_of_transformers() -> None:
    sizes: dict[str, Any] = {
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "intermediate_size": 64,
        "vocab_size": 64,
    }
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
    config = transformers.MixtralConfig(**sizes, **heads)
    trace = capture(lambda: transformers.MixtralForCausalLM(config), lambda: tokens(1, 8), dtype="bfloat16")
    check_conserved(trace)
    assert any("experts" in name for name in roles(trace)["weight"])


def test_flops_of_products_are_torchs_and_of_elements_one_each() -> None:
    trace = both(
        Runs(lambda x: (functional.conv2d(x, x[:, :, :3, :3]) * 2).clone()),
        (torch.ones(1, 2, 5, 5),),
        train=False,
    )
    assert trace.ops == ("convolution", "mul", "clone")
    assert trace.flops.tolist() == [2 * 9 * 2 * 9, 9, 0]


def test_frees_are_of_the_last_step_that_ran() -> None:
    trace = both(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4), train=False)
    freed = trace.kind == Kind.FREE
    assert trace.step[freed].tolist() == [1, 1]
