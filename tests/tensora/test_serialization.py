"""Files of tensors, of modules and of trainings: the same as safetensors writes, whole or not at all."""

from __future__ import annotations

import collections
import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.errors import AcceleraError, DTypeError, StoreError, StoreFormatError
from accelera.tensora import functional, nn, optim, random
from accelera.tensora.serialization import (
    load_checkpoint,
    load_file,
    load_model,
    save_checkpoint,
    save_file,
    save_model,
)

MIB = 2**20
FLOATS = ["float16", "bfloat16", "float32", "float64"]
DTYPES = [
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    *FLOATS,
    "complex64",
]


class Net:
    """Stands for a module: parameters, a buffer, and one parameter with two names."""

    def __init__(self, seed: int = 0, width: int = 8, dtype: str = "float32") -> None:
        source = random.Generator(seed)
        self.tensors = {
            "first.weight": source.normal((width, 4), dtype).requires_grad_(),
            "first.bias": source.normal((width,), dtype).requires_grad_(),
            "last.weight": source.normal((3, width), dtype).requires_grad_(),
            "norm.mean": source.normal((width,), dtype),
        }
        self.tensors["head.weight"] = self.tensors["last.weight"]

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        return ((name, each) for name, each in self.tensors.items() if each.requires_grad)

    def parameters(self) -> list[Any]:
        return [each for name, each in self.named_parameters() if name != "head.weight"]

    def state_dict(self) -> dict[str, Any]:
        return {name: each.detach() for name, each in self.tensors.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("modules are filled in place")

    def __call__(self, x: Any) -> Any:
        hidden = functional.dropout(
            ts.relu(functional.linear(x, self.tensors["first.weight"], self.tensors["first.bias"]))
        )
        return functional.linear(hidden, self.tensors["last.weight"])

    def numbers(self) -> dict[str, Any]:
        return {name: each.tolist() for name, each in self.state_dict().items()}


class Halving:
    """Stands for a scheduler: the learning rate falls at milestones."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.epoch, self.milestones = optimizer, 0, collections.Counter([2, 2, 5])

    def step(self) -> None:
        self.epoch += 1
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.7 ** self.milestones[self.epoch]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "milestones": self.milestones}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.milestones = state["epoch"], state["milestones"]


def samples(dtype: str) -> Any:
    numbers = np.random.default_rng(0).integers(0, 100, (5, 7))
    return ts.asarray(numbers, dtype=dtype)


def bits(tensor: Any) -> bytes:
    """Elements as bytes; those of bfloat16 as float32, which has all of them."""
    return np.ascontiguousarray(tensor.detach().numpy()).tobytes()


# --- files ------------------------------------------------------------------------------------------------


def test_a_file_is_read_by_torch_and_numpy(tmp_path: Path) -> None:
    tensors = {dtype: samples(dtype) for dtype in DTYPES}
    save_file(tensors, tmp_path / "t.safetensors", {"made": "here"})
    found = safetensors.torch.load_file(tmp_path / "t.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert str(found[name].dtype) == f"torch.{name}"
        wide = "complex64" if name == "complex64" else "float64"
        expected = tensor.astype(wide).numpy()
        np.testing.assert_array_equal(found[name].to(getattr(torch, wide)).numpy(), expected)
    with safetensors.safe_open(tmp_path / "t.safetensors", "np") as file:
        assert file.metadata() == {"made": "here"}
        np.testing.assert_array_equal(file.get_tensor("int16"), tensors["int16"].numpy())


def test_files_of_torch_and_numpy_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    numbers = torch.arange(35).reshape(5, 7)
    safetensors.torch.save_file({dtype: numbers.to(getattr(torch, dtype)) for dtype in DTYPES}, path)
    found = load_file(path)
    assert {name: each.dtype.name for name, each in found.items()} == {each: each for each in DTYPES}
    for name, each in found.items():
        np.testing.assert_array_equal(each.numpy(), numbers.numpy().astype(each.numpy().dtype), err_msg=name)
    safetensors.numpy.save_file({"x": np.arange(3.0)}, path)
    assert load_file(str(path))["x"].tolist() == [0, 1, 2]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(st.lists(st.integers(0, 4), max_size=3), st.sampled_from(DTYPES), st.booleans()),
        max_size=5,
    )
)
def test_what_is_saved_is_loaded(tmp_path: Path, layouts: dict[str, Any]) -> None:
    tensors = {}
    for name, (shape, dtype, turned) in layouts.items():
        made = random.Generator(0).uniform(tuple(shape), "float32", 0, 9).astype(dtype)
        tensors[name] = made.T if turned else made
    save_file(tensors, tmp_path / "t.safetensors")
    found = load_file(tmp_path / "t.safetensors")
    assert found.keys() == tensors.keys() == safetensors.torch.load_file(tmp_path / "t.safetensors").keys()
    for name, each in found.items():
        assert (each.dtype, each.shape) == (tensors[name].dtype, tensors[name].shape)
        assert bits(each) == bits(tensors[name])


def test_every_bit_of_bfloat16_stays(tmp_path: Path) -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    safetensors.torch.save_file({"x": every}, tmp_path / "a.safetensors")
    save_file(load_file(tmp_path / "a.safetensors"), tmp_path / "b.safetensors")
    again = safetensors.torch.load_file(tmp_path / "b.safetensors")["x"]
    assert torch.equal(again.view(torch.uint16), every.view(torch.uint16))


def test_elements_that_are_not_aligned_in_the_file(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}).encode()
    header += b" " * (1 - len(header) % 2)
    data = len(header).to_bytes(8, "little") + header + np.array([1.5, -2.0]).tobytes()
    (tmp_path / "t.safetensors").write_bytes(data)
    assert load_file(tmp_path / "t.safetensors")["x"].tolist() == [1.5, -2.0]


def test_types_without_a_twin_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    with pytest.raises(DTypeError, match=r"'x' is of complex128.*convert"):
        save_file({"x": ts.ones((2,), dtype="complex128")}, path)
    safetensors.torch.save_file({"x": torch.ones(2).to(torch.float8_e4m3fn)}, path)
    with pytest.raises(DTypeError, match="'x' has elements of type F8_E4M3"):
        load_file(path)


def test_bad_arguments_write_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    for tensors, metadata in (({"x": 3}, None), ({3: ts.ones(2)}, None), ({"x": ts.ones(2)}, {"k": 3})):
        with pytest.raises(TypeError):
            save_file(tensors, path, metadata)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="__metadata__"):
        save_file({"__metadata__": ts.ones(2)}, path)
    with pytest.raises(StoreError, match="cannot be written"):
        save_file({"x": ts.ones(2)}, tmp_path / "absent" / "t.safetensors")
    with pytest.raises(StoreError, match="cannot be read"):
        load_file(path)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_file({"x": ts.ones((16,)), "y": ts.ones((3,), dtype="bool")}, path)
    whole = path.read_bytes()
    for length in (0, 5, 8, 60, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(StoreFormatError):
            load_file(path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saving_needs_little_memory_and_loading_the_tensors_alone(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "t.safetensors"
    tensors = {f"x{i}": ts.ones((3 * MIB,), dtype=dtype) for i in range(4)}
    ts.compute(*tensors.values())
    each = tensors["x0"].nbytes
    ts.reset_peak()
    live = ts.memory_stats().live_bytes
    tracemalloc.start()
    try:
        save_file(tensors, path)
        beside = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        peak = ts.memory_stats().peak_bytes - live
        ts.reset_peak()
        found = load_file(path)
        loading = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert beside + peak < 5 * MIB < each
    assert loading < MIB
    assert ts.memory_stats().peak_bytes - live <= 4 * each * 1.25
    assert float(sum(x.float().mean() for x in found.values())) == 4.0


def test_a_tensor_that_is_not_contiguous_is_copied_alone(tmp_path: Path) -> None:
    tensors = {f"x{i}": ts.ones((1024, 1536), dtype="float32").T for i in range(4)}
    ts.compute(*tensors.values())
    ts.reset_peak()
    live = ts.memory_stats().live_bytes
    save_file(tensors, tmp_path / "t.safetensors")
    assert ts.memory_stats().peak_bytes - live <= 1.25 * tensors["x0"].nbytes


def test_what_was_there_stays_if_saving_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.safetensors"
    save_file({"x": ts.ones((2,))}, path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"No space left on device.*free some space"):
        save_file({"x": ts.zeros((2,))}, path)
    assert load_file(path)["x"].tolist() == [1, 1]
    assert [each.name for each in tmp_path.iterdir()] == ["t.safetensors"]


# --- modules ----------------------------------------------------------------------------------------------


def test_a_module_is_loaded_in_place(tmp_path: Path) -> None:
    saved, net = Net(0), Net(1)
    save_model(saved, tmp_path / "m.safetensors", {"by": "test"})
    tensors = dict(net.tensors)
    assert load_model(net, tmp_path / "m.safetensors") == ([], [])
    assert net.numbers() == saved.numbers()
    assert all(net.tensors[name] is each for name, each in tensors.items())
    assert list(safetensors.torch.load_file(tmp_path / "m.safetensors")) != []


def test_a_tensor_with_two_names_is_written_once_as_torch_does(tmp_path: Path) -> None:
    module = torch.nn.Module()
    module.head = torch.nn.Linear(8, 3, bias=False)
    module.last = torch.nn.Linear(8, 3, bias=False)
    module.last.weight = module.head.weight
    safetensors.torch.save_model(module, str(tmp_path / "torch.safetensors"))
    net = Net()
    save_model(net, tmp_path / "ours.safetensors")
    ours, theirs = (load_file(tmp_path / f"{each}.safetensors") for each in ("ours", "torch"))
    assert "last.weight" not in ours
    assert list(theirs) == ["head.weight"]
    with safetensors.safe_open(tmp_path / "ours.safetensors", "np") as file:
        assert file.metadata() == {"last.weight": "head.weight"}
    missing, unexpected = load_model(net, tmp_path / "torch.safetensors", strict=False)
    assert (missing, unexpected) == (["first.bias", "first.weight", "norm.mean"], [])
    np.testing.assert_array_equal(
        net.state_dict()["last.weight"].numpy(), module.last.weight.detach().numpy()
    )


def test_pieces_of_one_memory_are_not_taken_for_one_tensor(tmp_path: Path) -> None:
    flat = ts.arange(12.0)

    class Pieces(Net):
        def __init__(self) -> None:
            self.tensors = {"a": flat[:6], "b": flat[6:], "c": flat[:6], "d": flat}

    save_model(Pieces(), tmp_path / "m.safetensors")
    found = load_file(tmp_path / "m.safetensors")
    assert sorted(found) == ["a", "b", "d"]
    assert found["b"].tolist() == [6, 7, 8, 9, 10, 11]


def test_elements_are_converted_to_the_type_of_the_module(tmp_path: Path) -> None:
    save_model(Net(0, dtype="bfloat16"), tmp_path / "m.safetensors")
    net = Net(1)
    load_model(net, tmp_path / "m.safetensors")
    assert net.tensors["norm.mean"].dtype == ts.float32
    assert net.numbers() == Net(0, dtype="bfloat16").numbers()


def test_another_model_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    net = Net(1)
    before = net.numbers()
    save_model(Net(0, width=9), path)
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"'norm.mean' has the shape \(9,\) instead of \(8,\)"):
            load_model(net, path, strict)
    save_file({"first.bias": ts.ones((8,)), "other": ts.ones((2,))}, path)
    with pytest.raises(RuntimeError, match=r"has no 'head.weight'.*the module has no 'other'"):
        load_model(net, path)
    assert net.numbers() == before
    missing, unexpected = load_model(net, path, strict=False)
    assert unexpected == ["other"]
    assert missing == ["first.weight", "head.weight", "last.weight", "norm.mean"]
    assert net.tensors["first.bias"].tolist() == [1.0] * 8


# --- checkpoints ------------------------------------------------------------------------------------------


class Training:
    """A network with dropout, Adam, a scheduler, and its own generator of batches."""

    def __init__(self, seed: int) -> None:
        self.net = Net(seed)
        self.optimizer = optim.Adam(self.net.parameters(), lr=0.01 / 3, betas=(0.7, 0.9), amsgrad=True)
        self.scheduler = Halving(self.optimizer)
        self.source = random.Generator(seed)
        self.losses: list[float] = []

    def parts(self) -> dict[str, Any]:
        return {
            "model": self.net,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "generator": random.default_generator,
            "batches": self.source,
        }

    def run(self, steps: int) -> None:
        for _ in range(steps):
            loss = ts.mean(ts.square(self.net(self.source.normal((16, 4))) - 1))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.losses.append(loss.item())


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Path, Training]:
    random.manual_seed(5)
    training = Training(0)
    training.run(3)
    save_checkpoint(tmp_path / "c.safetensors", **training.parts(), extra={"step": 3})
    return tmp_path / "c.safetensors", training


def test_a_resumed_training_is_the_same_to_the_bit(checkpoint: tuple[Path, Training]) -> None:
    path, training = checkpoint
    training.run(4)
    random.manual_seed(77)
    other = Training(1)
    other.run(2)
    assert load_checkpoint(path, **other.parts()) == {"step": 3}
    other.run(4)
    assert other.losses[2:] == training.losses[3:]
    assert {name: bits(each) for name, each in other.net.state_dict().items()} == {
        name: bits(each) for name, each in training.net.state_dict().items()
    }
    assert isinstance(other.optimizer.param_groups[0]["betas"], tuple)
    assert other.scheduler.milestones == collections.Counter([2, 2, 5])


def test_a_checkpoint_is_a_file_of_tensors_for_others(checkpoint: tuple[Path, Training]) -> None:
    path, training = checkpoint
    found = safetensors.torch.load_file(path)
    assert "optimizer.state.0.exp_avg" in found
    assert found["model.first.bias"].tolist() == training.net.tensors["first.bias"].tolist()
    assert "model.last.weight" not in found


def test_parts_are_taken_alone(checkpoint: tuple[Path, Training]) -> None:
    path, training = checkpoint
    other = Training(1)
    state = random.default_generator.state
    load_checkpoint(path, model=other.net)
    assert other.net.numbers() == training.net.numbers()
    assert other.scheduler.epoch == 0
    assert random.default_generator.state == state
    with pytest.raises(ValueError, match="no part loader; it has model, optimizer, scheduler"):
        load_checkpoint(path, model=other.net, loader=other.scheduler)


def test_a_checkpoint_is_loaded_without_a_second_copy(tmp_path: Path) -> None:
    net = Net(0, width=1 << 18)
    optimizer = optim.Adam(net.parameters())
    ts.mean(net(ts.ones((1, 4)))).backward()
    optimizer.step()
    optimizer.zero_grad()
    save_checkpoint(tmp_path / "c", model=net, optimizer=optimizer)
    fresh = optim.Adam(net.parameters())
    states = sum(2 * each.nbytes for each in net.parameters())
    ts.compute(*net.state_dict().values())
    ts.reset_peak()
    live = ts.memory_stats().live_bytes
    tracemalloc.start()
    try:
        load_checkpoint(tmp_path / "c", model=net)
        assert ts.memory_stats().peak_bytes - live < MIB
        load_checkpoint(tmp_path / "c", model=net, optimizer=fresh)
        beside = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ts.memory_stats().peak_bytes - live <= 1.25 * states
    assert beside < 5 * MIB < states


class Unchanged:
    """Context that holds a training to the state that it had."""

    def __init__(self, training: Training) -> None:
        self.training = training

    def _state(self) -> str:
        training = self.training
        states = [
            training.net.numbers(),
            training.optimizer.state_dict(),
            training.scheduler.state_dict(),
            training.source.state,
            random.default_generator.state,
        ]
        return repr(states)

    def __enter__(self) -> None:
        self.before = self._state()

    def __exit__(self, *_: object) -> None:
        assert self._state() == self.before


def test_a_damaged_checkpoint_is_refused_and_changes_nothing(checkpoint: tuple[Path, Training]) -> None:
    path, _ = checkpoint
    whole = path.read_bytes()
    other = Training(1)
    other.run(1)
    with Unchanged(other):
        for length in (0, 7, 100, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            with pytest.raises(StoreFormatError):
                load_checkpoint(path, **other.parts())
        for place in np.random.default_rng(0).integers(0, len(whole), 60):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            with pytest.raises(StoreFormatError):
                load_checkpoint(path, **other.parts())


def signed(data: bytes) -> bytes:
    """Bytes of a checkpoint that was changed, with the checksum that fits them."""
    place = data.index(b'"checksum":"') + 12
    blank = data[:place] + b"0" * 64 + data[place + 64 :]
    return data[:place] + hashlib.sha256(blank).hexdigest().encode() + data[place + 64 :]


def test_foreign_files_and_versions_are_refused(checkpoint: tuple[Path, Training], tmp_path: Path) -> None:
    path, _ = checkpoint
    whole = path.read_bytes()
    other = Training(1)
    with Unchanged(other):
        path.write_bytes(whole.replace(b'"accelera_checkpoint":"1"', b'"accelera_checkpoint":"9"'))
        with pytest.raises(StoreFormatError, match="has version 9"):
            load_checkpoint(path, model=other.net)
        for old, new in (
            (b'{\\"dict\\"', b'{\\"dick\\"'),
            (b'"state":"{', b'"state":"['),
            (b"0.exp_avg", b"0.exp_gva"),
        ):
            path.write_bytes(signed(whole.replace(old, new, 1)))
            with pytest.raises(StoreFormatError, match="was not written by save_checkpoint"):
                load_checkpoint(path, model=other.net)
        save_model(other.net, path)
        with pytest.raises(StoreFormatError, match="is no checkpoint; use load_file or load_model"):
            load_checkpoint(path, model=other.net)
        torch.save({"x": torch.ones(3)}, path)
        with pytest.raises(StoreFormatError):
            load_checkpoint(path, model=other.net)
        with pytest.raises(StoreError, match="cannot be read"):
            load_checkpoint(tmp_path / "absent", model=other.net)


def test_a_checkpoint_of_another_model_changes_nothing(checkpoint: tuple[Path, Training]) -> None:
    path, _ = checkpoint
    other = Training(1)
    other.run(1)
    parts = other.parts()
    with Unchanged(other):
        with pytest.raises(ValueError, match=r"'norm.mean' has the shape \(8,\) instead of \(9,\) in model"):
            load_checkpoint(path, **{**parts, "model": Net(0, width=9)})
        smaller = optim.Adam(other.net.parameters()[:2])
        with pytest.raises(ValueError, match="groups of"):
            load_checkpoint(path, **{**parts, "optimizer": smaller})
        # The scheduler and the generators are given their states before the optimizer refuses.
        wider = {"optimizer": optim.Adam(Net(0, width=9).parameters())}
        with pytest.raises(ValueError, match="shape"):
            load_checkpoint(path, **{name: parts[name] for name in parts if name != "optimizer"}, **wider)
        with pytest.raises(ValueError, match="was of class Halving"):
            load_checkpoint(path, **{**parts, "scheduler": random.Generator(0)})
        with pytest.raises(ValueError, match="was of class Generator"):
            load_checkpoint(path, **{**parts, "generator": other.scheduler})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(
                st.integers() | st.text(max_size=3) | st.tuples(st.booleans()), inner, max_size=3
            ),
        ),
        max_leaves=8,
    )
)
def test_values_keep_their_types(tmp_path: Path, value: Any) -> None:
    save_checkpoint(tmp_path / "c", extra={"value": value})
    found = load_checkpoint(tmp_path / "c")
    assert repr(found) == repr({"value": value})


def test_tensors_in_extra_can_be_written_to(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", extra={"a.b": ts.ones((3,)), "a": {"b": [ts.zeros((2,)), float("nan")]}})
    found = load_checkpoint(tmp_path / "c")
    found["a.b"][0] = 5
    assert found["a.b"].tolist() == [5, 1, 1]
    assert found["a"]["b"][0].tolist() == [0, 0]
    assert load_checkpoint(tmp_path / "c")["a.b"].tolist() == [1, 1, 1]


def test_what_a_checkpoint_does_not_hold(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"extra\.a\.1 is a function"):
        save_checkpoint(tmp_path / "c", extra={"a": [1, len_of]})
    with pytest.raises(TypeError, match="model= is a int without state_dict"):
        save_checkpoint(tmp_path / "c", model=3)
    assert not list(tmp_path.iterdir())


def len_of(_: Any) -> int:
    return 0


def test_tensors_of_a_device(device: str, tmp_path: Path) -> None:
    net, other = Net(0), Net(1)
    for each in (net, other):
        each.tensors = {name: tensor.to(device) for name, tensor in each.state_dict().items()}
    save_file({"turned": net.tensors["first.weight"].T}, tmp_path / "a")
    found = load_file(tmp_path / "a", device)["turned"]
    assert found.device == device
    assert found.cpu().tolist() == Net(0).tensors["first.weight"].T.tolist()
    save_model(net, tmp_path / "b")
    load_model(other, tmp_path / "b")
    assert {name: each.cpu().tolist() for name, each in other.tensors.items()} == Net(0).numbers()
    save_checkpoint(tmp_path / "c", model=net, extra={"x": found})
    there = Net(2)
    extra = load_checkpoint(tmp_path / "c", model=there)
    assert there.numbers() == Net(0).numbers()
    assert extra["x"].device == "cpu"


KILLED_WRITERS = """
import os, random, signal, sys, time
import accelera.tensora as ts
from accelera.tensora.serialization import load_checkpoint, save_checkpoint
path = sys.argv[1]
last = 0
for attempt in range(12):
    child = os.fork()
    if child == 0:
        for step in range(last + 1, last + 1000):
            save_checkpoint(path, extra={"step": step, "x": ts.full((1 << 16,), float(step))})
        os._exit(0)
    time.sleep(0.02 + random.random() * 0.06)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if os.path.exists(path):
        found = load_checkpoint(path)
        assert found["step"] >= last and ts.all(found["x"] == found["step"]).item()
        last = found["step"]
save_checkpoint(path, extra={})
print(last, os.listdir(os.path.dirname(path)))
"""


@pytest.mark.parametrize("fusion", ["eager"], indirect=True)
def test_killed_writers_leave_a_whole_checkpoint_and_nothing_else(tmp_path: Path, fusion: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WRITERS, str(tmp_path / "c.safetensors")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    last, names = done.stdout.split(" ", 1) if done.stdout else ("0", "")
    assert done.returncode == 0, done.stderr
    assert int(last) > 0
    assert names == "['c.safetensors']\n"


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda params: optim.SGD(params, lr=0.01, momentum=0.9),
    "plain SGD": lambda params: optim.SGD(params, lr=0.01),
    "Adam": lambda params: optim.Adam(params, lr=0.01),
    "AMSGrad": lambda params: optim.Adam(params, lr=0.01, amsgrad=True),
    "AdamW": lambda params: optim.AdamW(params, lr=0.01),
    "Adagrad": lambda params: optim.Adagrad(params, lr=0.01),
    "Adadelta": lambda params: optim.Adadelta(params, lr=0.01),
    "Adamax": lambda params: optim.Adamax(params, lr=0.01),
    "NAdam": lambda params: optim.NAdam(params, lr=0.01),
    "RAdam": lambda params: optim.RAdam(params, lr=0.01),
    "RMSprop": lambda params: optim.RMSprop(params, lr=0.01),
    "centered RMSprop": lambda params: optim.RMSprop(params, lr=0.01, centered=True, momentum=0.9),
    "Rprop": lambda params: optim.Rprop(params, lr=0.01),
    "ASGD": lambda params: optim.ASGD(params, lr=0.01),
}


def stepped(kind: str) -> tuple[Any, Any]:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = OPTIMIZERS[kind](model.parameters())
    one_step(model, optimizer)
    return model, optimizer


def one_step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    (model(ts.ones((4, 3))) ** 2).mean().backward()
    optimizer.step()


@pytest.mark.parametrize("saved", OPTIMIZERS)
def test_checkpoint_of_another_optimizer_is_refused(saved: str, tmp_path: Path) -> None:
    model, optimizer = stepped(saved)
    path = tmp_path / "run.safetensors"
    save_checkpoint(path, model=model, optimizer=optimizer)
    for kind in OPTIMIZERS:
        model, optimizer = stepped(kind)
        before = repr((optimizer.state_dict(), model.state_dict()))
        try:
            load_checkpoint(path, model=model, optimizer=optimizer)
        except AcceleraError:
            assert kind != saved
            assert repr((optimizer.state_dict(), model.state_dict())) == before
        one_step(model, optimizer)
