"""Types of results under `torch.autocast`, for the CPU and for CUDA, and under `tensora.autocast`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

import accelera.tensora as ts
from tests.tensora import opinfo
from tests.tensora.opinfo_table import function_of
from tests.torch_samples import operator_infos, sample_inputs, seed

DIFFERENT = {
    "__rdiv__": "PyTorch divides by way of the reciprocal, which is on CUDA's list",
    "cov": "sums of products in float64 here, a product of matrices there",
    "linalg.det": "PyTorch has empty matrices of bfloat16",
    "linalg.lstsq": "what is no output of the solver is taken from the inputs",
    "linalg.lu": "PyTorch has empty matrices of bfloat16",
    "linalg.lu_factor": "PyTorch has empty matrices of bfloat16",
    "linalg.lu_solve": "PyTorch has empty matrices of bfloat16",
    "linalg.norm": "on CUDA's list, of which this sample cannot be computed without a device",
    "linalg.pinv": "its last product is cast there; one of the decompositions in float32 here",
    "matrix_exp": "a decomposition, in float32 here",
    "nn.functional.cosine_similarity": "on CUDA's list, which cannot be computed without a device",
    "nn.functional.gaussian_nll_loss": "a logarithm is on CUDA's list, which reads the variance",
    "nn.functional.pad": "of three extents only the replicated one is on the CPU's list",
    "sum_to_size": "PyTorch sums over no axes",
    "tensordot": "PyTorch has dot compute a result of one element",
    "triangular_solve": "what is no output of the solver is taken from the inputs",
}
"""Operators some of whose samples have other types: the reason."""

Types = tuple[str, ...] | None
"""Of each result; None where PyTorch refuses the call."""


class OnCuda(torch.Tensor):
    """Tensor without elements that says it lies on a CUDA device, for which no device is needed."""

    meta: torch.Tensor

    @staticmethod
    def __new__(cls, meta: torch.Tensor) -> OnCuda:
        return torch.Tensor._make_wrapper_subclass(
            cls, meta.size(), strides=meta.stride(), dtype=meta.dtype, device=torch.device("cuda:0")
        )

    def __init__(self, meta: torch.Tensor) -> None:
        self.meta = meta

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = pytree.tree_map_only(cls, lambda x: x.meta, (args, kwargs or {}))
        if "device" in kwargs:
            kwargs["device"] = "meta"
        return pytree.tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


@contextlib.contextmanager
def cuda_autocast() -> Iterator[None]:
    """`torch.autocast("cuda", torch.bfloat16)`, which PyTorch refuses without a device."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


def _types_of(made: Any) -> tuple[str, ...]:
    kept = (each for each in opinfo._results(made) if isinstance(each, torch.Tensor | ts.Tensor))
    return tuple(str(each.dtype).rpartition(".")[2] for each in kept)


def _tried(function: Any, args: Any, kwargs: Any) -> Types:
    try:
        seed(0)
        return _types_of(function(*args, **kwargs))
    except Exception:
        return None


@dataclass
class Case:
    """One sample of an operator with its types in PyTorch and in Tensora."""

    text: str
    plain: Types
    cpu: Types
    cuda: Types
    ours_plain: Types | str
    ours: Types | str
    """Types, or the error."""

    @property
    def agrees(self) -> bool:
        """Whether the types are PyTorch's, or as far from them as without autocast, by promotion."""
        promotes = self.expected == self.plain and self.ours == self.ours_plain
        return self.expected is None or self.ours == self.expected or promotes

    @property
    def expected(self) -> Types:
        """Those of the list that changes something, the CPU's first: one policy stands for both here."""
        if self.cpu is None or self.cpu != self.plain or self.cuda is None:
            return self.cpu
        return self.cuda


def cases(name: str, most: int = 4) -> Iterator[Case]:
    """Compare samples of an operator's variants: of float32, bfloat16, and both (the first is lower)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in operator_infos()[name]:
            function = function_of(name, info.variant_test_name)
            if function is None or torch.float32 not in info.supported_dtypes("cpu"):
                continue
            samples = sample_inputs(info, torch.float32, requires_grad=False)
            for sample in samples[:: -(-len(samples) // most) or 1]:
                for types in ("float32", "bfloat16", "both"):
                    yield _case(info, function, sample, types)


def _lowered(x: Any) -> Any:
    return x.bfloat16() if isinstance(x, torch.Tensor) and x.dtype == torch.float32 else x


def _case(info: Any, function: Any, sample: Any, types: str) -> Case:
    if types == "bfloat16":
        sample = sample.transform(_lowered)
    elif types == "both":
        sample = type(sample)(_lowered(sample.input), args=sample.args, kwargs=sample.kwargs)
    given = opinfo._Given(sample, False)
    args, kwargs = given.torch_args, given.torch_kwargs
    plain = _tried(info.op, args, kwargs)
    with torch.autocast("cpu", torch.bfloat16):
        cpu = _tried(info.op, args, kwargs)
    cuda_args, cuda_kwargs = pytree.tree_map_only(
        torch.Tensor, lambda x: OnCuda(x.to("meta")), (args, kwargs)
    )
    with cuda_autocast():
        cuda = _tried(info.op, cuda_args, cuda_kwargs)
    ours_plain = _ours(function, given)
    with ts.autocast():
        ours = _ours(function, given)
    text = f"{info.variant_test_name} {types} {opinfo._described(sample)}"
    return Case(text, plain, cpu, cuda, ours_plain, ours)


def _ours(function: Any, given: Any) -> Types | str:
    try:
        return _types_of(function(*given.args, **given.kwargs))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
