"""Types of the packages that can be called, for type checkers: each is both a module and a function."""

import accelera.capture as _capture
import accelera.estimate as _estimate
import accelera.offload as _offload

class CapturePackage:
    __call__ = staticmethod(_capture.capture)
    capture = staticmethod(_capture.capture)
    capture_script = staticmethod(_capture.capture_script)
    live_bytes = staticmethod(_capture.live_bytes)
    peak_live_bytes = staticmethod(_capture.peak_live_bytes)

class EstimatePackage:
    Estimate = _estimate.Estimate
    __call__ = staticmethod(_estimate.estimate)
    estimate = staticmethod(_estimate.estimate)
    predict_compile = staticmethod(_estimate.predict_compile)

class OffloadPackage:
    OffloadPlan = _offload.OffloadPlan
    Offloaded = _offload.Offloaded
    OffloadedTensor = _offload.OffloadedTensor
    __call__ = staticmethod(_offload.offload)
    offload = staticmethod(_offload.offload)
    offload_checkpoint = staticmethod(_offload.offload_checkpoint)
    offloaded = staticmethod(_offload.offloaded)
    plan_offload = staticmethod(_offload.plan_offload)

capture: CapturePackage
estimate: EstimatePackage
offload: OffloadPackage
