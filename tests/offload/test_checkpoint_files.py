"""Reading checkpoints by name: files, headers, shards, skeletons; no weight is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelera.errors import DTypeError, ShapeError, StoreError, StoreFormatError
from accelera.offload.checkpoints.load import matched, skeleton_of, slots_of
from accelera.offload.checkpoints.shards import INDEX, SINGLE, Shards
from accelera.stores._internal import tensor_entries
from tests.threads import run_in_threads


class Tied(nn.Module):
    """Two names for one weight, a persistent buffer, and one that no checkpoint holds."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, width)
        self.head = nn.Linear(width, 5, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("angles", torch.arange(4) / 7, persistent=False)


def saved(folder: Path, tensors: dict[str, torch.Tensor], shards: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    names = list(tensors)
    if shards == 1:
        save_file(tensors, folder / SINGLE)
        return folder
    files = {name: f"part-{index % shards}.safetensors" for index, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    tensors = module.state_dict()
    tensors.pop("head.weight", None)
    return {name: each.clone() for name, each in tensors.items()}


@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_are_mapped_where_they_lie(tmp_path: Path, shards: int) -> None:
    tensors = {
        "half": torch.randn(3, 5).half(),
        "brain": torch.randn(7).bfloat16(),
        "eight": torch.randn(4, 4).to(torch.float8_e4m3fn),
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5),
        "counts": torch.arange(6).reshape(2, 3),
    }
    found = Shards(saved(tmp_path / "model", tensors, shards))
    assert set(found.names()) == set(tensors)
    assert found.nbytes == sum(each.nbytes for each in tensors.values())
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tuple(tensor.shape)
        read = found[name].mapped().reshape(-1).view(torch.uint8)
        assert torch.equal(read, tensor.reshape(-1).view(torch.uint8)), name


def test_writing_to_a_mapped_tensor_leaves_the_file(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", {"w": torch.zeros(4)})
    Shards(folder)["w"].mapped().fill_(1)
    assert not Shards(folder)["w"].mapped().any()


def test_entries_tell_where_bytes_are(tmp_path: Path) -> None:
    weight = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    folder = saved(tmp_path / "model", {"w": weight, "b": torch.ones(3)})
    entry = tensor_entries(folder / SINGLE)["w"]
    read = (folder / SINGLE).read_bytes()[entry.offset : entry.offset + entry.nbytes]
    assert entry.shape == (3, 4)
    assert entry.dtype == "F32"
    assert torch.equal(torch.frombuffer(bytearray(read), dtype=torch.float32).view(3, 4), weight)


def no_folder(folder: Path) -> None:
    folder.rmdir()


def only_a_pickle(folder: Path) -> None:
    torch.save({}, folder / "pytorch_model.bin")


def nothing(folder: Path) -> None:
    (folder / "readme.txt").touch()


def damaged_index(folder: Path) -> None:
    (folder / INDEX).write_text("{")


def index_without_map(folder: Path) -> None:
    (folder / INDEX).write_text("{}")


def lost_shard(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"w": "lost.safetensors"}}))


def damaged_file(folder: Path) -> None:
    (folder / SINGLE).write_bytes(b"not a header")


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (no_folder, StoreError, "is no folder"),
        (only_a_pickle, StoreFormatError, "safe_serialization=True"),
        (nothing, StoreError, SINGLE),
        (damaged_index, StoreFormatError, "weight_map"),
        (index_without_map, StoreFormatError, "weight_map"),
        (lost_shard, StoreError, "lost.safetensors"),
        (damaged_file, StoreFormatError, "header"),
    ],
)
def test_bad_folders_are_refused(tmp_path: Path, spoil: Any, error: type[Exception], words: str) -> None:
    spoil(tmp_path)
    with pytest.raises(error, match=words):
        Shards(tmp_path)


def test_an_element_type_that_torch_lacks_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    (tmp_path / SINGLE).write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(DTypeError, match="F4"):
        Shards(tmp_path)


def test_a_skeleton_has_no_weights_and_real_buffers() -> None:
    skeleton: Any = skeleton_of(Tied, torch.float64)
    assert all(each.is_meta for each in skeleton.parameters())
    assert skeleton.embed.weight is skeleton.head.weight
    assert skeleton.embed.weight.dtype == torch.float64
    assert torch.equal(skeleton.angles, torch.arange(4).double() / 7)
    assert torch.equal(skeleton.norm.running_var, torch.ones(8).double())
    assert torch.get_default_dtype() == torch.float32


def test_other_threads_build_with_weights_meanwhile() -> None:
    built: list[nn.Linear] = []

    def build() -> nn.Module:
        run_in_threads(lambda: built.append(nn.Linear(2, 2)))
        return nn.Linear(2, 2)

    assert skeleton_of(build, None).weight.is_meta
    assert not built[0].weight.is_meta


def test_a_builder_of_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="builtin_function"):
        skeleton_of(lambda: len, None)


def test_tied_weights_are_one_slot() -> None:
    slots = {slot.names: slot for slot in slots_of(Tied())}
    assert ("embed.weight", "head.weight") in slots
    assert ("angles",) not in slots
    assert ("norm.running_mean",) in slots


def test_every_slot_finds_its_tensor(tmp_path: Path) -> None:
    module = Tied()
    tensors = {**state(module), "left.over": torch.ones(2)}
    found = matched(skeleton_of(Tied, None), Shards(saved(tmp_path / "model", tensors, 2)))
    assert {name for _, name, _ in found.pairs} == set(tensors) - {"left.over"}
    assert found.unexpected == ("left.over",)


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    tensors = state(Tied())
    del tensors["norm.weight"]
    with pytest.raises(StoreError, match=r"lacks 1 tensors that Tied needs: norm\.weight"):
        matched(skeleton_of(Tied, None), Shards(saved(tmp_path / "model", tensors)))


def test_other_shapes_are_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", state(Tied(width=8)))
    with pytest.raises(ShapeError, match=r"embed\.weight is \[5, 8\], the model's \[5, 4\]"):
        matched(skeleton_of(lambda: Tied(width=4), None), Shards(folder))


class Base(nn.Module):
    base_model_prefix = "body"

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)


class WithHead(nn.Module):
    base_model_prefix = "body"

    def __init__(self) -> None:
        super().__init__()
        self.body = Base()


def test_the_prefix_of_the_body_may_lack_or_be_there(tmp_path: Path) -> None:
    body = Shards(saved(tmp_path / "body", state(Base())))
    whole = Shards(saved(tmp_path / "whole", state(WithHead())))
    assert len(matched(skeleton_of(WithHead, None), body).pairs) == 2
    assert len(matched(skeleton_of(Base, None), whole).pairs) == 2
