"""Models opened from checkpoints: equal to what was saved, lazily, in another element type, or refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from accelera import offload_checkpoint, offloaded
from accelera.errors import BudgetExceededError, DTypeError, StoreError, StoreFormatError
from accelera.offload import OffloadedTensor
from tests.offload.language_model import WORDS, LanguageModel, language_model
from tests.offload.test_checkpoint_files import saved
from tests.offload.training_models import losses_by

WIDE = {"width": 192, "blocks": 2}


def build() -> LanguageModel:
    return LanguageModel(**WIDE)


def words() -> torch.Tensor:
    return torch.randint(0, WORDS, (2, 12), generator=torch.Generator().manual_seed(1))


def stored(model: nn.Module, folder: Path, shards: int = 1) -> Path:
    tensors = {name: each.clone() for name, each in model.state_dict().items() if name != "head.weight"}
    return saved(folder, tensors, shards)


@pytest.mark.parametrize("shards", [1, 3])
def test_results_equal_those_of_the_saved_model(tmp_path: Path, shards: int) -> None:
    plain = language_model(**WIDE).eval()
    model = offload_checkpoint(stored(plain, tmp_path / "model", shards), build, budget="64MiB")
    with torch.no_grad():
        assert torch.equal(model(words()), plain(words()))
    assert not model.training
    assert model.head.weight is model.words.weight
    assert isinstance(model.words.weight, OffloadedTensor)
    assert not any(each.is_meta for each in (*model.parameters(), *model.buffers()))
    state = model.state_dict()
    assert all(torch.equal(state[name], each) for name, each in plain.state_dict().items())


def test_nothing_is_read_before_it_is_used_and_files_stay(tmp_path: Path) -> None:
    folder = stored(language_model(**WIDE), tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    model = offload_checkpoint(folder, build, budget="64MiB")
    assert offloaded(model).report().bytes_read == 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(words()).sum().backward()
    optimizer.step()
    offloaded(model).cache.flush()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_training_a_checkpoint_equals_training_in_memory(tmp_path: Path) -> None:
    plain = language_model(**WIDE).eval()
    model = offload_checkpoint(stored(plain, tmp_path / "model"), build, budget="64MiB")
    losses = [_trained(each) for each in (plain, model)]
    assert losses[0] == losses[1]


def _trained(model: nn.Module) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return losses_by(optimizer, lambda _: model(words()).square().mean(), 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, "float16"])
def test_weights_are_converted_when_asked(tmp_path: Path, dtype: Any) -> None:
    plain = language_model(**WIDE).eval()
    model = offload_checkpoint(stored(plain, tmp_path / "model"), build, budget="64MiB", dtype=dtype)
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    expected = copy.deepcopy(plain).to(wanted)
    assert {each.dtype for each in model.parameters()} == {wanted}
    with torch.no_grad():
        assert torch.equal(model(words()), expected(words()))


def test_a_model_is_built_in_the_type_that_is_stored(tmp_path: Path) -> None:
    plain = language_model(**WIDE).bfloat16().eval()
    model = offload_checkpoint(stored(plain, tmp_path / "model"), build, budget="64MiB")
    with torch.no_grad():
        assert torch.equal(model(words()), plain(words()))


def test_a_weight_in_several_blocks(tmp_path: Path) -> None:
    plain = language_model(**WIDE).eval()
    folder = stored(plain, tmp_path / "model")
    with pytest.raises(BudgetExceededError) as refused:
        offload_checkpoint(folder, build, budget="600KB")
    model: Any = offload_checkpoint(folder, build, budget=refused.value.needed_bytes)
    assert len(model.words.weight.blocks) > 1
    assert torch.equal(model.words.weight.materialized(), plain.words.weight)


def test_what_an_offloaded_model_saves_opens_again(tmp_path: Path) -> None:
    plain = language_model(**WIDE).eval()
    model = offload_checkpoint(stored(plain, tmp_path / "model"), build, budget="64MiB")
    assert _trained(model) == _trained(plain)
    path = offloaded(model).save(tmp_path / "trained")
    assert path.parent == tmp_path / "trained"
    again = offload_checkpoint(path.parent, build, budget="64MiB")
    state = again.state_dict()
    assert all(torch.equal(state[name], each) for name, each in plain.state_dict().items())


def test_saving_where_nothing_can_be_written_is_told(tmp_path: Path) -> None:
    model = offload_checkpoint(stored(language_model(**WIDE), tmp_path / "model"), build, budget="64MiB")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        offloaded(model).save(tmp_path / "file")


def test_unexpected_names_are_told_in_a_warning(tmp_path: Path) -> None:
    plain = language_model(**WIDE)
    tensors = {name: each.clone() for name, each in plain.state_dict().items() if name != "head.weight"}
    folder = saved(tmp_path / "model", {**tensors, "extra.weight": torch.ones(2)})
    with pytest.warns(UserWarning, match=r"extra\.weight"):
        offload_checkpoint(folder, build, budget="64MiB")


def test_missing_names_are_an_error(tmp_path: Path) -> None:
    folder = stored(language_model(width=192, blocks=1), tmp_path / "model")
    with pytest.raises(StoreError, match=r"blocks\.1\.before\.weight"):
        offload_checkpoint(folder, build, budget="64MiB")


def test_without_a_class_config_json_must_name_one(tmp_path: Path) -> None:
    folder = stored(language_model(**WIDE), tmp_path / "model")
    with pytest.raises(StoreFormatError, match="give model_class"):
        offload_checkpoint(folder, budget="64MiB")


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "nope"}', ""])
def test_a_config_that_cannot_be_read_is_named(text: str, tmp_path: Path) -> None:
    folder = stored(language_model(**WIDE), tmp_path / "model")
    (folder / "config.json").write_text(text)
    with pytest.raises(StoreFormatError, match=r"config\.json cannot be read as a configuration"):
        offload_checkpoint(folder, budget="64MiB")


@pytest.mark.parametrize("dtype", ["flaot32", "nn", "int32", torch.int8, 5])
def test_an_element_type_that_is_none_is_refused(dtype: Any, tmp_path: Path) -> None:
    folder = stored(language_model(**WIDE), tmp_path / "model")
    with pytest.raises(DTypeError, match=r"dtype=.* no floating-point type"):
        offload_checkpoint(folder, build, budget="64MiB", dtype=dtype)


def test_integers_where_the_model_has_floats_are_refused(tmp_path: Path) -> None:
    plain = language_model(**WIDE)
    tensors = {name: each.clone() for name, each in plain.state_dict().items() if name != "head.weight"}
    wrong = {**tensors, "blocks.1.wide.weight": tensors["blocks.1.wide.weight"].to(torch.int32)}
    with pytest.raises(DTypeError, match=r"1 tensors .*blocks\.1\.wide\.weight is torch\.int32"):
        offload_checkpoint(saved(tmp_path / "model", wrong, 1), build, budget="64MiB")


def test_code_in_the_folder_never_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the user would answer: transformers asks unless it is told."""
    folder = stored(language_model(**WIDE), tmp_path / "model")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    about = {"model_type": "own", "architectures": ["Own"], "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (folder / "config.json").write_text(json.dumps(about))
    (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    with pytest.raises(StoreFormatError, match="give model_class and config"):
        offload_checkpoint(folder)
    assert not (folder / "ran").exists()


def test_inputs_make_a_plan_before_any_weight_is_read(tmp_path: Path) -> None:
    folder = stored(language_model(**WIDE), tmp_path / "model")
    model = offload_checkpoint(folder, build, budget="64MiB", inputs=words())
    plan = offloaded(model).plan
    assert plan is not None
    with torch.no_grad():
        model(words())
    report = offloaded(model).report()
    assert (report.hits, report.misses) == (plan.first.hits, plan.first.misses)
    with pytest.raises(BudgetExceededError, match="smallest workable budget"):
        offload_checkpoint(folder, build, budget="4MiB", inputs=words())


@pytest.fixture(params=["gpt2", "llama"])
def pretrained(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """A folder that ``save_pretrained`` wrote in shards, and the model that is in it."""
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    if request.param == "gpt2":
        sizes: dict[str, Any] = {"n_layer": 2, "n_embd": 192, "n_head": 4}
        config = transformers.GPT2Config(vocab_size=WORDS, bos_token_id=0, eos_token_id=0, **sizes)
        model: Any = transformers.GPT2LMHeadModel(config)
    else:
        sizes = {"hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 2}
        heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=WORDS, **sizes, **heads))
    model.save_pretrained(tmp_path / "saved", max_shard_size="1MB")
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 1
    return tmp_path / "saved", model.eval()


def test_hugging_face_folders_open_by_their_config(pretrained: tuple[Path, Any]) -> None:
    folder, plain = pretrained
    model: Any = offload_checkpoint(folder, budget="64MiB")
    assert type(model) is type(plain)
    with torch.no_grad():
        assert torch.equal(model(words()).logits, plain(words()).logits)
    for one, other in zip(model.buffers(), plain.buffers(), strict=True):
        assert torch.equal(one, other)
    options = {"max_new_tokens": 4, "do_sample": False}
    assert torch.equal(model.generate(words(), **options), plain.generate(words(), **options))


def test_hugging_face_classes_and_bodies(pretrained: tuple[Path, Any]) -> None:
    import transformers

    folder, plain = pretrained
    model: Any = offload_checkpoint(folder, transformers.AutoModelForCausalLM, budget="64MiB")
    assert type(model) is type(plain)
    plain.base_model.save_pretrained(folder / "body")
    body: Any = offload_checkpoint(folder / "body", type(plain.base_model), plain.config, budget="64MiB")
    with torch.no_grad():
        one, other = body(words()), plain.base_model(words())
    assert torch.equal(one.last_hidden_state, other.last_hidden_state)
