"""Readers of configuration: limits and token of the service, models, sharded checkpoints."""

from __future__ import annotations

import warnings

from accelera.estimate.subject import read_config
from accelera.offload.checkpoints.load import architecture_of, config_of
from accelera.offload.checkpoints.shards import Shards
from accelera.service.settings import read_limits, read_token
from tests.fuzz.harness import fuzz_target, parts_of, temporary_file, temporary_folder


@fuzz_target(examples=200)
def service_limits(data: bytes) -> None:
    with temporary_file(data, "limits.json") as path:
        read_limits(path)


@fuzz_target(examples=100)
def service_token(data: bytes) -> None:
    with temporary_file(data, "token") as path:
        read_token(path)


@fuzz_target(examples=40)
def model_config(data: bytes) -> None:
    """The configuration of a Hugging Face model, for an estimate and for offloading."""
    with temporary_folder({"config.json": data}) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read_config(folder)
        config = config_of(folder)
        architecture_of(folder, config)


@fuzz_target(examples=100)
def sharded_checkpoint(data: bytes) -> None:
    """The index of a checkpoint, and one file of its tensors."""
    index, tensors = parts_of(data, 2)
    files = {"model.safetensors.index.json": index, "model-1.safetensors": tensors}
    with temporary_folder(files) as folder:
        Shards(folder)
