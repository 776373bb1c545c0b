"""What a model takes before it is run: as real runs take it, by role, phase and element type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from accelera import capture, estimate
from accelera.errors import UnknownNameError
from accelera.estimate import Estimate
from accelera.trace import Occupancy
from benchmarks.models import mlp
from tests.capture.measured import training_peak_bytes
from tests.estimate.estimated import measured

TOLERANCE = 0.05
UNTOUCHED = 0.1
"""Share of the memory that kernels of some processors ask for and never touch: wide filters with AVX2."""


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16))


def rows() -> torch.Tensor:
    return torch.randn(8, 64)


def of_small(**more: Any) -> Estimate:
    return estimate(small, rows, **more)


@pytest.fixture(scope="module")
def peaks() -> dict[str, dict[str, list[int]]]:
    return measured()


@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize("name", ["mlp", "resnet", "gpt", "llama", "bert", "vit"])
def test_a_real_run_takes_what_was_estimated(peaks: Any, name: str, phase: str) -> None:
    took, estimated = peaks[name][phase]
    assert (1 - UNTOUCHED) * estimated <= took <= (1 + TOLERANCE) * estimated


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_training_in_any_type_as_the_allocator_counts_it(dtype: str) -> None:
    x, kind = torch.randn(64, 256), getattr(torch, dtype)
    told = estimate(lambda: mlp(256, layers=4), x, dtypes=[dtype], train=True).phase("training", dtype)
    took = training_peak_bytes(mlp(256, layers=4).to(kind), x.to(kind), iterations=2)
    assert told.peak_bytes == pytest.approx(took, rel=0.001)


def test_mixed_training_as_the_allocator_counts_it() -> None:
    class Autocast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(128, layers=3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                result: torch.Tensor = self.inner(x)
                return result

    x = torch.randn(64, 128)
    told = estimate(lambda: mlp(128, layers=3), x, dtypes=["mixed"], train=True).phase("training")
    assert told.peak_bytes == pytest.approx(training_peak_bytes(Autocast(), x, iterations=2), rel=0.02)


def test_float8_keeps_a_byte_per_weight_and_casts_one_layer_at_a_time() -> None:
    width, layers, batch = 512, 6, 4
    told = estimate(lambda: mlp(width, layers), torch.randn(batch, width), dtypes=["bfloat16", "float8"])
    whole, kept = (told.phase("inference", dtype) for dtype in ("bfloat16", "float8"))
    biases, scales = layers * width * 2, layers * width * 4
    assert whole.most["weights"] == layers * width * width * 2 + biases
    assert kept.most["weights"] == layers * width * width + biases + scales
    one_layer = width * width * 2
    assert kept.peak_bytes == pytest.approx(
        kept.most["weights"] + one_layer + 2 * batch * width * 2, rel=0.02
    )
    assert [each.name for each in told.phases if each.dtype == "float8"] == ["inference"]


def test_roles_are_told_apart_and_add_up() -> None:
    weights = (64 * 256 + 256 + 256 * 16 + 16) * 4
    for phase in of_small().phases:
        assert sum(phase.at_peak.values()) == phase.peak_bytes
        assert all(phase.most[role] >= size for role, size in phase.at_peak.items())
    training = of_small(dtypes=["float32"]).phase("training")
    assert training.most["weights"] == training.most["gradients"] == weights
    assert training.most["optimizer_state"] == 2 * weights + 4 * 4
    assert training.most["inputs"] == 8 * 64 * 4
    assert training.most["activations"] >= 8 * (256 + 256) * 4


@pytest.mark.parametrize(
    ("optimizer", "share"), [("adamw", 2), ("adam", 2), ("sgd", 0), (None, 0), (torch.optim.Adagrad, 1)]
)
def test_the_optimizer_keeps_what_it_keeps(optimizer: Any, share: int) -> None:
    training = of_small(dtypes=["float32"], optimizer=optimizer, train=True).phase("training")
    state, weights = training.most["optimizer_state"], training.most["weights"]
    assert share * weights <= state <= share * weights + 16
    assert training.most["gradients"] == weights


def test_phases_may_be_chosen() -> None:
    assert {each.name for each in of_small(train=False).phases} == {"inference"}
    assert {each.name for each in of_small(train=True).phases} == {"training"}
    assert {each.dtype for each in of_small().phases} == {"float32", "bfloat16", "float8"}
    with pytest.raises(UnknownNameError, match="training in float32"):
        of_small(train=False).phase("training", "float32")


def test_a_model_that_is_there_is_left_as_it_is() -> None:
    module, x = small().to(torch.bfloat16), rows()
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in module.state_dict().items()}
    told = estimate(module, x.to(torch.bfloat16))
    assert told.phases[0].dtype == "bfloat16"
    assert told.phase("training", "bfloat16").peak_bytes < told.phase("training", "float32").peak_bytes
    for name, tensor in module.state_dict().items():
        assert tensor.data_ptr() == before[name][0]
        assert torch.equal(tensor, before[name][1])
    assert all(each.grad is None for each in module.parameters())
    assert module.training


def test_nothing_of_the_size_of_a_weight_is_allocated() -> None:
    def huge() -> nn.Module:
        return nn.Sequential(*(nn.Linear(200_000, 200_000) for _ in range(4)))

    told = estimate(huge, lambda: torch.randn(1, 200_000), dtypes=["float32"])
    assert told.phase("training").peak_bytes > 4 * 4 * 4 * 200_000**2
    assert told.parameters == 4 * (200_000**2 + 200_000)


def test_it_is_what_a_real_capture_tells() -> None:
    module, x = small(), rows()
    for train, phase in ((True, "training"), (False, "inference")):
        real = capture(module, x, train=train, steps=2, fake=False)
        told = estimate(module, x, dtypes=["float32"]).phase(phase)
        assert told.peak_bytes == Occupancy(real).peak_bytes + real.meta["idle_bytes"]


def test_tied_weights_and_other_tensors_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(1000, 32)
            self.head = nn.Linear(32, 1000, bias=False)
            self.head.weight = self.table.weight
            self.mask = torch.ones(32)
            self.spare = nn.Parameter(torch.zeros(500))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.head(self.table(x) * self.mask)
            return result

    for model in (Tied, Tied()):
        told = estimate(model, torch.zeros(4, 8, dtype=torch.long), dtypes=["float32"])
        assert told.parameters == 32_000 + 500
        assert told.phase("inference").most["weights"] == 4 * (32_000 + 500 + 32)


def test_a_function_may_bring_its_inputs() -> None:
    told = estimate(lambda: (small(), (rows(),)), train=False)
    assert told.phase("inference").peak_bytes == of_small(train=False).phase("inference").peak_bytes
    assert (told.batch, told.context) == (None, None)


def test_named_inputs_and_a_loss() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": self.inner(x * scale)}

    inputs = {"x": rows(), "scale": torch.ones(1)}
    told = estimate(Two, inputs, loss=lambda outputs: outputs["y"].square().sum(), dtypes=["bfloat16"])
    assert told.phase("training").most["inputs"] == (8 * 64 + 1) * 2


def test_a_budget_says_what_fits() -> None:
    told = of_small(dtypes=["float32"], budget="128KiB")
    inference, training = told.phase("inference"), told.phase("training")
    assert told.fits(inference)
    assert not told.fits(training)
    found = json.loads(json.dumps(told.to_dict()))
    assert [each["fits"] for each in found["phases"]] == [True, False]
    assert "fits" in told.table()
    assert "over" in told.table()
    assert "128.0 KiB" in told.table()
    assert "training in float32 takes at most" in told.explain()


def test_without_a_budget_nothing_is_said_of_it() -> None:
    told = of_small(dtypes=["float32"], train=False)
    assert "fits" not in told.table() + told.explain()
    assert "optimizer" not in told.table()
    assert "fits" not in told.to_dict()["phases"][0]


def test_what_some_types_cannot_do_is_noted() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dtype == torch.bfloat16:
                raise RuntimeError("not in that type")
            result: torch.Tensor = self.inner(x)
            return result

    told = estimate(Picky, rows)
    assert {each.dtype for each in told.phases} == {"float32"}
    assert any("inference in bfloat16" in note and "not in that type" in note for note in told.notes)
    assert told.notes[0] in told.explain()


class NeedsValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = small()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x[x.sum(1) > 0])
        return result


@pytest.mark.parametrize(
    ("model", "inputs", "more", "kind", "said"),
    [
        (small, rows, {"dtypes": ["float7"]}, UnknownNameError, "float7"),
        (small, rows, {"optimizer": "adamv"}, UnknownNameError, "adamw"),
        (small, None, {}, TypeError, "give inputs="),
        (small, rows, {"batch": 3}, ValueError, "batch="),
        (lambda: 3, rows, {}, TypeError, "a int"),
        (7, rows, {}, TypeError, "a int"),
        ("nowhere/config.json", None, {}, FileNotFoundError, "nowhere"),
        (NeedsValues, rows, {}, ValueError, "asks for values"),
        (lambda: nn.Conv1d(2, 2, 1), torch.ones(1, 2, 3), {"dtypes": ["float8"]}, ValueError, "nn.Linear"),
        (small, lambda: torch.randn(8, 63), {}, RuntimeError, "63"),
        (small, rows, {"budget": "lots"}, ValueError, "lots"),
    ],
)  # fmt: skip
def test_what_cannot_be_estimated_says_why(
    model: Any, inputs: Any, more: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        estimate(model, inputs, **more)


def config_of(kind: str, **more: Any) -> Any:
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128}
    return transformers.AutoConfig.for_model(kind, **{**sizes, "intermediate_size": 128, **more})


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_cache_is_as_large_as_that_of_a_real_decoder(kind: str) -> None:
    config = config_of(kind, **({"num_key_value_heads": 2} if kind == "llama" else {}))
    batch, context = 3, 20
    told = estimate(config, batch=batch, context=context, dtypes=["float32", "bfloat16"], train=False)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        cache = model(torch.zeros(batch, context, dtype=torch.long), use_cache=True).cache
    took = sum(each.nbytes for layer in cache.layers for each in (layer.keys, layer.values))
    assert told.kv_bytes_per_token == {
        "float32": took // (batch * context),
        "bfloat16": took // (2 * batch * context),
    }
    # One layer's cache is there twice while the last token is appended.
    assert told.phase("generation", "float32").most["kv_cache"] >= took
    assert told.phase("generation", "float32").most["kv_cache"] <= took * (1 + 2 / 4)


def test_a_configuration_from_its_file_and_its_folder(tmp_path: Path) -> None:
    config = config_of("llama", architectures=["LlamaForCausalLM"])
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    told = [
        estimate(each, context=16).to_dict() for each in (config, tmp_path, str(tmp_path / "config.json"))
    ]
    assert told[0] == told[1] == told[2]
    assert told[0]["model"] == "LlamaForCausalLM"
    assert (told[0]["batch"], told[0]["context"]) == (1, 16)


def test_a_file_that_is_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"learning_rate": 3}')
    with pytest.raises(ValueError, match="no configuration of a model"):
        estimate(tmp_path)


@pytest.mark.parametrize(
    ("kind", "name", "phases"),
    [
        ("bert", "BertForMaskedLM", {"inference", "training"}),
        ("vit", "ViTForImageClassification", {"inference", "training"}),
        ("t5", "T5ForConditionalGeneration", {"inference", "training"}),
        ("gpt2", "GPT2LMHeadModel", {"inference", "generation", "training"}),
    ],
)
def test_models_of_every_kind_make_their_inputs(kind: str, name: str, phases: set[str]) -> None:
    told = estimate(config_of(kind, image_size=32), batch=2, dtypes=["float32"])
    assert told.model == name
    assert {each.name for each in told.phases} == phases
    assert told.context is None or told.context <= 2048


def test_twice_the_batch_is_twice_the_activations() -> None:
    one, two = (estimate(config_of("gpt2"), batch=batch, context=32, train=False) for batch in (1, 2))
    ratio = two.phase("inference").most["activations"] / one.phase("inference").most["activations"]
    assert ratio == pytest.approx(2, rel=0.02)
