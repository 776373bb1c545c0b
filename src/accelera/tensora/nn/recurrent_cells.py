"""Cells of recurrent networks: one step of a batch."""

from __future__ import annotations

import math
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import functional as F  # noqa: N812
from accelera.tensora.core import Tensor, native
from accelera.tensora.inspection import placed
from accelera.tensora.nn import init
from accelera.tensora.nn.module import Module
from accelera.tensora.nn.parameter import Parameter
from accelera.tensora.nn.recurrent import FORMULAS, CellWeights, require_positive
from accelera.tensora.typing import Device, DTypeLike

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "RNNCellBase"]


class RNNCellBase(Module):
    """Cell of any kind.

    Parameters
    ----------
    input_size, hidden_size
        Widths of the input and of the state.
    bias
        Whether there are `bias_ih` and `bias_hh`.
    num_chunks
        Number of gates, each with its weights: 1, 3 or 4.
    device, dtype
        Of the weights.

    """

    kind = "RNN_TANH"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        require_positive(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = num_chunks * hidden_size
        shapes = {"weight_ih": (rows, input_size), "weight_hh": (rows, hidden_size)}
        kind = native.default_float() if dtype is None else native.to_dtype(dtype)
        for name, shape in shapes.items():
            setattr(self, name, Parameter(placed(native.empty(shape, kind), device)))
        for name in ("bias_ih", "bias_hh"):
            made = Parameter(placed(native.empty((rows,), kind), device)) if bias else None
            self.register_parameter(name, made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights evenly from ``±1 / sqrt(hidden_size)``."""
        bound = 1 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def extra_repr(self) -> str:
        """Arguments, as PyTorch writes them."""
        text = f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")
        activation = getattr(self, "nonlinearity", "tanh")
        return text if activation == "tanh" else f"{text}, nonlinearity={activation}"

    def _check(self, input: Tensor, states: list[Any]) -> None:
        name = type(self).__name__
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            raise ShapeError(
                f"[{name}] an input of shape {tuple(input.shape)}; give (batch, {self.input_size}) "
                f"or ({self.input_size},)"
            )
        wanted = (*input.shape[:-1], self.hidden_size)
        for state in states:
            if tuple(state.shape) != wanted:
                raise ShapeError(
                    f"[{name}] a state of shape {tuple(state.shape)}; for this input give {wanted}"
                )

    def _step(self, input: Tensor, states: list[Any] | None) -> tuple[Any, ...]:
        """Next states."""
        kind = FORMULAS[self.kind]
        self._check(input, states or [])
        if states is None:
            zeros = native.full((*input.shape[:-1], self.hidden_size), 0, input.dtype)
            states = [placed(zeros, input.device)] * kind.states
        single = input.ndim == 1
        x, *state = (each[None] if single else each for each in (input, *states))
        weights = CellWeights(self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, None, self.bias_hh)
        made = kind.step(F.linear(x, weights.ih, weights.bias_ih), tuple(state), weights)
        return tuple(each[0] for each in made) if single else made


class RNNCell(RNNCellBase):
    """One step of an Elman network: ``h' = tanh(W_ih x + b_ih + W_hh h + b_hh)`` (J. Elman 1990).

    Parameters
    ----------
    input_size, hidden_size
        Widths of the input and of the state.
    bias
        Whether there are `bias_ih` and `bias_hh`.
    nonlinearity
        ``"tanh"`` or ``"relu"``.
    device, dtype
        Of the weights.

    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"[RNNCell] nonlinearity={nonlinearity!r}; give 'tanh' or 'relu'")
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity
        self.kind = f"RNN_{nonlinearity.upper()}"

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Next state (batch, hidden_size), or (hidden_size,) for an input without a batch."""
        return self._step(input, None if hx is None else [hx])[0]


class LSTMCell(RNNCellBase):
    """One step of a long short-term memory (S. Hochreiter and J. Schmidhuber 1997); see `RNNCell`."""

    kind = "LSTM"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
        """Next hidden and cell state, for such a pair."""
        hidden, cell = self._step(input, None if hx is None else [*hx])
        return hidden, cell


class GRUCell(RNNCellBase):
    """One step of gated recurrent units (K. Cho et al. 2014); see `RNNCell`."""

    kind = "GRU"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Next state (batch, hidden_size), or (hidden_size,) for an input without a batch."""
        return self._step(input, None if hx is None else [hx])[0]
