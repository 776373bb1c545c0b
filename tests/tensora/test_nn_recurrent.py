"""Recurrent networks and packed sequences: results, states and gradients as PyTorch's."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.utils import rnn as torch_rnn

import accelera.tensora as ts
from accelera.tensora import nn
from tests.tensora.module_twins import assert_close, assert_samples, assert_twins, translated, twins

RANDOM = np.random.default_rng(0)
KINDS = ["RNN", "LSTM", "GRU"]


def normal(*shape: int) -> Any:
    return torch.tensor(RANDOM.normal(size=shape), requires_grad=True)


@pytest.mark.parametrize(
    ("name", "least"),
    [("RNN", 32), ("LSTM", 32), ("GRU", 16), ("RNNCell", 3), ("LSTMCell", 2), ("GRUCell", 2)],
)
def test_pytorchs_own_samples_agree(name: str, least: int) -> None:
    assert assert_samples(name) >= least


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(KINDS),
    layers=st.integers(1, 3),
    both=st.booleans(),
    bias=st.booleans(),
    batch_first=st.booleans(),
    sizes=st.tuples(*[st.integers(1, 4)] * 4),
    given_state=st.booleans(),
)
def test_any_network_agrees(
    name: str,
    layers: int,
    both: bool,
    bias: bool,
    batch_first: bool,
    sizes: tuple[int, int, int, int],
    given_state: bool,
) -> None:
    steps, batch, wide, hidden = sizes
    options = {"num_layers": layers, "bidirectional": both, "bias": bias, "batch_first": batch_first}
    ours, theirs = twins(name, wide, hidden, **options)
    x = normal(batch, steps, wide) if batch_first else normal(steps, batch, wide)
    if not given_state:
        return assert_twins(ours, theirs, x)
    states = [normal(layers * (1 + both), batch, hidden) for _ in range(2)]
    return assert_twins(ours, theirs, x, tuple(states) if name == "LSTM" else states[0])


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_projections_agree(single: bool, both: bool) -> None:
    ours, theirs = twins("LSTM", 3, 6, num_layers=2, proj_size=4, bidirectional=both)
    count = 2 * (1 + both)
    x = normal(5, 3) if single else normal(5, 2, 3)
    states = (normal(count, 4), normal(count, 6)) if single else (normal(count, 2, 4), normal(count, 2, 6))
    assert_twins(ours, theirs, x, states)
    assert_twins(ours, theirs, x.detach())


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("enforce", [False, True])
def test_packed_sequences_agree(name: str, enforce: bool) -> None:
    lengths = [5, 4, 4, 1] if enforce else [4, 1, 5, 4]
    ours, theirs = twins(name, 3, 4, num_layers=2, bidirectional=True)
    x = normal(5, 4, 3)
    mine = translated(x)
    packed = nn.pack_padded_sequence(mine, lengths, enforce_sorted=enforce)
    wanted = torch_rnn.pack_padded_sequence(x, lengths, enforce_sorted=enforce)
    assert_close(packed.data, wanted.data)
    assert packed.batch_sizes.numpy().tolist() == wanted.batch_sizes.tolist()
    states = tuple(normal(4, 4, 4).detach() for _ in range(2))
    first = states if name == "LSTM" else states[0]
    (out, last), (out_wanted, last_wanted) = ours(packed, translated(first)), theirs(wanted, first)
    assert_close(last, last_wanted)
    padded, found = nn.pad_packed_sequence(out, padding_value=-1.0, total_length=6)
    padded_wanted, _ = torch_rnn.pad_packed_sequence(out_wanted, padding_value=-1.0, total_length=6)
    assert_close(padded, padded_wanted)
    assert found.numpy().tolist() == lengths
    ((padded * padded).sum() + sum(each.sum() for each in last)).backward()
    ((padded_wanted**2).sum() + sum(each.sum() for each in last_wanted)).backward()
    assert_close(mine.grad, x.grad)
    gradients = {key: weight.grad for key, weight in ours.named_parameters()}
    for key, weight in theirs.named_parameters():
        assert_close(gradients[key], weight.grad)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6), batch_first=st.booleans())
def test_packing_and_padding_are_inverses(lengths: list[int], batch_first: bool) -> None:
    pieces = [normal(n, 2).detach() for n in lengths]
    mine = [translated(each) for each in pieces]
    padded = nn.pad_sequence(mine, batch_first=batch_first, padding_value=3.0)
    assert_close(padded, torch_rnn.pad_sequence(pieces, batch_first, 3.0))
    left = nn.pad_sequence(mine, batch_first=batch_first, padding_side="left")
    assert_close(left, torch_rnn.pad_sequence(pieces, batch_first, padding_side="left"))
    packed = nn.pack_sequence(mine, enforce_sorted=False)
    wanted = torch_rnn.pack_sequence(pieces, enforce_sorted=False)
    assert_close(packed.data, wanted.data)
    assert packed.batch_sizes.numpy().tolist() == wanted.batch_sizes.tolist()
    again, found = nn.pad_packed_sequence(packed, batch_first=batch_first)
    assert_close(again, nn.pad_sequence(mine, batch_first=batch_first))
    assert found.numpy().tolist() == lengths
    assert_close(nn.unpad_sequence(padded, found, batch_first=batch_first), pieces)


def test_packed_sequences_move() -> None:
    packed = nn.pack_sequence([ts.ones((2, 3)), ts.ones((4, 3))], enforce_sorted=False)
    moved = packed.to("float64")
    assert moved.data.dtype == ts.float64
    assert moved.sizes == [2, 2, 1, 1]
    assert moved.unsorted_indices.numpy().tolist() == [1, 0]


def test_dropout_is_between_layers_and_only_while_training() -> None:
    ts.random.manual_seed(0)
    ours, theirs = twins("LSTM", 3, 5, num_layers=2, dropout=0.5)
    x = normal(4, 2, 3).detach()
    assert_twins(ours.eval(), theirs.eval(), x)
    ours.train()
    assert not np.allclose(ours(translated(x))[0].detach().numpy(), theirs(x)[0].detach().numpy())
    ours, theirs = twins("GRU", 3, 5, num_layers=2, dropout=1.0)
    assert_twins(ours, theirs, x)


def test_gradients_of_gradients() -> None:
    for name in KINDS:
        network = getattr(nn, name)(2, 3, bidirectional=True, dtype="float64")
        x = translated(normal(3, 2, 2))
        assert ts.gradgradcheck(lambda given, network=network: network(given)[0].sum(), [x])


def test_weights_are_drawn_as_pytorchs_and_copied() -> None:
    network = nn.LSTM(3, 16, num_layers=2, proj_size=2)
    drawn = np.concatenate([weight.detach().numpy().ravel() for weight in network.parameters()])
    assert abs(drawn).max() <= 0.25 < 1.02 * abs(drawn).max()
    assert [len(each) for each in network.all_weights] == [5, 5]
    assert repr(network) == repr(torch.nn.LSTM(3, 16, num_layers=2, proj_size=2))
    assert repr(nn.RNNCell(2, 3, False, "relu")) == repr(torch.nn.RNNCell(2, 3, False, "relu"))
    x = ts.ones((4, 1, 3))
    for twin in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert_close(twin(x), network(x), 0)


def test_memory_grows_linearly_with_the_length() -> None:
    network = nn.LSTM(4, 8)

    def peak(steps: int) -> int:
        x = ts.ones((steps, 1, 4))
        before = ts.memory_stats().live_bytes
        ts.reset_peak()
        network(x)[0].sum().backward()
        return int(ts.memory_stats().peak_bytes - before)

    peak(100)
    assert peak(400) < 2.5 * peak(200)


def test_what_does_not_fit_is_refused() -> None:
    network = nn.LSTM(3, 4)
    with pytest.raises(ValueError, match="the network was made for 3"):
        network(ts.ones((5, 2, 4)))
    with pytest.raises(ValueError, match="give 2 or 3 axes"):
        network(ts.ones((3,)))
    with pytest.raises(ValueError, match=r"give \(1, 2, 4\)"):
        network(ts.ones((5, 2, 3)), (ts.ones((1, 3, 4)), ts.ones((1, 2, 4))))
    with pytest.raises(ValueError, match=r"give \(hidden state, cell state\)"):
        network(ts.ones((5, 2, 3)), ts.ones((1, 2, 4)))
    with pytest.raises(ValueError, match="float64 for weights of float32"):
        network(ts.ones((5, 2, 3), dtype="float64"))
    with pytest.raises(ValueError, match="0 steps"):
        network(ts.ones((0, 2, 3)))
    with pytest.raises(ValueError, match="proj_size=4"):
        nn.LSTM(3, 4, proj_size=4)
    with pytest.raises(ValueError, match="dropout=2"):
        nn.GRU(3, 4, dropout=2)
    with pytest.raises(ValueError, match="nonlinearity='gelu'"):
        nn.RNN(3, 4, nonlinearity="gelu")
    with pytest.raises(ValueError, match="hidden_size=0"):
        nn.RNN(3, 0)
    with pytest.raises(TypeError, match="give an integer"):
        nn.GRUCell(3, 4.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mode='CNN'"):
        nn.RNNBase("CNN", 3, 4)
    with pytest.raises(ValueError, match="nonlinearity='gelu'"):
        nn.RNNCell(3, 4, nonlinearity="gelu")
    with pytest.raises(ValueError, match=r"give \(2, 4\)"):
        nn.GRUCell(3, 4)(ts.ones((2, 3)), ts.ones((3, 4)))
    with pytest.raises(ValueError, match=r"give \(batch, 3\)"):
        nn.GRUCell(3, 4)(ts.ones((2, 4)))


def test_lengths_that_do_not_fit_are_refused() -> None:
    x = ts.ones((4, 2, 3))
    with pytest.raises(RuntimeError, match="enforce_sorted=False"):
        nn.pack_padded_sequence(x, [2, 4])
    with pytest.raises(RuntimeError, match="give one each"):
        nn.pack_padded_sequence(x, [2])
    with pytest.raises(RuntimeError, match="give lengths from 1"):
        nn.pack_padded_sequence(x, [4, 0])
    with pytest.raises(ValueError, match="total_length=3"):
        nn.pad_packed_sequence(nn.pack_padded_sequence(x, [4, 2]), total_length=3)
    with pytest.raises(ValueError, match="differ in their first axis alone"):
        nn.pad_sequence([ts.ones((2, 3)), ts.ones((2, 4))])
    with pytest.raises(ValueError, match="padding_side='top'"):
        nn.pad_sequence([x], padding_side="top")
