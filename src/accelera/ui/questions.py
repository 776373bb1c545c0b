"""Questions: a source of accesses, a budget, a link and policies, as the service takes them."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from accelera._plotting import format_budget
from accelera.units import parse_bytes

MOST_BYTES = 100_000
"""Of the JSON of a configuration in a link."""
MOST_LETTERS = 6_000
"""Of a configuration in a link: browsers and proxies take addresses of about 8,000."""


def config_of(file: Any) -> dict[str, Any] | None:
    """Return the configuration in an uploaded file; None, after saying why, where it holds none."""
    if file is None:
        return None
    found = _parsed(file.getvalue())
    if found is None:
        st.error("The file is no JSON object: choose the model's config.json.")
    return found


def packed(config: Mapping[str, Any]) -> str | None:
    """Return a configuration as letters of a link; None where it is too long for one."""
    content = json.dumps(config, separators=(",", ":")).encode()
    letters = base64.urlsafe_b64encode(zlib.compress(content, 9)).decode().rstrip("=")
    return letters if len(letters) <= MOST_LETTERS and len(content) <= MOST_BYTES else None


def unpacked(letters: str) -> dict[str, Any] | None:
    """Return the configuration of a link; None where it holds none."""
    if len(letters) > MOST_LETTERS:
        return None
    try:
        content = zlib.decompressobj().decompress(
            base64.urlsafe_b64decode(letters + "=" * (-len(letters) % 4)), MOST_BYTES
        )
    except (zlib.error, binascii.Error, ValueError):
        return None
    return _parsed(content)


def _parsed(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


GB = 10**9
RUNS = {"Train": "training", "Infer": "inference", "Generate": "decode"}
"""Modes of a synthetic model by the words of the page."""
BATCHES = (1, 64)
CONTEXTS = tuple(2**power for power in range(7, 18))
BUDGETS = tuple(sorted({*range(1, 25), *range(26, 49, 2), *range(52, 97, 4), *range(104, 193, 8), 141}))
"""Gigabytes on the slider: fine where cards are small."""
SHARES_OF_PEAK = tuple(range(5, 151, 5))
"""Of a stored trace's peak, in percent: its steps on the slider."""
LINKS = (1, 2, 4, 8, 12, 16, 20, 25, 32, 40, 50, 64, 100, 200, 450, 900)
"""Gigabytes per second on the slider."""
DTYPES = ("bfloat16", "float16", "float32")
POLICIES = {
    "lru": "LRU",
    "fifo": "FIFO",
    "arc": "ARC",
    "gdsf": "GDSF",
    "belady": "Belady",
    "planner": "Planner",
}
"""Policies on the pages by name; the page Policies has all."""
USUAL = ("lru", "arc", "gdsf", "belady")
OWN_SHAPE = "Own shape"
CONFIG = "Hugging Face config"
_DECODED = 3
_BLOCKS = 4


@dataclass(frozen=True)
class Question:
    """One what-if, as ``/v1/fit`` and its relatives take it."""

    source: Mapping[str, Any] | str
    """A synthetic model's fields, or the digest of a stored trace."""
    budget_bytes: int
    link_bytes_per_s: float
    hierarchy: str
    policies: tuple[str, ...]

    def options(self) -> dict[str, Any]:
        """Return what goes with source and budget."""
        return {
            "hierarchy": self.hierarchy,
            "link_bytes_per_s": self.link_bytes_per_s,
            "policies": list(self.policies),
        }

    def request(self) -> dict[str, Any]:
        """Return it as the body of a request, for the history."""
        source = self.source if isinstance(self.source, str) else dict(self.source)
        return {"source": source, "budget": str(self.budget_bytes), **self.options()}


def workload(
    runs: str, num_layers: int, hidden_size: int, batch: int, context: int, dtype: str
) -> dict[str, Any]:
    """Return the fields of a transformer whose trace is short enough for an answer at once.

    A few tokens and large blocks of the key-value cache stand for a long generation: figures are per token,
    the first load aside.
    """
    mode = RUNS[runs]
    fields: dict[str, Any] = {
        "model_type": "Transformer",
        "mode": mode,
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "batch_size": batch,
        "seq_length": context,
        "dtype": dtype,
        "reuse_probability": 0.0,
    }
    if mode == "decode":
        fields |= {
            "steps": max(2, min(_DECODED, round(_DECODED * 32 / num_layers))),
            "block_tokens": max(16, context // _BLOCKS),
        }
    return fields


@dataclass(frozen=True)
class ConfigQuestion:
    """A what-if about a model's configuration, as ``/v1/estimate`` and ``/v1/plan`` take it."""

    config: Mapping[str, Any] | None
    """None while there is no file yet."""
    runs: str
    batch: int
    context: int
    dtype: str
    budget_bytes: int

    def request(self) -> dict[str, Any]:
        """Return it for the history."""
        return {
            "config": dict(self.config or {}),
            "runs": self.runs,
            "batch": self.batch,
            "context": self.context,
            "dtype": self.dtype,
            "budget": str(self.budget_bytes),
        }


def parameters_of(request: Mapping[str, Any], models: Mapping[str, Any]) -> dict[str, str | list[str]]:
    """Return the query parameters that ask a kept request of the page Fit or Timeline again."""
    found: dict[str, str | list[str]] = {}
    source, budget = request.get("source"), bytes_of(request.get("budget"))
    if isinstance(source, str):
        found["trace"] = source
        found |= {} if budget is None else {"memory": size_label(budget)}
    elif isinstance(source, Mapping):
        found |= _source_parameters(source, models)
    elif isinstance(request.get("config"), Mapping):
        found |= _config_parameters(request)
    if budget is not None and not isinstance(source, str):
        found["budget"] = _gigabytes(budget, BUDGETS)
    link, chosen = bytes_of(request.get("link_bytes_per_s")), request.get("policies")
    if link:
        found["link"] = _gigabytes(link, LINKS)
    if isinstance(chosen, list | tuple) and chosen:
        found["policies"] = [label for name, label in POLICIES.items() if name in chosen]
    return found


def _source_parameters(source: Mapping[str, Any], models: Mapping[str, Any]) -> dict[str, str | list[str]]:
    shape = (source.get("num_layers"), source.get("hidden_size"))
    known = [each["name"] for each in models["models"] if (each["num_layers"], each["hidden_size"]) == shape]
    word = {mode: name for name, mode in RUNS.items()}.get(str(source.get("mode")), "Infer")
    found: dict[str, str | list[str]] = {
        "runs": word,
        "model": known[0] if known else OWN_SHAPE,
        "batch": str(source.get("batch_size", 1)),
        "context": str(source.get("seq_length", 1024)),
        "dtype": str(source.get("dtype", "bfloat16")),
    }
    return found if known else found | {"layers": str(shape[0]), "width": str(shape[1])}


def _config_parameters(request: Mapping[str, Any]) -> dict[str, str | list[str]]:
    found: dict[str, str | list[str]] = {"model": CONFIG, "config": packed(request["config"]) or ""}
    for name in ("runs", "batch", "context", "dtype"):
        if request.get(name) is not None:
            found[name] = str(request[name])
    several = request.get("dtypes")
    if isinstance(several, list) and several and several[0] in DTYPES:
        found.setdefault("dtype", several[0])
    return found


def size_label(count: int) -> str:
    """Return bytes as the slider of a stored trace shows them: ``parse_bytes`` reads the same bytes again."""
    label = format_budget(count)
    return label if parse_bytes(label) == count else f"{count} B"


def trace_budgets(peak_bytes: int, others: Iterable[int] = ()) -> dict[str, int]:
    """Return bytes by label, rising: shares of a trace's peak in three digits, and ``others``."""
    shares = {parse_bytes(format_budget(peak_bytes * share // 100)) for share in SHARES_OF_PEAK}
    sizes = sorted({max(size, 1) for size in (*shares, *others, *((2,) if peak_bytes < 100 else ()))})
    return {size_label(size): size for size in sizes}


def first_trace_budget(peak_bytes: int, floor_bytes: int, card_bytes: int, budgets: Mapping[str, int]) -> str:
    """Return the label where the slider begins: the card where the trace is larger, else 60 % of the peak.

    Where no schedule runs in 60 %, the smallest budget in which one does.
    """
    if card_bytes < peak_bytes:
        return nearest_label(card_bytes, budgets)
    sixty = nearest_below(peak_bytes * 6 // 10, tuple(budgets.values()))
    return size_label(min(size for size in budgets.values() if size >= max(sixty, floor_bytes)))


def nearest_label(wanted: int, budgets: Mapping[str, int]) -> str:
    """Return the label of the largest budget that is not above ``wanted``, else of the smallest."""
    return size_label(nearest_below(wanted, tuple(budgets.values())))


def bytes_of(text: object) -> int | None:
    """Return a size in bytes; None for what is none, as are shares of a peak."""
    try:
        return parse_bytes(str(text))
    except ValueError:
        return None


def nearest_below(value: float, options: tuple[int, ...]) -> int:
    """Return the largest option that is not above ``value``, else the smallest."""
    return max((each for each in options if each <= value), default=options[0])


def _gigabytes(count: float, options: tuple[int, ...]) -> str:
    return str(nearest_below(count / GB + 1e-9, options))
