"""Exported models give in ONNX Runtime what the functions give in Tensora."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.tensora import functional, nn, optim
from tests.tensora.lowered_networks import (
    CASES,
    LANGUAGE_MODELS,
    NETWORKS,
    SPECIAL,
    VIEWS,
    accepts,
    numbers,
    ordinary,
    sample_tensors,
    tokens,
    viewed,
)

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.parametrize("fusion", ["eager"], indirect=True)

TYPES = ("float32", "int32", "bool", "uint8", "float16", "int64")
GRADIENTS = """attention_backward avg_pool_back channel_norm_backward conv_weight cross_entropy_backward fold
    layer_norm_backward log_softmax_backward softmax_backward"""
OTHERS = """atan2 bitwise_left_shift bitwise_right_shift complex cumprod digamma erfc erfcx erfinv
    frexp_exponent gcd hypot i0 i0e i1 i1e imag lcm lgamma linear_recurrence log_ndtr logcumsumexp ndtri
    nextafter polygamma zeta"""
NO_FORM = {*GRADIENTS.split(), *OTHERS.split()}


def run(model, *tensors):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {
        place.name: numbers(x).astype("float16") if x.dtype == ts.float16 else np.array(x.detach())
        for place, x in zip(session.get_inputs(), tensors, strict=True)
    }
    return session.run(None, feed)


def check_close(found, wanted, tolerance=1e-4):
    assert found.dtype.name == wanted.dtype.name
    assert found.shape == tuple(wanted.shape)
    np.testing.assert_allclose(
        found.astype(np.float64), numbers(wanted).astype(np.float64), rtol=tolerance, atol=tolerance / 10
    )


def check_exported(function, *tensors, tolerance=1e-4):
    wanted = function(*tensors)
    found = run(ts.export_onnx(function, tensors), *tensors)
    for one, other in zip(found, wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        check_close(one, other, tolerance)


@pytest.mark.parametrize(("name", "sample", "i"), CASES)
def test_every_entry_agrees_or_has_no_form(name, sample, i):
    defined = 0
    for dtype in TYPES:
        if not accepts(sample, dtype):
            continue
        tensors = sample_tensors(sample, dtype, 0)
        try:
            sample.call(*tensors)
        except TypeError:
            continue
        defined += 1
        if name in NO_FORM:
            with pytest.raises(
                NotImplementedError, match=f"no form in ONNX of .*{name}|of complex|float32 in"
            ):
                ts.export_onnx(sample.call, tuple(tensors))
        else:
            check_exported(sample.call, *tensors, tolerance=1e-2 if dtype == "float16" else 2e-4)
    assert defined or name == "imag"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ts.argsort(ts.nan_to_num(x), axis=-1),
        lambda x: ts.argmax(ts.nan_to_num(x), axis=1),
        lambda x: ts.argmin(ts.nan_to_num(x), axis=0),
        lambda x: ts.topk(ts.nan_to_num(x), 2)[1],
        lambda x: ts.searchsorted(
            ts.asarray(np.array([-1.0, 0, 2, 2, 3], np.float32)), ts.nan_to_num(x), side="right"
        ),
        lambda x: ts.maximum(x, ts.flip(x, axis=1)),
        lambda x: ts.minimum(x, ts.flip(x, axis=1)),
        lambda x: ts.isfinite(x) | ts.signbit(x),
        lambda x: ts.copysign(ts.ones((6,)), x),
        lambda x: functional.relu(x),
        lambda x: ts.clip(x, -1, 2),
        lambda x: ts.round(x / 2),
    ],
)
def test_equal_elements_nan_and_infinity(function):
    check_exported(function, SPECIAL)


@settings(max_examples=150, deadline=None)
@given(
    chain=st.lists(st.tuples(st.sampled_from(sorted(VIEWS)), st.integers(0, 5)), max_size=6),
    write=st.booleans(),
)
def test_views_of_views_read_and_written(chain, write):
    check_exported(viewed(chain, write), ordinary((3, 4, 5)))


def test_overlapping_windows_and_constants_that_are_written():
    def function(x):
        counts = ts.zeros((4, 4))
        counts[1:3, ::2] = x[:2, :2]
        counts += 1
        return counts, ts.as_strided(x, (3, 3), (2, 1)), x

    check_exported(function, ordinary((4, 4)))


# --- networks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_give_the_same_outputs(kind):
    make, shape = NETWORKS[kind]
    ts.random.manual_seed(0)
    model = make().eval()
    exported = ts.export_onnx(model, ordinary(shape))
    check_close(run(exported, ordinary(shape, 1))[0], model(ordinary(shape, 1)))
    names = {each.name for each in exported.graph.initializer}
    assert set(dict(model.named_parameters())) <= names


@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
def test_language_models_give_the_same_logits(kind):
    ts.random.manual_seed(0)
    model = LANGUAGE_MODELS[kind]().eval()
    exported = ts.export_onnx(model, tokens(), input_names=["input_ids"], output_names=["logits"])
    assert [each.name for each in exported.graph.input] == ["input_ids"]
    assert [each.name for each in exported.graph.output] == ["logits"]
    check_close(run(exported, tokens(1))[0], model(tokens(1)))


def test_a_plain_network_is_what_a_reader_expects():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(-1))
    exported = ts.export_onnx(model, ts.ones((2, 4)))
    operations = [each.op_type for each in exported.graph.node if each.op_type != "Identity"]
    assert operations == ["Gemm", "Relu", "Gemm", "Softmax"]
    assert {each.name for each in exported.graph.initializer} == set(dict(model.named_parameters()))
    assert exported.opset_import[0].version == 21


def test_a_tied_weight_is_one_initializer():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(11, 4)

        def forward(self, ids):
            return self.table(ids) @ self.table.weight.T

    ids = ts.asarray(np.array([1, 10, 0]))
    model = Tied()
    exported = ts.export_onnx(model, ids)
    assert sum(each.name.startswith("table.weight") for each in exported.graph.initializer) == 1
    check_close(run(exported, ids)[0], model(ids))


# --- files ------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_as_a_whole(tmp_path: Path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"before")
    model = nn.Linear(4, 2)
    made = ts.export_onnx(model, ts.ones((3, 4)), path)
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]
    assert onnx.load(path) == made
    check_close(run(onnx.load(path), ts.ones((3, 4)))[0], model(ts.ones((3, 4))))


def test_tensors_of_a_model_that_is_too_large_lie_beside_it(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("accelera.tensora.lowering.onnx_export.LARGEST_MESSAGE", 1000)
    path = tmp_path / "model.onnx"
    model = nn.Linear(64, 64)
    ts.export_onnx(model, ts.ones((3, 64)), path)
    assert {each.name for each in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data"}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    check_close(session.run(None, {"input": np.ones((3, 64), "f")})[0], model(ts.ones((3, 64))))


# --- what is refused --------------------------------------------------------------------------------------


def test_training_mode_is_refused():
    with pytest.raises(NotImplementedError, match=r"random numbers.*eval\(\)"):
        ts.export_onnx(nn.Dropout(0.5), ts.ones((3,)))
    with pytest.raises(NotImplementedError, match=r"writes to.*eval\(\)"):
        ts.export_onnx(nn.BatchNorm1d(3), ts.ones((4, 3)))
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        model(x).sum().backward()
        optimizer.step()

    with pytest.raises(NotImplementedError, match="step; export a forward pass"):
        ts.export_onnx(step, ts.ones((1, 3)))


def test_names_must_be_as_many_as_tensors():
    with pytest.raises(ValueError, match=r"input_names=\['a', 'b'\] for 1 tensors"):
        ts.export_onnx(lambda x: x + 1, ts.ones((2,)), input_names=["a", "b"])
    with pytest.raises(ValueError, match=r"output_names=\['a', 'a'\] for 2 tensors"):
        ts.export_onnx(lambda x: (x + 1, x), ts.ones((2,)), output_names=["a", "a"])


def test_types_without_a_form_are_refused():
    with pytest.raises(NotImplementedError, match="complex64"):
        ts.export_onnx(lambda x: x + 1, ts.ones((2,), dtype=ts.complex64))
    with pytest.raises(NotImplementedError, match="uint64"):
        ts.export_onnx(lambda x: ts.max(x), ts.ones((2,), dtype=ts.uint64))
    with pytest.raises(RuntimeError, match=r"\[jit\] "):
        ts.export_onnx(lambda x: x + float(x.sum()), ts.ones((2,)))
