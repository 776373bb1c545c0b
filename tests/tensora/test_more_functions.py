"""Functions that PyTorch users expect: what they refuse, and what its samples do not ask."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts
from accelera.tensora import functional, nn

V = ts.asarray([1.0, 2.0, 3.0])
M = ts.asarray([[1.0, 2.0], [3.0, 5.0]])
I3 = ts.asarray([0, 1, 2])

REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: ts.bincount(ts.asarray([-1])), ValueError, "give a vector of integers that are not negative"),
    (lambda: ts.cdist(M, ts.zeros((2, 3))), ValueError, "[cdist] shapes (2, 2) and (2, 3)"),
    (lambda: ts.cdist(M, M, p=-1), ValueError, "[cdist] p=-1; give 0 or more"),
    (lambda: ts.exp("a"), TypeError, "[exp] a str where a tensor is needed; tensora.asarray() makes one"),
    (lambda: ts.sqrt([1.0]), TypeError, "[sqrt] a list where a tensor is needed"),
    (lambda: ts.sum("a"), TypeError, "'a' (str) where a Tensor is needed"),
    (lambda: ts.sum(np.ones(2)), TypeError, "a Tensor is needed; tensora.asarray"),
    (
        lambda: ts.sum(ts.ones(2), axis="b"),
        TypeError,
        "'b' (str) where an integer or a tuple of integers is",
    ),
    (lambda: ts.reshape(ts.ones(2), "ab"), TypeError, "where an integer or a tuple of integers is needed"),
    (lambda: ts.linalg.qr([[1.0]]), TypeError, "(list) where a Tensor is needed; tensora.asarray"),
    (lambda: ts.functional.layer_norm(ts.ones(2), (2,), "w"), TypeError, "'w' (str) where a Tensor is"),
    (lambda: ts.sort([3, 1]), TypeError, "[3, 1] (list) where a Tensor is needed"),
    (lambda: ts.concat([np.ones(2)]), TypeError, "(ndarray) where a Tensor is needed"),
    (lambda: ts.fft.fft("a"), TypeError, "'a' (str) where a Tensor is needed"),
    (lambda: ts.functional.conv2d("a", "b"), TypeError, "'a' (str) where a Tensor is needed"),
    (lambda: ts.autograd.grad("a", ts.ones(2)), TypeError, "'a' (str) where a Tensor is needed"),
    (lambda: ts.diag(ts.zeros((2, 2, 2))), ValueError, "[diag] shape (2, 2, 2)"),
    (lambda: ts.diag_embed(V, axis1=0, axis2=0), ValueError, "[diag_embed] axes 0 and 0 are one"),
    (lambda: ts.diagonal(V), ValueError, "[diagonal] axes 0 and 1 of shape (3,)"),
    (lambda: ts.dot(V, M), ValueError, "[dot] shapes (3,) and (2, 2)"),
    (lambda: ts.gradient(ts.asarray([1.0])), ValueError, "axis 0 has 1 elements; 2 are needed"),
    (lambda: ts.histc(V, 0), ValueError, "[histc] bins=0"),
    (lambda: ts.kthvalue(V, 4), ValueError, "[kthvalue] k=4 for an axis with 3 elements"),
    (lambda: ts.masked_scatter(V, V > 0, V[:1]), ValueError, "[masked_scatter] 1 values for 3 places"),
    (lambda: ts.median(ts.zeros((0,))), ValueError, "[median] shape (0,) has no element"),
    (lambda: ts.narrow(V, 0, 2, 2), ValueError, "[narrow] 2 elements from 2 of an axis with 3"),
    (lambda: ts.quantile(V, 1.5), ValueError, "q must be a number or a vector of numbers from 0 to 1"),
    (lambda: ts.quantile(V, 0.5, interpolation="cubic"), ValueError, "interpolation='cubic'"),
    (lambda: ts.rot90(M, 1, (0, 0)), ValueError, "[rot90] axes (0, 0) are one"),
    (lambda: ts.scatter_reduce(V, I3, V, axis=0, reduce="median"), ValueError, "reduce='median'"),
    (
        lambda: ts.scatter_add(V, ts.asarray([3]), V[:1], axis=0),
        IndexError,
        "[scatter_add] index 3 of an axis with 3 elements",
    ),
    (lambda: ts.sum_to_size(V, (2,)), ValueError, "[sum_to_size] shape (2,) does not broadcast to (3,)"),
    (lambda: ts.tensor_split(V, 0), ValueError, "[tensor_split] 0 parts"),
    (lambda: ts.topk(ts.asarray(1.0), 2), ValueError, "[topk] 2 elements of a 0-d tensor"),
    (lambda: ts.unfold(V, 0, 4, 1), ValueError, "[unfold] windows of 4, step 1, on an axis with 3 elements"),
    (lambda: ts.view_as_complex(V), ValueError, "the last axis must have 2 elements"),
    (lambda: ts.linalg.eigh(M, UPLO="X"), ValueError, "UPLO='X'"),
    (lambda: ts.linalg.eig(V), ValueError, "[eig] shape (3,)"),
    (lambda: ts.linalg.eig(ts.asarray([[float("nan")]])), ValueError, "see that it holds no NaN"),
    (lambda: ts.linalg.householder_product(ts.zeros((2, 3)), V), ValueError, "m >= n >= k are needed"),
    (lambda: ts.linalg.lu(V), ValueError, "[lu_factor] shape (3,)"),
    (lambda: ts.linalg.matrix_exp(ts.zeros((2, 3))), ValueError, "square matrices are needed"),
    (lambda: ts.linalg.matrix_norm(M, axis=(0, 0)), ValueError, "axes (0, 0) are one"),
    (lambda: ts.linalg.multi_dot([M]), ValueError, "[multi_dot] 1 matrices"),
    (lambda: ts.linalg.norm(ts.zeros((2, 2, 2)), ord=2), ValueError, "on 3 axes"),
    (lambda: ts.linalg.tensorinv(M, ind=3), ValueError, "[tensorinv] ind=3"),
    (lambda: ts.special.multigammaln(V, 0), ValueError, "[multigammaln] p=0"),
    (lambda: ts.special.polygamma(-1, V), ValueError, "[polygamma] n=-1"),
    (lambda: ts.special.bessel_j0(ts.asarray([1j])), TypeError, "not defined for complex"),
    (lambda: ts.searchsorted(M, V), ValueError, "[searchsorted] sorted elements of shape (2, 2)"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_bad_input_is_refused_by_name(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        call()


def test_zeta_has_no_gradient_in_its_first_argument() -> None:
    s = ts.asarray([2.0])
    s.requires_grad = True
    with pytest.raises(RuntimeError, match="its derivative in the first argument is not known"):
        ts.sum(ts.special.zeta(s, ts.asarray([1.0]))).backward()


def test_second_derivative_of_a_cumulative_product_at_zeros() -> None:
    x = ts.asarray([2.0, 0.0, 3.0, 0.0, 5.0], dtype=ts.float64)
    x.requires_grad = True
    assert ts.gradgradcheck(lambda x: ts.cumulative_prod(x, axis=0), [x])


def test_logcumsumexp_of_large_and_infinite_numbers() -> None:
    x = ts.asarray([-np.inf, -np.inf, -1e300, 1e3, -1e3, 1e3], dtype=ts.float64)
    x.requires_grad = True
    found = ts.logcumsumexp(x, axis=0)
    (slope,) = ts.grad(ts.sum(found), x)
    assert found.tolist() == [-np.inf, -np.inf, -1e300, 1e3, 1e3, 1e3 + np.log(2)]
    np.testing.assert_allclose(slope.numpy(), [0, 0, 1, 2.5, 0, 0.5])


def test_nan_in_order_statistics() -> None:
    x = ts.asarray([3.0, float("nan"), 1.0, 2.0])
    assert np.isnan(ts.median(x).item())
    assert ts.nanmedian(x).item() == 2
    assert np.isnan(ts.quantile(x, 0.5).item())
    assert ts.nanquantile(x, 0.5).item() == 2
    assert ts.cummax(x, axis=0).indices.tolist() == [0, 1, 1, 1]


def test_mode_is_the_smallest_of_the_most_frequent() -> None:
    found = ts.mode(ts.asarray([[3, 1, 3, 1, 2], [5, 5, 4, 4, 4]]))
    assert found.values.tolist() == [1, 4]


def test_gcd_and_lcm_of_signs_and_zeros() -> None:
    x, y = np.array([12, -12, 0, 7, 0]), np.array([18, 18, 5, 0, 0])
    np.testing.assert_array_equal(ts.gcd(ts.asarray(x), ts.asarray(y)).numpy(), np.gcd(x, y))
    np.testing.assert_array_equal(ts.lcm(ts.asarray(x), ts.asarray(y)).numpy(), np.lcm(x, y))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_frexp_of_the_smallest_and_the_largest(dtype: str) -> None:
    limits = np.finfo(dtype)
    x = np.array([0, 1, -3.5, limits.max, limits.tiny, limits.smallest_subnormal], dtype)
    mantissa, exponent = ts.frexp(ts.asarray(x))
    expected = np.frexp(x)
    np.testing.assert_array_equal(mantissa.numpy(), expected[0])
    np.testing.assert_array_equal(exponent.numpy(), expected[1])


def test_decompositions_rebuild_what_they_took_apart() -> None:
    a = ts.asarray(np.random.default_rng(0).normal(size=(3, 5, 4)))
    p, lower, upper = ts.linalg.lu(a)
    np.testing.assert_allclose((p @ lower @ upper).numpy(), a.numpy(), atol=1e-12)
    square = a[:, :4]
    values, vectors = ts.linalg.eig(square)
    complex_square = square.to(ts.complex128)
    np.testing.assert_allclose(
        (complex_square @ vectors).numpy(), (vectors * values[:, None]).numpy(), atol=1e-12
    )
    np.testing.assert_allclose(
        ts.linalg.matrix_exp(square * 9).numpy()[0], expm(square.numpy()[0] * 9), rtol=1e-9
    )


def expm(x: Any) -> Any:
    import scipy.linalg

    return scipy.linalg.expm(x)


def test_scattered_means_of_integers_and_products() -> None:
    x, index = ts.asarray([10, 20, 30]), ts.asarray([0, 0, 2])
    values = ts.asarray([2, 4, 7])
    assert ts.scatter_reduce(x, index, values, axis=0, reduce="mean").tolist() == [5, 20, 18]
    assert ts.scatter_reduce(x, index, values, axis=0, reduce="amax", include_self=False).tolist() == [
        4,
        20,
        7,
    ]
    assert ts.index_reduce(x, index, values, axis=0, reduce="prod").tolist() == [80, 20, 210]


_IMAGE = (1, 2, 4, 4)
_HUGE_COUNTS: dict[str, Callable[[], Any]] = {
    "nearest": lambda: functional.interpolate(ts.ones(_IMAGE), size=2**40),
    "bilinear": lambda: functional.interpolate(ts.ones(_IMAGE), scale_factor=2.0**40, mode="bilinear"),
    "bicubic": lambda: functional.interpolate(ts.ones(_IMAGE), size=2**40, mode="bicubic"),
    "upsample": lambda: nn.Upsample(size=2**40)(ts.ones(_IMAGE)),
    "replicate": lambda: functional.pad(ts.ones(_IMAGE), (2**40, 0, 0, 0), mode="replicate"),
    "tensor_split": lambda: ts.tensor_split(ts.ones(5), 2**62),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", _HUGE_COUNTS)
def test_counts_beyond_the_address_space_are_refused(name: str) -> None:
    with pytest.raises(MemoryError):
        _HUGE_COUNTS[name]()


@pytest.mark.timeout(20)
def test_diff_beyond_the_extent_is_empty() -> None:
    assert ts.diff(ts.ones(5), n=2**40).shape == np.diff(np.ones(5), n=7).shape
    with pytest.raises(ValueError, match="n=-1"):
        ts.diff(ts.ones(5), n=-1)
