"""Large calls of PyTorch as it runs, computed within a budget.

What loads torch is loaded when it is first named. ``capture``, ``estimate`` and ``predict_compile`` live in
packages of their own and stay importable from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelera._lazily import opened
from accelera.capture import CapturedScript, capture, capture_script, live_bytes, peak_live_bytes
from accelera.estimate import Estimate, Phase, estimate, predict_compile

if TYPE_CHECKING:
    from accelera.interceptor.api import accelera_matmul as accelera_matmul
    from accelera.interceptor.api import disable as disable
    from accelera.interceptor.api import enable as enable
    from accelera.interceptor.api import intercepted as intercepted
    from accelera.interceptor.api import should_intercept as should_intercept
    from accelera.interceptor.statistics import Follower as Follower
    from accelera.interceptor.statistics import OpStats as OpStats
    from accelera.interceptor.statistics import Stats as Stats
    from accelera.interceptor.statistics import followed as followed
    from accelera.interceptor.statistics import stats as stats

_NAMES_BY_FILE = {
    "api": ("accelera_matmul", "disable", "enable", "intercepted", "should_intercept"),
    "statistics": ("Follower", "OpStats", "Stats", "followed", "stats"),
}
_FILE_OF = {name: file for file, names in _NAMES_BY_FILE.items() for name in names}

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

__getattr__, __dir__ = opened("accelera.interceptor", _FILE_OF)
