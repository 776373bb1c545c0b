"""Transformer and MoE: tokens in, attention and a feed-forward part per layer, logits out."""

from __future__ import annotations

from accelera.simulator.workloads.attention import Attention
from accelera.simulator.workloads.chance import Chance
from accelera.simulator.workloads.experts import Experts
from accelera.simulator.workloads.layers import FeedForward, Norm
from accelera.simulator.workloads.request import VOCABULARY, Request
from accelera.simulator.workloads.tape import Tape


class LanguageModel:
    """A stack of decoder layers; the embedding is also the output's weight."""

    def __init__(self, tape: Tape, request: Request, chance: Chance) -> None:
        self._tape = tape
        self._request = request
        self._table = tape.lasting("W_embedding", VOCABULARY * request.hidden_size)
        self._layers = [
            (Attention(tape, str(index), request), self._second_half(str(index), chance))
            for index in range(request.num_layers)
        ]
        self._norm = Norm(tape, "final", request.hidden_size)

    def forward(self) -> int:
        """Add one batch; return its logits: of every token in training, else of the last ones."""
        request = self._request
        x = self._embedded(request.seq_length)
        for attention, rest in self._layers:
            x = rest(attention(x, request.seq_length), request.rows)
        wanted = request.rows if request.mode == "training" else request.batch_size
        return self._logits(x, request.rows, wanted)

    def decode(self, tokens: int, before: int) -> int:
        """Add ``tokens`` tokens per sequence after ``before`` cached ones; return the last one's logits."""
        rows = self._request.batch_size * tokens
        x = self._embedded(tokens)
        for attention, rest in self._layers:
            x = rest(attention.cached(x, tokens, before), rows)
        return self._logits(x, rows, self._request.batch_size)

    def _second_half(self, layer: str, chance: Chance) -> FeedForward | Experts:
        if self._request.model_type == "MoE":
            return Experts(self._tape, layer, self._request, chance)
        return FeedForward(self._tape, layer, self._request.hidden_size)

    def _embedded(self, tokens: int) -> int:
        tape, rows = self._tape, self._request.batch_size * tokens
        given = tape.fresh("tokens", rows, "input", "int64")
        return tape.forward("embedding", (given, self._table), "embedded", rows * self._request.hidden_size)

    def _logits(self, x: int, rows: int, wanted: int) -> int:
        normed = self._norm(x, "final_norm", rows)
        flops = 2.0 * wanted * self._request.hidden_size * VOCABULARY
        made = self._tape.forward("logits", (normed, self._table), "logits", wanted * VOCABULARY, flops=flops)
        self._tape.strided(self._table, self._request.hidden_size)
        return made
