"""Recurrent networks over whole sequences, and the formulas of their steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import functional as F  # noqa: N812
from accelera.tensora.core import Tensor, native
from accelera.tensora.inspection import placed
from accelera.tensora.nn import init
from accelera.tensora.nn.module import Module
from accelera.tensora.nn.packed_sequence import PackedSequence
from accelera.tensora.nn.parameter import Parameter
from accelera.tensora.typing import Device, DTypeLike

__all__ = ["GRU", "LSTM", "RNN", "RNNBase"]

State = tuple[Any, ...]
"""Hidden state of a batch, and of an LSTM its cell state."""


def _steps(x: Tensor, sizes: list[int]) -> list[Any]:
    """Rows of each step of packed sequences."""
    ends = list(itertools.accumulate(sizes))
    return [x[end - n : end] for n, end in zip(sizes, ends, strict=True)]


def _gates(x: Tensor, count: int) -> list[Any]:
    """Equal parts side by side, one for each gate."""
    width = x.shape[1] // count
    return [x[:, i * width : (i + 1) * width] for i in range(count)]


# --- steps ------------------------------------------------------------------------------------------------


def _rnn_step(activation: Callable[[Any], Any]) -> Callable[..., State]:
    def step(inputs: Tensor, state: State, weights: CellWeights) -> State:
        return (activation(inputs + F.linear(state[0], weights.hh, weights.step_bias)),)

    return step


def _lstm_step(inputs: Tensor, state: State, weights: CellWeights) -> State:
    hidden, cell = state
    into, forget, new, out = _gates(inputs + F.linear(hidden, weights.hh, weights.step_bias), 4)
    cell = F.sigmoid(forget) * cell + F.sigmoid(into) * F.tanh(new)
    hidden = F.sigmoid(out) * F.tanh(cell)
    return (hidden if weights.hr is None else F.linear(hidden, weights.hr)), cell


def _gru_step(inputs: Tensor, state: State, weights: CellWeights) -> State:
    width = 2 * state[0].shape[1]
    hidden = F.linear(state[0], weights.hh, weights.step_bias)
    reset, update = _gates(F.sigmoid(inputs[:, :width] + hidden[:, :width]), 2)
    new = F.tanh(inputs[:, width:] + reset * hidden[:, width:])
    return (new + update * (state[0] - new),)


class CellFormula(NamedTuple):
    """Formula of a sort of recurrent network, and its numbers of gates and states."""

    gates: int
    states: int
    step: Callable[..., State]
    biases_add_up: bool


FORMULAS = {
    "RNN_TANH": CellFormula(1, 1, _rnn_step(F.tanh), True),
    "RNN_RELU": CellFormula(1, 1, _rnn_step(F.relu), True),
    "LSTM": CellFormula(4, 2, _lstm_step, True),
    "GRU": CellFormula(3, 1, _gru_step, False),
}


class CellWeights(NamedTuple):
    """CellWeights of one layer in one direction, or of a cell."""

    ih: Any
    hh: Any
    bias_ih: Any = None
    bias_hh: Any = None
    hr: Any = None
    step_bias: Any = None

    def prepared(self, kind: CellFormula) -> CellWeights:
        """With the biases of all steps in one, where they are added up anyway."""
        if self.bias_ih is None or not kind.biases_add_up:
            return self._replace(step_bias=self.bias_hh)
        return self._replace(bias_ih=self.bias_ih + self.bias_hh)


def _scan(
    kind: CellFormula, weights: CellWeights, data: Tensor, sizes: list[int], state: State
) -> tuple[Any, State]:
    """Outputs of all steps, packed as `data` is, and the last state of each sequence."""
    inputs = _steps(F.linear(data, weights.ih, weights.bias_ih), sizes)
    outputs, ended = [], []
    for x in inputs:
        if (n := x.shape[0]) < state[0].shape[0]:
            ended.append(tuple(each[n:] for each in state))
            state = tuple(each[:n] for each in state)
        state = kind.step(x, state, weights)
        outputs.append(state[0])
    if ended:
        pieces = zip(state, *reversed(ended), strict=True)
        state = tuple(native.concat([*each], 0) for each in pieces)
    return native.concat(outputs, 0), state


def _scan_back(
    kind: CellFormula, weights: CellWeights, data: Tensor, sizes: list[int], state: State
) -> tuple[Any, State]:
    """Results of `_scan` where steps go from the end of each sequence to its begin."""
    inputs = _steps(F.linear(data, weights.ih, weights.bias_ih), sizes)
    first, state = state, tuple(each[: sizes[-1]] for each in state)
    outputs = []
    for x in reversed(inputs):
        n = state[0].shape[0]
        if x.shape[0] > n:
            begun = (each[n : x.shape[0]] for each in first)
            state = tuple(native.concat([*pair], 0) for pair in zip(state, begun, strict=True))
        state = kind.step(x, state, weights)
        outputs.append(state[0])
    return native.concat(outputs[::-1], 0), state


# --- layers -----------------------------------------------------------------------------------------------


def require_positive(name: str, **sizes: Any) -> None:
    """Raise TypeError or ValueError if a size is no positive integer."""
    for key, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise ArgumentError(f"[{name}] {key}={value!r}; give an integer")
        if value < 1:
            raise ArgumentError(f"[{name}] {key}={value}; give 1 or more")


class RNNBase(Module):
    """Recurrent network of any kind; the arguments are those of `LSTM`, after the kind.

    Parameters
    ----------
    mode
        ``"RNN_TANH"``, ``"RNN_RELU"``, ``"LSTM"`` or ``"GRU"``.

    """

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        if mode not in FORMULAS:
            raise ArgumentError(f"[RNNBase] mode={mode!r}; give one of {', '.join(FORMULAS)}")
        name = type(self).__name__
        require_positive(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        if isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ArgumentError(f"[{name}] dropout={dropout}; give a number between 0 and 1")
        if not 0 <= proj_size < hidden_size or (proj_size and mode != "LSTM"):
            raise ArgumentError(
                f"[{name}] proj_size={proj_size}; give 0, or for an LSTM a number below {hidden_size}"
            )
        self.mode, self.input_size, self.hidden_size = mode, input_size, hidden_size
        self.num_layers, self.bias, self.batch_first = num_layers, bias, batch_first
        self.dropout, self.bidirectional, self.proj_size = float(dropout), bidirectional, proj_size
        self._make_weights(dtype, device)
        self.reset_parameters()

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: 1 + self.bidirectional]

    def _make_weights(self, dtype: DTypeLike | None, device: Device | None) -> None:
        rows, width = FORMULAS[self.mode].gates * self.hidden_size, self.proj_size or self.hidden_size
        kind = native.default_float() if dtype is None else native.to_dtype(dtype)
        for layer in range(self.num_layers):
            wide = width * (1 + self.bidirectional) if layer else self.input_size
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, wide), "weight_hh": (rows, width)}
            if self.bias:
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
            if self.proj_size:
                shapes["weight_hr"] = (self.proj_size, self.hidden_size)
            for suffix in self._suffixes(layer):
                for key, shape in shapes.items():
                    setattr(self, key + suffix, Parameter(placed(native.empty(shape, kind), device)))

    def reset_parameters(self) -> None:
        """Draw all weights evenly from ``±1 / sqrt(hidden_size)``."""
        bound = 1 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def flatten_parameters(self) -> None:
        """Do nothing; PyTorch rearranges weights for cuDNN here."""

    @property
    def all_weights(self) -> list[list[Any]]:
        """CellWeights of each layer and direction."""
        suffixes = [each for layer in range(self.num_layers) for each in self._suffixes(layer)]
        return [[x for x in self._weights(each) if x is not None] for each in suffixes]

    def _weights(self, suffix: str) -> CellWeights:
        keys = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        return CellWeights(*(getattr(self, key + suffix, None) for key in keys))

    def extra_repr(self) -> str:
        """Arguments, as PyTorch writes them."""
        text = f"{self.input_size}, {self.hidden_size}"
        defaults = {
            "proj_size": 0,
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0,
            "bidirectional": False,
        }
        given = {key: getattr(self, key) for key, usual in defaults.items() if getattr(self, key) != usual}
        return text + "".join(f", {key}={value}" for key, value in given.items())

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """Outputs of the last layer at each step, and the last state of each layer and direction.

        Parameters
        ----------
        input
            Of shape (steps, batch, input_size), or (batch, steps, input_size) if `batch_first`, or
            (steps, input_size); or a `PackedSequence`.
        hx
            First state, of shape (num_layers * directions, batch, hidden_size), without the batch where the
            input has none; zeros if None. That of an LSTM is a tuple of hidden and cell state, the hidden
            one of width `proj_size` if there is one.

        Returns
        -------
        tuple
            Outputs, with axes as `input`, of width ``directions * (proj_size or hidden_size)``; and the last
            state, of the shape of `hx`.

        Raises
        ------
        ValueError
            If shapes or types do not fit.

        """
        if isinstance(input, PackedSequence):
            return self._packed(input, hx)
        if input.ndim not in (2, 3):
            raise ShapeError(
                f"[{type(self).__name__}] an input of shape {tuple(input.shape)}; give 2 or 3 axes"
            )
        states = self._listed(hx)
        if input.ndim == 2:
            states = states and [each[:, None] if each.ndim == 2 else each for each in states]
            out, last = self._batch(input[:, None], states)
            return out[:, 0], self._returned([each[:, 0] for each in last])
        if not self.batch_first:
            out, last = self._batch(input, states)
            return out, self._returned(last)
        out, last = self._batch(native.permute(input, (1, 0, 2)), states)
        return native.permute(out, (1, 0, 2)), self._returned(last)

    def _listed(self, hx: Any) -> list[Any] | None:
        if hx is None:
            return None
        states = list(hx) if isinstance(hx, (tuple, list)) else [hx]
        wanted = FORMULAS[self.mode].states
        if len(states) != wanted:
            raise ArgumentError(
                f"[{type(self).__name__}] hx is of {len(states)} tensors; give "
                + ("(hidden state, cell state)" if wanted == 2 else "one")
            )
        return states

    def _returned(self, states: list[Any]) -> Any:
        return tuple(states) if len(states) > 1 else states[0]

    def _batch(self, input: Tensor, states: list[Any] | None) -> tuple[Any, list[Any]]:
        """Outputs (steps, batch, width) for an input (steps, batch, input_size)."""
        steps, batch = input.shape[:2]
        if steps == 0:
            raise ArgumentError(f"[{type(self).__name__}] a sequence of 0 steps; give one or more")
        flat = native.reshape(input, (steps * batch, input.shape[2]))
        out, last = self._layers(flat, [batch] * steps, states)
        return native.reshape(out, (steps, batch, out.shape[1])), last

    def _packed(self, input: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
        states, order, back = self._listed(hx), input.sorted_indices, input.unsorted_indices
        if states and order is not None:
            states = [native.take(each, order, 1) for each in states]
        out, last = self._layers(input.data, input.sizes, states)
        if back is not None:
            last = [native.take(each, back, 1) for each in last]
        return input._replace(data=out), self._returned(last)

    def _check(self, data: Tensor, batch: int, states: list[Any]) -> None:
        name, weight = type(self).__name__, self.weight_ih_l0
        if data.ndim != 2 or data.shape[1] != self.input_size:
            raise ShapeError(
                f"[{name}] an input of width {data.shape[-1]}; the network was made for {self.input_size}"
            )
        if data.dtype != weight.dtype and not native.autocasting():
            raise ArgumentError(
                f"[{name}] an input of {data.dtype.name} for weights of {weight.dtype.name}; convert one"
            )
        widths = (self.proj_size or self.hidden_size, self.hidden_size)
        for state, width in zip(states, widths, strict=False):
            wanted = (self.num_layers * (1 + self.bidirectional), batch, width)
            if tuple(state.shape) != wanted:
                raise ShapeError(
                    f"[{name}] a state of shape {tuple(state.shape)}; for this input give {wanted}"
                )

    def _zeros(self, data: Tensor, batch: int) -> list[Any]:
        widths = (self.proj_size or self.hidden_size, self.hidden_size)[: FORMULAS[self.mode].states]
        count = self.num_layers * (1 + self.bidirectional)
        return [placed(native.full((count, batch, n), 0, data.dtype), data.device) for n in widths]

    def _layers(self, data: Tensor, sizes: list[int], states: list[Any] | None) -> tuple[Any, list[Any]]:
        """Outputs of the last layer, packed, and the last states of all layers."""
        self._check(data, sizes[0], states or [])
        first = self._zeros(data, sizes[0]) if states is None else states
        kind = FORMULAS[self.mode]
        lasts: list[State] = []
        for layer in range(self.num_layers):
            if layer:
                data = F.dropout(data, self.dropout, self.training)
            outputs = []
            for scan, suffix in zip((_scan, _scan_back), self._suffixes(layer), strict=False):
                weights = self._weights(suffix).prepared(kind)
                state = tuple(each[len(lasts)] for each in first)
                out, last = scan(kind, weights, data, sizes, state)
                outputs.append(out)
                lasts.append(last)
            data = outputs[0] if len(outputs) == 1 else native.concat(outputs, 1)
        return data, [native.concat([x[None] for x in each], 0) for each in zip(*lasts, strict=True)]


class RNN(RNNBase):
    """Elman network: ``h = tanh(W_ih x + b_ih + W_hh h + b_hh)`` (J. Elman 1990).

    Parameters
    ----------
    input_size, hidden_size
        Widths of the input and of the hidden state.
    num_layers
        Number of stacked layers.
    nonlinearity
        ``"tanh"`` or ``"relu"``.
    bias, batch_first, dropout, bidirectional, device, dtype
        As for `LSTM`.

    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"[RNN] nonlinearity={nonlinearity!r}; give 'tanh' or 'relu'")
        options = (num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype)
        super().__init__(f"RNN_{nonlinearity.upper()}", input_size, hidden_size, *options)
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """Long short-term memory (S. Hochreiter and J. Schmidhuber 1997; projections: H. Sak et al. 2014).

    Parameters
    ----------
    input_size, hidden_size
        Widths of the input and of the states.
    num_layers
        Number of stacked layers.
    bias
        Whether there are `bias_ih` and `bias_hh`.
    batch_first
        Whether the batch is the first axis of input and output.
    dropout
        Probability with which an output of each layer but the last becomes 0, while training.
    bidirectional
        Also go from the last step to the first, with other weights; outputs are concatenated.
    proj_size
        Width that the hidden state is projected to; 0 for none.
    device, dtype
        Of the weights.

    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        options = (num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype)
        super().__init__("LSTM", input_size, hidden_size, *options)


class GRU(RNNBase):
    """Gated recurrent units (K. Cho et al. 2014); the arguments are those of `LSTM`, without `proj_size`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        options = (num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype)
        super().__init__("GRU", input_size, hidden_size, *options)
