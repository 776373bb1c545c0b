"""Functions of other libraries on Tensora's arrays and on NumPy's: `consumers.py scipy` prints which agree.

A process of its own, because SciPy reads SCIPY_ARRAY_API when it is imported. Every result must be a tensor:
none was computed in NumPy behind the scenes and left there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import accelera.tensora as ts

RANDOM = np.random.default_rng(0)
TABLE = RANDOM.normal(size=(40, 3))
TARGET = RANDOM.normal(size=40)
Case = tuple[str, Callable[..., Any], tuple[Any, ...]]


def scipy_cases() -> Iterator[Case]:
    import scipy.cluster.vq
    import scipy.fft
    import scipy.integrate
    import scipy.special
    import scipy.stats

    yield "stats.skew", scipy.stats.skew, (TABLE,)
    yield "stats.pearsonr", lambda x, y: scipy.stats.pearsonr(x, y).statistic, (TABLE[:, 0], TARGET)
    yield "special.logsumexp", scipy.special.logsumexp, (TABLE,)
    yield "cluster.vq.whiten", scipy.cluster.vq.whiten, (TABLE,)
    yield "integrate.trapezoid", scipy.integrate.trapezoid, (TABLE,)
    yield "fft.fft", scipy.fft.fft, (TABLE + 0j,)


def sklearn_cases() -> Iterator[Case]:
    import sklearn
    from sklearn.decomposition import PCA
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    sklearn.set_config(array_api_dispatch=True)
    yield "StandardScaler", lambda x: StandardScaler().fit_transform(x), (TABLE,)
    yield "PCA", lambda x: PCA(2, svd_solver="full").fit(x).explained_variance_, (TABLE,)
    yield "Ridge", lambda x, y: Ridge(solver="svd").fit(x, y).coef_, (TABLE, TARGET)


def einops_cases() -> Iterator[Case]:
    import einops.array_api

    cube = RANDOM.normal(size=(2, 3, 4))
    yield "rearrange", lambda x: einops.array_api.rearrange(x, "a b c -> (c a) b"), (cube,)
    yield "reduce", lambda x: einops.array_api.reduce(x, "a b c -> a c", "mean"), (cube,)
    yield "repeat", lambda x: einops.array_api.repeat(x, "a b c -> a (b r) c", r=2), (cube,)


CASES = {"scipy": scipy_cases, "sklearn": sklearn_cases, "einops": einops_cases}


def check(function: Callable[..., Any], arrays: tuple[Any, ...]) -> None:
    expected = function(*arrays)
    found = function(*(ts.asarray(each) for each in arrays))
    assert isinstance(found, ts.Tensor), type(found)
    assert tuple(found.shape) == np.shape(expected)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-10, atol=1e-12)


if __name__ == "__main__":
    for name, function, arrays in CASES[sys.argv[1]]():
        check(function, arrays)
        print(name)
