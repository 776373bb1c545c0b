"""Samples of entries of special functions, scans and scattering; see op_samples.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special

from accelera.tensora.core import native
from tests.tensora.op_samples import Sample, _one, _two

INDEX = [[0, 1, 0], [1, 1, 1]]


def _scattered(kind: str) -> Any:
    combine = {"prod": np.multiply, "amin": np.minimum, "amax": np.maximum}[kind]

    def reference(x: Any, y: Any) -> Any:
        out = x.copy()
        for i, row in enumerate(INDEX):
            for j, at in enumerate(row):
                out[at, j] = combine(out[at, j], y[i, j])
        return out

    return reference


def _scatter_reduce(kind: str) -> Sample:
    place = ("prod", "amin", "amax").index(kind)
    return Sample(
        lambda x, y: native.scatter_reduce(x, native.asarray(INDEX), y, 0, place),
        _scattered(kind),
        ((2, 3), (2, 3)),
        apart=0.3,
    )


def _recurrence(a: Any, b: Any) -> Any:
    out = b.copy()
    for i in range(1, b.shape[1]):
        out[:, i] = a[:, i] * out[:, i - 1] + b[:, i]
    return out


_REAL: dict[str, Any] = {"integers": False}

MORE: dict[str, list[Sample]] = {
    "i0": _one("i0", scipy.special.i0),
    "i0e": _one("i0e", scipy.special.i0e, apart=0.1),
    "i1": _one("i1", scipy.special.i1, apart=0.1),
    "i1e": _one("i1e", scipy.special.i1e, apart=0.1),
    "erfcx": _one("erfcx", scipy.special.erfcx),
    "log_ndtr": _one("log_ndtr", scipy.special.log_ndtr),
    "ndtri": _one("ndtri", scipy.special.ndtri, low=0.1, high=0.9, **_REAL),
    "sinc": _one("sinc", np.sinc, complexes=True, apart=0.1),
    "frexp_exponent": _one("frexp_exponent", lambda x: np.frexp(x)[1], apart=0.1),
    "polygamma": [
        Sample(
            native.polygamma,
            scipy.special.polygamma,
            ((3, 4), (3, 4)),
            low=0.5,
            high=4,
            fixed={0: np.arange(12.0).reshape(3, 4) % 4},
            integers=False,
        ),
    ],
    "zeta": [
        Sample(
            native.zeta,
            scipy.special.zeta,
            ((3, 4), (3, 4)),
            low=0.5,
            high=4,
            fixed={0: np.arange(12.0).reshape(3, 4) % 4 + 1.5},
            integers=False,
        )
    ],
    "gcd": _two("gcd", np.gcd, high=30),
    "lcm": _two("lcm", np.lcm, high=10),
    "logcumsumexp": [
        Sample(
            lambda x: native.logcumsumexp(x, 1),
            lambda x: np.logaddexp.accumulate(x, axis=1),
            ((3, 4, 2),),
            integers=False,
        )
    ],
    "linear_recurrence": [
        Sample(
            lambda a, b: native.linear_recurrence(a, b, 1),
            _recurrence,
            ((3, 4), (3, 4)),
            complexes=True,
            **_REAL,
        )
    ],
    "scatter_reduce": [_scatter_reduce(kind) for kind in ("prod", "amin", "amax")],
}
"""By the name of the entry."""
