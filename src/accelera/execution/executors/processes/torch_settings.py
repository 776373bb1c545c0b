"""Settings of torch that hold for a whole process, for the worker processes of a program."""

from __future__ import annotations

import sys
from typing import Any, Final, NamedTuple, final

from accelera._extras import loaded_module

_DEFAULT_DTYPE: Final = "float32"


@final
class TorchSettings(NamedTuple):
    """Settings of torch in a process."""

    dtype: str = _DEFAULT_DTYPE
    """Name of the default floating-point type."""
    is_deterministic: bool = False
    warns_only: bool = False
    """Whether operations that are not deterministic warn instead of raising."""
    matmul_precision: str = "highest"
    """Precision of products of float32 matrices."""
    detects_anomalies: bool = False
    cudnn: tuple[bool, bool, bool] = (True, False, False)
    """Whether cuDNN is used, is deterministic, and selects algorithms by measurement."""
    threads: int | None = None
    """Number of threads of an operation; None: as many as the worker may use."""

    @classmethod
    def here(cls) -> TorchSettings:
        """Return those of this process; the defaults if torch is not imported."""
        torch = loaded_module("torch")
        try:
            if torch is None:
                return cls()
            cudnn = torch.backends.cudnn
            return cls(
                str(torch.get_default_dtype()).removeprefix("torch."),
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
                torch.get_float32_matmul_precision(),
                torch.is_anomaly_enabled(),
                (cudnn.enabled, cudnn.deterministic, cudnn.benchmark),
                torch.get_num_threads(),
            )
        except AttributeError:  # another module of this name
            return cls()

    def apply(self, cores: int) -> None:
        """Make them those of this worker, whose operations use at most ``cores`` threads."""
        # Importing torch takes seconds, so default settings do not cause it.
        if "torch" not in sys.modules and self._replace(threads=None) == TorchSettings():
            return
        import torch

        torch.set_default_dtype(getattr(torch, self.dtype))
        torch.use_deterministic_algorithms(self.is_deterministic, warn_only=self.warns_only)
        if torch.get_float32_matmul_precision() != self.matmul_precision:
            torch.set_float32_matmul_precision(self.matmul_precision)
        torch.autograd.set_detect_anomaly(self.detects_anomalies)
        cudnn: Any = torch.backends.cudnn
        cudnn.enabled, cudnn.deterministic, cudnn.benchmark = self.cudnn
        count = min(cores, self.threads or cores)
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)
