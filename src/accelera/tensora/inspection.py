"""Inspection of the namespace, as the array API asks for it: devices, element types, capabilities."""

from __future__ import annotations

from typing import Any

from accelera.tensora import dtypes
from accelera.tensora.core import Tensor, native
from accelera.tensora.typing import Device

_SKIPPED = {"float16", "bfloat16"}  # the standard has no such types


def check_device(device: Device | None) -> None:
    """Raise ValueError if a device is none of `devices`; None is the default one."""
    if device is not None:
        native.device_named(str(device))


def placed(tensor: Tensor, device: Device | None) -> Tensor:
    """Return the tensor on a device, differentiably; itself if it is there already or the device is None."""
    return tensor if device is None else native.to_device(tensor, str(device))


class NamespaceInfo:
    """Devices, element types and capabilities, as `__array_namespace_info__` returns them."""

    def capabilities(self) -> dict[str, Any]:
        """Return which optional features of the array API standard are supported, and the most axes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 32}

    def default_device(self) -> str:
        """Device of new tensors."""
        return "cpu"

    def devices(self) -> list[str]:
        """All devices: "cpu", and "cuda:0" and so on where there are such."""
        return ["cpu", *(f"cuda:{i}" for i in range(native.cuda_device_count()))]

    def default_dtypes(self, *, device: Device | None = None) -> dict[str, Any]:
        """Types of new tensors, by kind."""
        check_device(device)
        floating = dtypes.default_dtype()
        return {
            "real floating": floating,
            "complex floating": dtypes.complex128 if floating == dtypes.float64 else dtypes.complex64,
            "integral": dtypes.int64,
            "indexing": dtypes.int64,
        }

    def dtypes(
        self, *, device: Device | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, Any]:
        """Types that the standard knows, by name; of a kind (or a tuple of kinds) if one is given."""
        check_device(device)
        known = {each.name: each for each in dtypes.dtype if each.name not in _SKIPPED}
        if kind is None:
            return known
        return {name: each for name, each in known.items() if dtypes.isdtype(each, kind)}


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807
    """Return the inspection object of the array API standard."""
    return NamespaceInfo()
