"""Requests about models by their configuration, and about products by their shapes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from accelera.errors import ArgumentError
from accelera.service.configuration import ModelConfig
from accelera.service.schemas import Bytes, Strict, UnscoredName, with_example

FloatName = Literal["float64", "float32", "float16", "bfloat16"]
OptimizerName = Literal["adamw", "adam", "sgd", "none"]
Axis = Annotated[int, Field(ge=0, le=1 << 32)]
MOST_TOKENS = 1 << 22
"""Tokens of a batch."""
_GPT2: Any = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}


class ModelQuestion(Strict):
    """A model by its configuration, and the batch that it is run on."""

    config: ModelConfig
    batch: int = Field(1, ge=1, le=65_536, description="rows at once")
    context: int | None = Field(
        None, ge=1, le=1_048_576, description="tokens per row; by default the model's own, at most 2048"
    )

    @model_validator(mode="after")
    def _bounded(self) -> ModelQuestion:
        tokens = self.batch * (self.context or 1)
        if tokens > MOST_TOKENS:
            raise ArgumentError(f"{tokens:,} tokens in a batch of at most {MOST_TOKENS:,}")
        return self


class Estimating(ModelQuestion):
    """What a model takes in memory."""

    dtypes: list[FloatName | Literal["mixed", "float8"]] | None = Field(
        None, min_length=1, max_length=6, description="by default the model's own and the usual ones"
    )
    mode: Literal["both", "inference", "training"] = "both"
    optimizer: OptimizerName = "adamw"
    budget: Bytes | None = Field(None, description="memory to compare with; what does not fit is planned")

    model_config = with_example(config=_GPT2, batch=8, context=1024, dtypes=["mixed"], budget="8GB")


class Capturing(ModelQuestion):
    """The trace of a model that is followed by its shapes."""

    training: bool = Field(False, description="training steps, else forward passes")
    dtype: FloatName | None = Field(None, description="by default the configuration's")
    optimizer: OptimizerName = "adamw"
    steps: int = Field(2, ge=1, le=8, description="passes; the first one loads, the second is like the rest")
    generate_tokens: int = Field(
        0, ge=0, le=64, description="tokens to generate after the context, with a key-value cache"
    )

    model_config = with_example(config=_GPT2, batch=2, context=128, training=True)

    @model_validator(mode="after")
    def _possible(self) -> Capturing:
        if self.training and self.generate_tokens:
            raise ArgumentError("training generates no tokens; leave out one of training and generate_tokens")
        return self


class ProductPlanning(Strict):
    """The product of two arrays that lie on a disk."""

    kind: Literal["matmul"]
    a: list[Axis] = Field(min_length=1, max_length=8, description="shape of A")
    b: list[Axis] = Field(min_length=1, max_length=8, description="shape of B")
    dtype: FloatName = "float32"
    budget: Bytes = Field(description="memory that the product may take")
    objective: Literal["time", "bytes"] = Field("time", description="what to save first")
    policy: UnscoredName | None = Field(None, description="who leaves memory; belady by default")
    out: Literal["disk", "memory"] = Field("disk", description="where the result goes")

    model_config = with_example(kind="matmul", a=[20000, 20000], b=[20000, 8000], budget="2GiB")


class OffloadPlanning(ModelQuestion):
    """A model that runs in less memory than it needs."""

    kind: Literal["offload"]
    train: bool = Field(False, description="training steps, else forward passes")
    optimizer: OptimizerName = "adamw"
    dtype: FloatName | Literal["mixed"] | None = Field(None, description="by default the configuration's")
    budget: Bytes = Field(description="memory that the model may take")

    model_config = with_example(kind="offload", config=_GPT2, context=256, budget="200MB")


def _kind(body: Any) -> str | None:
    kind = body.get("kind") if isinstance(body, dict) else getattr(body, "kind", None)
    return kind if isinstance(kind, str) else None


Planning: Any = Annotated[
    Annotated[ProductPlanning, Tag("matmul")] | Annotated[OffloadPlanning, Tag("offload")],
    Discriminator(
        _kind,
        custom_error_type="kind",
        custom_error_message="its kind is absent or unknown; give kind 'matmul' to plan a product, 'offload' "
        "to plan a model",
    ),
]
"""Body of ``/plan``."""
