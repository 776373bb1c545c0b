"""PyTorch's own samples (OpInfo), run by both libraries: values, first and second gradients are compared."""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

import accelera.tensora as ts
from tests.tensora.opinfo_table import DRAWN, EXCUSED, GAUGE, TOLERANCES, function_of
from tests.torch_samples import operator_infos, sample_inputs, seed

FORWARD, FIRST, SECOND = "forward", "first gradient", "second gradient"
LEVELS = (FORWARD, FIRST, SECOND)
DEFAULT = {
    torch.float32: (1.3e-6, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
}
"""Relative and absolute, as of `torch.testing.assert_close`."""
OF_MEMORY = {"layout", "memory_format", "pin_memory", "device", "requires_grad", "generator", "out"}
"""Arguments that say where results lie, which Tensora does not have."""


@dataclass
class Verdict:
    """What was found of one name."""

    name: str
    samples: int = 0
    levels: set[str] = field(default_factory=set)
    """Levels that were compared at all: not all operations have gradients."""
    problems: dict[str, list[str]] = field(default_factory=dict)
    """By level."""
    excused: dict[str, int] = field(default_factory=dict)
    """Samples that were left out, by the reason."""

    def agrees(self, *levels: str) -> bool:
        """Whether every sample agreed on these levels (all of them if none is given)."""
        left_out = sum(self.excused.values())
        enough = self.samples > 0 and left_out <= max(0.05 * (self.samples + left_out), 1)
        return enough and not any(self.problems.get(level) for level in levels or LEVELS)


def check(name: str, most: int | None = None) -> Verdict:
    """Compare all samples of a name, or at most so many of each variant and type, spread over all."""
    verdict = Verdict(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in operator_infos()[name]:
            function = function_of(name, info.variant_test_name)
            if function is None:
                verdict.problems.setdefault(FORWARD, []).append(f"{info.variant_test_name}: not there")
                continue
            for sample, dtype, level in _work(info, most):
                _check_one(verdict, info, function, sample, dtype, level)
    return verdict


def _work(info: Any, most: int | None) -> Iterator[tuple[Any, torch.dtype, str]]:
    """Samples, and up to which level each is compared."""
    known = info.supported_dtypes("cpu")
    if not known:  # a variant of another device
        return
    wanted = [each for each in (torch.float32, torch.float64) if each in known]
    for dtype in wanted or [
        next(each for each in (torch.int64, torch.complex128, torch.bool, *known) if each in known)
    ]:
        yield from ((sample, dtype, FORWARD) for sample in _chosen(info, dtype, most, False))
    if not info.supports_autograd:
        return
    for dtype in (torch.float64, torch.complex128):
        if dtype in info.supported_backward_dtypes("cpu") and dtype in known:
            level = SECOND if info.supports_gradgrad and not _fails_itself(info) else FIRST
            yield from ((sample, dtype, level) for sample in _chosen(info, dtype, most, True))
            return


def _fails_itself(info: Any) -> bool:
    """Whether PyTorch expects its own test of second gradients to fail: they are NaN at norms of zero."""
    return any(
        getattr(each, "test_name", "") == "test_fn_gradgrad" and unittest.expectedFailure in each.decorators
        for each in info.decorators
    )


def _chosen(info: Any, dtype: torch.dtype, most: int | None, requires_grad: bool) -> list[Any]:
    every = sample_inputs(info, dtype, requires_grad=requires_grad)
    return every if most is None else every[:: -(-len(every) // most) or 1]


# --- one sample -------------------------------------------------------------------------------------------


class Disagreement(Exception):
    """Both libraries have results, and these differ."""


def _check_one(
    verdict: Verdict, info: Any, function: Any, sample: Any, dtype: torch.dtype, level: str
) -> None:
    text = f"{info.variant_test_name} {str(dtype)[6:]} {_described(sample)}"
    given = _Given(sample, level != FORWARD)
    try:
        seed(0)
        wrap = _wrapped if level != FORWARD and "hermitian" in info.gradcheck_wrapper.__name__ else _plain
        with sdpa_kernel(SDPBackend.MATH):  # the fused attention has no second derivative
            expected = wrap(info.op, given.torch_args, given.torch_kwargs)
    except Exception:
        return
    for reason, applies in EXCUSED.get(verdict.name, ()):
        if applies(given):
            verdict.excused[reason] = verdict.excused.get(reason, 0) + 1
            return
    if level == FORWARD:
        verdict.samples += 1
    drawn = verdict.name in DRAWN or bool(given.kwargs.get("dropout_p"))
    if drawn and level != FORWARD:
        return
    at = FORWARD
    try:
        found = wrap(function, given.args, given.kwargs)
        if level == FORWARD:
            verdict.levels.add(FORWARD)
            if verdict.name in GAUGE:
                expected, found = (sample.output_process_fn_grad(each) for each in (expected, found))
            _compare(verdict.name, found, expected, dtype, exact=not drawn)
            return
        at = FIRST
        _compare_gradients(verdict, info, given, sample, (found, expected), level == SECOND)
    except _At as error:
        verdict.problems.setdefault(error.level, []).append(f"{text}: {error}")
    except Exception as error:
        verdict.problems.setdefault(at, []).append(f"{text}: {type(error).__name__}: {error}")


class _At(Exception):
    """A disagreement, and its level."""

    def __init__(self, level: str, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.level = level


def _plain(function: Any, args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _wrapped(function: Any, args: Any, kwargs: Any) -> Any:
    """Gradients of what reads one triangle are those of Hermitian matrices, as PyTorch's tests take them."""
    return function(args[0] + args[0].mH, *args[1:], **kwargs)


def _described(sample: Any) -> str:
    def short(each: Any) -> Any:
        return tuple(each.shape) if isinstance(each, torch.Tensor) else each

    args = pytree.tree_map(short, (sample.input, *sample.args))
    return f"{args} {pytree.tree_map(short, sample.kwargs)}"[:300]


class _Given:
    """Arguments of a sample for both libraries, and the leaves among them."""

    def __init__(self, sample: Any, gradients: bool) -> None:
        self.leaves: list[Any] = []
        self.torch_leaves: list[torch.Tensor] = []
        pairs: dict[int, tuple[Any, Any]] = {}

        def pair(each: Any) -> tuple[Any, Any]:
            if not isinstance(each, torch.Tensor):
                return each, _translated(each)
            if id(each) not in pairs:
                pairs[id(each)] = self._tensors(each, gradients)
            return pairs[id(each)]

        everything = ((sample.input, *sample.args), sample.kwargs)
        flat, form = pytree.tree_flatten(everything)
        both = [pair(each) for each in flat]
        self.torch_args, self.torch_kwargs = pytree.tree_unflatten([one for one, _ in both], form)
        self.args, kwargs = pytree.tree_unflatten([other for _, other in both], form)
        self.kwargs = {key: value for key, value in kwargs.items() if key not in OF_MEMORY}

    def _tensors(self, each: torch.Tensor, gradients: bool) -> tuple[Any, Any]:
        own = each.detach().resolve_conj().resolve_neg()
        if not (gradients and each.requires_grad):
            return own, tensor_of(own)
        leaf = own.clone().requires_grad_()
        ours = tensor_of(own.clone())
        ours.requires_grad = True
        self.torch_leaves.append(leaf)
        self.leaves.append(ours)
        return leaf, ours


def _translated(each: Any) -> Any:
    if isinstance(each, torch.dtype):
        return getattr(ts, str(each)[6:], each)
    if isinstance(each, torch.Size):
        return tuple(each)
    return each


def tensor_of(source: torch.Tensor) -> Any:
    """Tensor over the memory of PyTorch's."""
    return ts.from_dlpack(source)


# --- comparison -------------------------------------------------------------------------------------------


def _numbers(each: Any) -> Any:
    if isinstance(each, torch.Tensor):
        each = each.detach().resolve_conj().resolve_neg()
        return (each.float() if each.dtype == torch.bfloat16 else each).numpy(force=True)
    return np.asarray(each.detach() if isinstance(each, ts.Tensor) else each)


def _results(made: Any) -> list[Any]:
    """Tensors and numbers of a result, in order."""
    leaves = pytree.tree_leaves(
        list(made)
        if isinstance(made, ts.Tensor | torch.Tensor) is False and isinstance(made, tuple | list)
        else made
    )
    return [each for each in leaves if each is not None]


def _compare(
    name: str, found: Any, expected: Any, dtype: torch.dtype, *, slack: float = 1.0, exact: bool = True
) -> None:
    ours, theirs = _results(found), _results(expected)
    if len(ours) != len(theirs):
        raise Disagreement(f"{len(ours)} results, not {len(theirs)}")
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(other, torch.Tensor):
            kind = str(other.dtype)[6:]
            own = one.dtype.name if isinstance(one, ts.Tensor) else type(one).__name__
            if own != kind:
                raise Disagreement(f"type {own}, not {kind}")
            if tuple(one.shape) != tuple(other.shape):
                raise Disagreement(f"shape {tuple(one.shape)}, not {tuple(other.shape)}")
        if not exact:
            continue
        a, b = _numbers(one), _numbers(other)
        rtol, atol = TOLERANCES.get(name, DEFAULT).get(dtype, DEFAULT.get(dtype, (0, 0)))
        rtol, atol = (
            (0.01, 0.01)
            if getattr(other, "dtype", None) in (torch.bfloat16, torch.float16)
            else (rtol * slack, atol * slack)
        )
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg="values differ")


def _compare_gradients(
    verdict: Verdict, info: Any, given: _Given, sample: Any, made: tuple[Any, Any], second: bool
) -> None:
    ours, theirs = (_results(sample.output_process_fn_grad(each)) for each in made)
    wanted = [i for i, each in enumerate(theirs) if isinstance(each, torch.Tensor) and each.requires_grad]
    if not wanted or not given.leaves:
        return
    random = np.random.default_rng(0)
    weights, torch_weights, outputs, torch_outputs = [], [], [], []
    for i in wanted:
        values = random.uniform(-1, 1, tuple(theirs[i].shape))
        if theirs[i].dtype.is_complex:
            values = values + 1j * random.uniform(-1, 1, values.shape)
        weight = torch.from_numpy(np.asarray(values)).to(theirs[i].dtype)
        torch_outputs.append(theirs[i])
        torch_weights.append(weight.clone().requires_grad_(second))
        if ours[i].requires_grad:
            outputs.append(ours[i])
            weights.append(tensor_of(weight.clone()))
            weights[-1].requires_grad = second
    expected = torch.autograd.grad(
        torch_outputs, given.torch_leaves, torch_weights, create_graph=second, allow_unused=True
    )
    found = (
        ts.grad(outputs, given.leaves, weights, create_graph=second, allow_unused=True)
        if outputs
        else [None] * len(given.leaves)
    )
    verdict.levels.add(FIRST)
    _compare_levels(verdict.name, FIRST, found, expected)
    if second:
        _compare_second(verdict, given, (weights, torch_weights), (found, expected))


def _compare_levels(name: str, level: str, found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        if one is None and other is None:
            continue
        if one is None or other is None:
            rest = _numbers(other if one is None else one)
            if np.any(np.abs(rest) > DEFAULT[torch.float64][1]):
                raise _At(level, Disagreement("a gradient is missing"))
            continue
        try:
            _compare(name, one, other, torch.float64, slack=1.0 if level == FIRST else 10.0)
        except (Disagreement, AssertionError) as error:
            raise _At(level, error) from None


def _compare_second(
    verdict: Verdict, given: _Given, weights: tuple[Any, Any], firsts: tuple[Any, Any]
) -> None:
    """Gradients of the weighted first gradients, in the leaves and in the first weights."""
    random = np.random.default_rng(1)
    torch_outputs, torch_again, outputs, again = [], [], [], []
    for one, other in zip(*firsts, strict=True):
        if other is None or not other.requires_grad:
            continue
        values = torch.from_numpy(np.asarray(random.uniform(-1, 1, tuple(other.shape)))).to(other.dtype)
        torch_outputs.append(other)
        torch_again.append(values)
        if one is not None and one.requires_grad:
            outputs.append(one)
            again.append(tensor_of(values.clone()))
    if not torch_outputs:
        return
    ours, theirs = weights
    expected = torch.autograd.grad(
        torch_outputs, [*given.torch_leaves, *theirs], torch_again, allow_unused=True
    )
    verdict.levels.add(SECOND)
    try:
        found = (
            ts.grad(outputs, [*given.leaves, *ours], again, allow_unused=True)
            if outputs
            else [None] * len(expected)
        )
    except Exception as error:
        raise _At(SECOND, error) from None
    if len(found) == len(expected):
        _compare_levels(verdict.name, SECOND, found, expected)
