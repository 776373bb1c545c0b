"""Request for a synthetic trace, checked, with its defaults."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from accelera.errors import ArgumentError, DTypeError, UnknownNameError

Mode = Literal["inference", "training", "decode"]
MODES: tuple[str, ...] = get_args(Mode)
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes per element of the types that weights may have."""

HIDDEN_SIZES = {"Transformer": 768, "CNN": 512, "MLP": 1024, "MoE": 768}
"""Width by model, where none is given; its keys are the models there are."""
USUAL_STEPS = {"inference": 1, "training": 2, "decode": 32}
"""Batches, optimizer steps or generated tokens, where no number is given."""
HEAD_SIZE = 64
MOST = 1 << 62
"""Above every number that a workload may be asked for, the seed apart."""
VOCABULARY = 32_000
CLASSES = 1000


@dataclass(frozen=True)
class WorkloadRequest:
    """A synthetic workload; build one with ``checked_request``."""

    model_type: str
    num_layers: int
    batch_size: int
    seq_length: int
    reuse_probability: float
    seed: int
    mode: Mode
    steps: int
    hidden_size: int
    dtype: str
    experts: int
    top_k: int
    block_tokens: int
    """Tokens per block of the key-value cache."""

    @property
    def item_bytes(self) -> int:
        """Bytes of an element of a weight or an activation."""
        return ITEM_BYTES[self.dtype]

    @property
    def rows(self) -> int:
        """Tokens, or rows, in a batch."""
        return self.batch_size * self.seq_length

    @property
    def heads(self) -> int:
        """Attention heads."""
        return max(1, self.hidden_size // HEAD_SIZE)


def checked_request(model_type: str, reuse_probability: float, mode: str, **given: Any) -> WorkloadRequest:
    """Return the request with its defaults filled in.

    Raises UnknownNameError for a model or mode, DTypeError for an element type, TypeError and ValueError
    for numbers that cannot be meant.
    """
    model = _canonical("workload", model_type, tuple(HIDDEN_SIZES))
    chosen_mode: Any = _canonical("mode", mode, MODES)
    if chosen_mode == "decode" and model not in ("Transformer", "MoE"):
        raise ArgumentError(
            f"[workload] mode='decode' generates token by token, which a {model} cannot; "
            "take model_type='Transformer' or 'MoE', or mode='inference'"
        )
    if given["dtype"] not in ITEM_BYTES:
        raise DTypeError(f"[workload] dtype={given['dtype']!r} is none of {', '.join(ITEM_BYTES)}")
    if given["steps"] is None:
        given["steps"] = USUAL_STEPS[chosen_mode]
    if given["hidden_size"] is None:
        given["hidden_size"] = HIDDEN_SIZES[model]
    numbers = {name: _count(name, value) for name, value in given.items() if name != "dtype"}
    if numbers["top_k"] > numbers["experts"]:
        raise ArgumentError(
            f"[workload] top_k={numbers['top_k']} experts per token of experts={numbers['experts']}; "
            "choose at most as many as there are"
        )
    return WorkloadRequest(
        model_type=model,
        mode=chosen_mode,
        dtype=given["dtype"],
        reuse_probability=_probability(reuse_probability),
        **numbers,
    )


def _canonical(kind: str, name: str, known: tuple[str, ...]) -> str:
    by_lower = {each.lower(): each for each in known}
    found = by_lower.get(str(name).lower())
    if found is None:
        raise UnknownNameError.among(kind, str(name), known)
    return found


def _count(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"[workload] {name}={value!r} is not a whole number") from None
    least = 0 if name == "seed" else 1
    if number < least:
        raise ArgumentError(f"[workload] {name}={number} must be at least {least}")
    if number >= MOST and name != "seed":
        raise ArgumentError(f"[workload] {name} has {number.bit_length()} bits; give a number below 2**62")
    return number


def _probability(value: float) -> float:
    number = float(value)
    if not 0 <= number <= 1:
        raise ArgumentError(f"[workload] reuse_probability={value} must be from 0 to 1")
    return number
