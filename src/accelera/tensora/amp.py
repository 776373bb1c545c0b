"""Mixed precision: blocks in which operations run in a lower type, and the scaling of losses for float16."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, ParamSpec, TypeVar

from accelera.errors import ArgumentError, StateError
from accelera.tensora.core import DType, Tensor, native
from accelera.tensora.python_calls import uncaptured
from accelera.tensora.state_kinds import matching_state
from accelera.tensora.typing import Device, DTypeLike

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


# --- blocks -----------------------------------------------------------------------------------------------


def _on_cuda(device: Device) -> bool:
    kind = str(device).partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ArgumentError(f"[autocast] device={device!r}; give 'cpu' or 'cuda'")
    return kind == "cuda"


class autocast(contextlib.ContextDecorator):  # noqa: N801 - as torch.autocast
    """Context, or decorator, in which this thread's operations run in the type that suits them.

    Products of matrices, convolutions and attention run in the lower type; sums, powers, exponentials,
    softmax, normalizations and losses in float32; operations of several tensors in the widest type among
    them. `ops` says which; float64 and what is no real floating-point number is left alone, and so is what
    is written in place. Gradients come back in the type of the parameter. Blocks nest, and one with
    ``enabled=False`` is an exception within another. The backward pass runs in the types of the forward one,
    in a block or not.

    Parameters
    ----------
    dtype
        The lower type: float16 or bfloat16. By default bfloat16 on the CPU and float16 on CUDA devices.
    enabled
        Whether anything is cast.
    device
        Kind of device, "cpu" or "cuda", whose operations are meant.
    cache_enabled
        Keep a leaf that requires gradients in the lower type until the outermost block ends, or the leaf is
        written, so that a weight is cast once for all its uses.

    Raises
    ------
    ValueError
        If the type or the device is another.

    """

    def __init__(
        self,
        dtype: DTypeLike | None = None,
        enabled: bool = True,
        device: Device = "cpu",
        cache_enabled: bool = True,
    ) -> None:
        self.on_cuda = _on_cuda(device)
        self.enabled = enabled
        self.cache_enabled = cache_enabled
        by_default = native.dtype.float16 if self.on_cuda else native.dtype.bfloat16
        self.dtype = by_default if dtype is None else native.to_dtype(dtype)
        if self.dtype not in (native.dtype.float16, native.dtype.bfloat16):
            raise ArgumentError(f"[autocast] dtype={self.dtype.name}; give float16 or bfloat16")

    def __enter__(self) -> autocast:
        native.open_autocast(self.on_cuda, self.enabled, self.dtype, self.cache_enabled)
        return self

    def __exit__(self, *_: object) -> None:
        native.close_autocast()


def is_autocast_enabled(device: Device = "cpu") -> bool:
    """Return whether this thread's operations on a device run in mixed precision."""
    return bool(native.autocasting() and native.autocast_of(_on_cuda(device))[0])


def get_autocast_dtype(device: Device = "cpu") -> DType:
    """Return the lower type of the innermost block, or the default one where there is none."""
    return native.autocast_of(_on_cuda(device))[1]


def computes_in(precision: str) -> Callable[[Callable[Given, Returned]], Callable[Given, Returned]]:
    """Let mixed precision cast a function of several operations as if it was one of the op table.

    Parameters
    ----------
    precision
        "lower", "float32" or "widest": what its tensors are cast to; "inputs": they stay as they are. Nothing
        is cast within the function.

    """

    def cast(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
        @functools.wraps(function)
        def called(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
            if native.autocasting():
                return native.call_in(precision, function, args, kwargs)
            return function(*args, **kwargs)

        return called

    return cast


# --- scaled losses ----------------------------------------------------------------------------------------


class _StepStage(Enum):
    """Stage of an optimizer's step."""

    ready = 0
    unscaled = 1
    stepped = 2


class GradScaler:
    """Scale of a loss at which small gradients do not vanish in float16.

    The loss is multiplied by the scale, and the gradients are divided by it before the optimizer's step. A
    step whose gradients are not finite is left out, and the scale falls; after enough steps in a row it
    grows.

    Parameters
    ----------
    init_scale
        The first scale.
    growth_factor, backoff_factor
        What the scale is multiplied by when it grows, above 1, and when it falls, below 1.
    growth_interval
        Steps in a row after which it grows.
    enabled
        Whether anything is done: a scaler that is off lets losses and steps through.

    Raises
    ------
    ValueError
        If a factor is on the wrong side of 1.

    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled and growth_factor <= 1:
            raise ArgumentError(f"[GradScaler] growth_factor={growth_factor}; give more than 1")
        if enabled and backoff_factor >= 1:
            raise ArgumentError(f"[GradScaler] backoff_factor={backoff_factor}; give less than 1")
        self._enabled = enabled
        self._scale = float(init_scale)
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._growth_tracker = 0
        self._clear()

    def _clear(self) -> None:
        self._stages: dict[int, _StepStage] = {}
        self._finite: dict[int, bool] = {}

    def _stage(self, optimizer: Any) -> _StepStage:
        return self._stages.get(id(optimizer), _StepStage.ready)

    @uncaptured
    def scale(self, outputs: Any) -> Any:
        """Return a tensor, or each of a list or tuple of them, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            factor = native.to_device(native.full((), self._scale, native.dtype.float32), str(outputs.device))
            return native.multiply(outputs, factor)
        if isinstance(outputs, Iterable):
            scaled = [self.scale(each) for each in outputs]
            return tuple(scaled) if isinstance(outputs, tuple) else scaled
        raise ArgumentError(f"[GradScaler.scale] {outputs!r:.60}; give a tensor, or a list or tuple of them")

    @uncaptured
    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, as for clipping them before `step`.

        Raises
        ------
        RuntimeError
            If they were divided since the last `update`.
        ValueError
            If a gradient is of float16: dividing it would lose small values, which the scale protects.

        """
        if not self._enabled:
            return
        stage = self._stage(optimizer)
        if stage is _StepStage.unscaled:
            raise StateError(
                "[GradScaler] unscale_() has already been called on this optimizer since the last update()"
            )
        if stage is _StepStage.stepped:
            raise StateError("[GradScaler] unscale_() is called after step(); call it before, or update()")
        params = [param for group in optimizer.param_groups for param in group["params"]]
        grads = [param.grad for param in params if param.grad is not None]
        if any(grad.dtype == native.dtype.float16 for grad in grads):
            raise ArgumentError(
                "[GradScaler] gradients of float16 cannot be unscaled; keep parameters in float32"
            )
        if grads:
            self._finite[id(optimizer)] = bool(native.unscale(grads, 1 / self._scale))
        self._stages[id(optimizer)] = _StepStage.unscaled

    @uncaptured
    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the optimizer's step, unless a gradient is not finite; unscales them before if need be.

        Returns
        -------
        Any
            Result of the step; None if the step was skipped.

        Raises
        ------
        RuntimeError
            If it was called since the last `update`, a closure is given, or no parameter has a gradient.

        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or any(callable(each) for each in args):
            raise StateError("[GradScaler] step() takes no closure; compute the loss before it")
        if self._stage(optimizer) is _StepStage.stepped:
            raise StateError("[GradScaler] step() has already been called since the last update()")
        if self._stage(optimizer) is _StepStage.ready:
            self.unscale_(optimizer)
        if id(optimizer) not in self._finite:
            raise StateError("[GradScaler] no parameter of this optimizer has a gradient; call backward()")
        result = optimizer.step(*args, **kwargs) if self._finite[id(optimizer)] else None
        self._stages[id(optimizer)] = _StepStage.stepped
        return result

    @uncaptured
    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Raise or lower the scale, depending on the gradients since the last call, or set it.

        Raises
        ------
        RuntimeError
            If no gradients were looked at since.

        """
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        elif not self._finite:
            raise StateError("[GradScaler] update() before any gradients were unscaled; call step() first")
        elif not all(self._finite.values()):
            self._scale = _float32(self._scale * self._backoff_factor)
            self._growth_tracker = 0
        else:
            self._count_success()
        self._clear()

    def _count_success(self) -> None:
        self._growth_tracker += 1
        if self._growth_tracker < self._growth_interval:
            return
        grown = _float32(self._scale * self._growth_factor)
        self._growth_tracker = 0
        if math.isfinite(grown):
            self._scale = grown

    # --- settings

    def is_enabled(self) -> bool:
        """Return whether losses are scaled."""
        return self._enabled

    def get_scale(self) -> float:
        """Return the scale; 1 where the scaler is off."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """Return the factor by which the scale grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale grows."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """Return the factor by which the scale falls."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale falls."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """Return after how many steps in a row the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set after how many steps in a row the scale grows."""
        self._growth_interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """Return the state after an `update`, under PyTorch's names; empty where the scaler is off."""
        if not self._enabled:
            return {}
        return {name: getattr(self, field) for name, field in _STATE.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of another scaler, also of PyTorch's.

        Raises
        ------
        RuntimeError
            If it is empty, as that of a scaler that is off.

        """
        if not self._enabled:
            return
        if not state_dict:
            raise StateError("[GradScaler] an empty state, perhaps of a scaler that was off; leave it out")
        state = matching_state("GradScaler.load_state_dict", state_dict, self.state_dict())
        for name, field in _STATE.items():
            setattr(self, field, state[name])


_STATE = {
    "scale": "_scale",
    "growth_factor": "_growth_factor",
    "backoff_factor": "_backoff_factor",
    "growth_interval": "_growth_interval",
    "_growth_tracker": "_growth_tracker",
}


def _float32(number: float) -> float:
    """The number in the type in which the scale multiplies the loss; infinite if it is too large."""
    return ctypes.c_float(number).value
