"""Samples that PyTorch tests its operators with (OpInfo)."""

from __future__ import annotations

import functools
import importlib
import random
import warnings
from typing import Any
from unittest import mock

import numpy as np
import torch

_INTERNAL = "torch.testing._internal"


@functools.cache
def operator_infos() -> dict[str, list[Any]]:
    """Return what PyTorch's tests know of each operator's name; seconds to import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module(f"{_INTERNAL}.common_methods_invocations")
    found: dict[str, list[Any]] = {}
    for info in module.op_db:
        found.setdefault(info.name, []).append(info)
    return found


def sample_inputs(info: Any, dtype: torch.dtype, *, requires_grad: bool) -> list[Any]:
    """Return all samples of a variant of an operator.

    PyTorch alone makes them twenty times slower: for each it walks the whole stack, in search of its own test
    case and to note for devices that are not there who has seeded them.
    """
    with (
        mock.patch(f"{_INTERNAL}.common_utils.set_rng_seed", seed),
        mock.patch(f"{_INTERNAL}.common_utils.extract_test_fn", return_value=None),
        mock.patch(f"{_INTERNAL}.opinfo.core.extract_test_fn", return_value=None),
    ):
        seed(0)
        return list(info.sample_inputs("cpu", dtype, requires_grad=requires_grad))


def seed(number: int) -> None:
    """Seed the generators of the CPU."""
    torch.default_generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number)
