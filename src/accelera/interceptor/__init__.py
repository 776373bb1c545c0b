"""PyTorch as it runs: large calls computed within a budget, and every tensor access recorded as a trace.

What loads torch is loaded when it is first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelera.capturing import capture, live_bytes, peak_live_bytes
from accelera.interceptor.estimating import Estimate, Phase, estimate
from accelera.interceptor.prediction import predict_compile
from accelera.interceptor.script import CapturedScript, capture_script
from accelera.lazily import opened

if TYPE_CHECKING:
    from accelera.interceptor.enabling import disable as disable
    from accelera.interceptor.enabling import enable as enable
    from accelera.interceptor.enabling import intercepted as intercepted
    from accelera.interceptor.matmul import accelera_matmul as accelera_matmul
    from accelera.interceptor.matmul import should_intercept as should_intercept
    from accelera.interceptor.statistics import Follower as Follower
    from accelera.interceptor.statistics import OpStats as OpStats
    from accelera.interceptor.statistics import Stats as Stats
    from accelera.interceptor.statistics import followed as followed
    from accelera.interceptor.statistics import stats as stats

_NAMES_BY_MODULE = {
    "enabling": ("disable", "enable", "intercepted"),
    "matmul": ("accelera_matmul", "should_intercept"),
    "statistics": ("Follower", "OpStats", "Stats", "followed", "stats"),
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = [
    "CapturedScript",
    "Estimate",
    "Follower",
    "OpStats",
    "Phase",
    "Stats",
    "accelera_matmul",
    "capture",
    "capture_script",
    "disable",
    "enable",
    "estimate",
    "followed",
    "intercepted",
    "live_bytes",
    "peak_live_bytes",
    "predict_compile",
    "should_intercept",
    "stats",
]

__getattr__, __dir__ = opened("accelera.interceptor", _MODULE_OF)
