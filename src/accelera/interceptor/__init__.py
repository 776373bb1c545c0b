"""PyTorch as it runs: every tensor access of a model or a script, recorded as a trace."""

from __future__ import annotations

from accelera.capturing import capture, live_bytes, peak_live_bytes
from accelera.interceptor.estimating import Estimate, Phase, estimate
from accelera.interceptor.prediction import predict_compile
from accelera.interceptor.script import CapturedScript, capture_script

__all__ = [
    "CapturedScript",
    "Estimate",
    "Phase",
    "capture",
    "capture_script",
    "estimate",
    "live_bytes",
    "peak_live_bytes",
    "predict_compile",
]
