"""Requests of the service, with bounds on every number."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    WithJsonSchema,
    model_validator,
)

from accelera.errors import ArgumentError, UnknownNameError
from accelera.policy import POLICIES
from accelera.simulator import HIERARCHIES, generate_synthetic_trace
from accelera.simulator._internal import SCORERS, expected_accesses
from accelera.trace import Trace
from accelera.units import parse_share
from accelera.views import WhatIf
from accelera.views._internal import MACHINES

_SIZE = r"^\d{1,15}(\.\d{1,6})? ?([kKMGTP]i?B|B|%)?$"
_BYTES = r"^\d{1,15}(\.\d{1,6})? ?([kKMGTP]i?B|B)?$"


def _size(given: str) -> str:
    if re.fullmatch(_SIZE, given, re.ASCII) is None:
        raise ArgumentError(
            f"{given[:40]!r} is no size; give bytes such as '8GiB', '512 MB' or '1000000', or a share of the "
            "peak such as '50%'"
        )
    return given


def _bytes(given: str) -> str:
    if re.fullmatch(_BYTES, given, re.ASCII) is None:
        raise ArgumentError(f"{given[:40]!r} is no size; give bytes such as '8GiB', '512 MB' or '1000000'")
    return given


def _above_zero(given: str) -> str:
    if not parse_share(given):
        raise ArgumentError(f"{given!r} is no capacity to replay at; give 1 byte or more")
    return given


def _written(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "maxLength": 32})


Size = Annotated[str, AfterValidator(_size), _written(_SIZE)]
"""A size in bytes or as text (``8GiB``, ``512 MB``), or a share of the peak (``50%``)."""
Bytes = Annotated[str, AfterValidator(_bytes), _written(_BYTES)]
"""A size in bytes or as text: ``8GiB``, ``512 MB``."""
Capacity = Annotated[Size, AfterValidator(_above_zero)]
"""A size of more than 0 bytes."""
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a stored trace's contents."""
_POLICY_NAMES = (*POLICIES, "ML", *(name.upper() for name in POLICIES))
UNSCORED = tuple(name for name in POLICIES if name not in ("scored", "learned"))
"""Policies that need no score."""


def _known_policy(given: str) -> str:
    return _among(given, {"ml", *POLICIES})


def _unscored_policy(given: str) -> str:
    return _among(given, set(UNSCORED))


def _among(given: str, known: set[str]) -> str:
    """Return the name of a policy, which may be written in any case."""
    if given.lower() not in known:
        raise ArgumentError(str(UnknownNameError.among("policy", given[:40], known)).partition("] ")[2])
    return given.lower()


PolicyName = Annotated[
    str, AfterValidator(_known_policy), WithJsonSchema({"type": "string", "enum": list(_POLICY_NAMES)})
]
"""A policy, ``ML`` for the one that follows the eviction scores; in any case."""
UnscoredName = Annotated[
    str, AfterValidator(_unscored_policy), WithJsonSchema({"type": "string", "enum": list(UNSCORED)})
]
"""A policy that needs no score; in any case."""
if TYPE_CHECKING:
    HierarchyName = str
    ScorerName = str
    MachineName = str
else:
    HierarchyName = Literal[tuple(HIERARCHIES)]
    ScorerName = Literal[tuple(name for name in SCORERS if name != "llm")]
    MachineName = Literal[MACHINES]


class Strict(BaseModel):
    """A body whose fields are of the right type, and all known."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _take_whole_numbers(cls, given: Any) -> Any:
        """Take 2.0 for 2, which are the same number in JSON; refuse values that JSON cannot carry back."""
        _require_portable(given)
        if isinstance(given, dict):
            return {name: _whole(value) for name, value in given.items()}
        return given


def _require_portable(value: Any) -> None:
    """Raise ValueError for a number or text that no reply can contain: infinite, or not valid Unicode."""
    if isinstance(value, dict):
        for name, entry in value.items():
            _require_portable(name)
            _require_portable(entry)
    elif isinstance(value, list):
        for entry in value:
            _require_portable(entry)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ArgumentError("a number is infinite or not a number; give finite numbers")
    elif isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError("a text has a lone surrogate, which is no character; leave it out") from error


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


class Workload(Strict):
    """A synthetic model, and the trace of its tensor accesses: the same fields give the same trace."""

    model_type: Literal["Transformer", "CNN", "MLP", "MoE"] = "Transformer"
    num_layers: int = Field(12, ge=1, le=512)
    batch_size: int = Field(32, ge=1, le=65_536, description="sequences or images")
    seq_length: int = Field(128, ge=1, le=1_048_576, description="tokens, or pixels of an image's edge")
    reuse_probability: float = Field(0.3, ge=0, le=1, description="of a further read in each forward step")
    seed: int = Field(0, ge=0, le=2**32 - 1)
    mode: Literal["inference", "training", "decode"] = "inference"
    steps: int | None = Field(None, ge=1, le=4096, description="batches, optimizer steps or tokens")
    hidden_size: int | None = Field(None, ge=1, le=65_536)
    dtype: Literal["float64", "float32", "float16", "bfloat16"] = "float32"
    experts: int = Field(8, ge=1, le=256)
    top_k: int = Field(2, ge=1, le=256)
    block_tokens: int = Field(16, ge=1, le=65_536, description="tokens per block of the key-value cache")

    @model_validator(mode="after")
    def _possible(self) -> Workload:
        if self.mode == "decode" and self.model_type not in ("Transformer", "MoE"):
            raise ArgumentError(f"a {self.model_type} does not generate token by token; take another mode")
        if self.top_k > self.experts:
            raise ArgumentError(f"top_k={self.top_k} of experts={self.experts}; choose at most as many")
        return self

    def trace(self) -> Trace:
        """Return the trace."""
        return generate_synthetic_trace(**self.model_dump(include=set(Workload.model_fields)))

    def expected_accesses(self) -> int:
        """Return how many accesses the trace has, from above."""
        return expected_accesses(**self.model_dump(include=set(Workload.model_fields)))


class ScoringRequest(Workload):
    """A synthetic model whose tensors are scored, and the machine on which the scores are to help."""

    hierarchy: HierarchyName = Field("copilot", description="the machine; the seed's 64 MB by default")
    capacity: Size | None = Field(None, description="of the first tier, instead of the machine's")
    lookahead: int = Field(0, ge=0, le=64, description="steps that are loaded ahead")
    scorer: ScorerName = Field("heuristic", description="of the eviction scores")


class SimulationRequest(ScoringRequest):
    """A synthetic model on a machine."""

    validate_trace: bool = Field(False, alias="validate", description="whether to add the validation")

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)


def _kind_of_source(given: Any) -> str:
    return "digest" if isinstance(given, str) else "workload"


Source = Annotated[
    Annotated[Workload, Tag("workload")] | Annotated[Digest, Tag("digest")], Discriminator(_kind_of_source)
]


def with_example(**example: Any) -> ConfigDict:
    """Return the configuration of a strict body that OpenAPI shows an example of."""
    return ConfigDict(strict=True, extra="forbid", json_schema_extra={"examples": [example]})


_DECODING: Any = {"model_type": "Transformer", "num_layers": 12, "mode": "decode", "batch_size": 1}


class Analysis(Strict):
    """A question about one trace."""

    source: Source = Field(description="a synthetic model, or the digest of a stored trace")


class AdviceRequest(Analysis):
    """How to run in less memory than a trace needs."""

    capacity: Size = Field(description="of the first tier: bytes, 8GiB, or 50% of the peak")
    hierarchy: HierarchyName | None = None
    bound: bool = Field(True, description="whether to work out the least bytes that any schedule moves")

    model_config = with_example(source=_DECODING, capacity="50%", bound=False)


class BoundsRequest(Analysis):
    """The least bytes that any schedule moves."""

    capacities: list[Size] = Field(min_length=1, max_length=64)

    model_config = with_example(source=_DECODING, capacities=["50%", "75%"])


class SweepRequest(Analysis):
    """Policies at capacities, all of them replayed."""

    policies: list[UnscoredName] | None = Field(None, min_length=1, max_length=32)
    capacities: list[Capacity] | int = Field(
        50, description="sizes, or how many between the floor and the peak"
    )
    seed: int = Field(0, ge=0, le=2**32 - 1)
    bound: bool = Field(True, description="whether to add the least bytes that any schedule moves")

    model_config = with_example(source=_DECODING, policies=["lru", "belady"], capacities=8, bound=False)

    @model_validator(mode="after")
    def _bounded(self) -> SweepRequest:
        count = self.capacities if isinstance(self.capacities, int) else len(self.capacities)
        if not 1 <= count <= 200:
            raise ArgumentError(f"{count} capacities; give 1 to 200")
        return self


_GENERATION: dict[str, Any] = {
    "num_layers": 32,
    "hidden_size": 4096,
    "batch_size": 1,
    "seq_length": 1024,
    "dtype": "bfloat16",
    "mode": "decode",
    "steps": 3,
    "block_tokens": 256,
    "reuse_probability": 0.0,
}
"""A model of 7B that generates."""


def _shown(**example: Any) -> ConfigDict:
    """Return the settings of a body whose description shows an example."""
    return ConfigDict(
        strict=True, extra="forbid", json_schema_extra={"examples": [{"source": _GENERATION, **example}]}
    )


class ViewRequest(Analysis):
    """Figures of one trace on a machine."""

    hierarchy: MachineName = Field("gpu-24gb", description="the machine; its first tier gets the budget")
    link_bytes_per_s: float | None = Field(
        None, ge=1e6, le=1e13, description="each way between the first tier and the next; the machine's else"
    )
    lookahead: int = Field(0, ge=0, le=64, description="steps that are loaded ahead")

    def what_if(self) -> WhatIf:
        """Return the machine."""
        return WhatIf(self.hierarchy, self.link_bytes_per_s, self.lookahead)


class FitRequest(ViewRequest):
    """A trace in a budget."""

    budget: Size = Field(description="of the first tier: bytes, 24GB, or 50% of the peak")
    policies: list[UnscoredName] | None = Field(
        None, min_length=1, max_length=32, description="compared; four usual ones when absent"
    )

    model_config = _shown(budget="12GB", link_bytes_per_s=16e9)


class CurvesRequest(ViewRequest):
    """A trace over all budgets."""

    policies: list[UnscoredName] | None = Field(None, min_length=1, max_length=32)
    points: int = Field(40, ge=2, le=200, description="budgets from the largest step to the peak")
    bound: bool = Field(False, description="whether to work out the least that any schedule moves")

    model_config = _shown(points=20)


class TimelineRequest(ViewRequest):
    """A trace in a budget, over time."""

    budget: Size = Field(description="of the first tier: bytes, 24GB, or 50% of the peak")
    policy: UnscoredName = "belady"
    lookahead: int = Field(1, ge=0, le=64, description="steps that are loaded ahead")
    begin_s: float = Field(0, ge=0, le=1e9, description="first second that is shown")
    end_s: float | None = Field(None, ge=0, le=1e9, description="last second that is shown; all when absent")

    model_config = _shown(budget="12GB", link_bytes_per_s=16e9, policy="lru")

    @model_validator(mode="after")
    def _rising(self) -> TimelineRequest:
        if self.end_s is not None and self.end_s <= self.begin_s:
            raise ArgumentError(f"end_s={self.end_s:g} is not after begin_s={self.begin_s:g}")
        return self


class CompilationRequest(Workload):
    """A synthetic model, or a source text, that is to be compiled."""

    source: str | None = Field(None, max_length=200_000, description="read, and never run")
    language: Literal["python", "c", "c++", "cuda", "java", "js", "rust", "go"] = "python"
    opt_level: Literal["O0", "O1", "O2", "O3"] = "O2"
    hierarchy: Literal["gpu-24gb", "h200"] = "gpu-24gb"
    optimizer: bool = Field(False, description="whether the optimizer's step is compiled too")


Json = dict[str, Any]
