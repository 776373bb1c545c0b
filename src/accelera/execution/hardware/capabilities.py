"""Hardware of this machine: cores, vector instructions, memory and accelerators (seed 002)."""

from __future__ import annotations

import functools
import logging
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from accelera._extras import is_there, loaded_module
from accelera._fork_locks import IMPORTING
from accelera.errors import ArgumentError
from accelera.execution.hardware.cpu_share import usable_cores
from accelera.memory._internal import host_memory
from accelera.settings import gpus_in_bus_order, visible_gpus

_LOGGER = logging.getLogger("accelera.execution")

_DRIVERS = (
    "/dev/nvidiactl",
    "/dev/dxg",
    "/dev/kfd",
    "/dev/accel",
    "C:\\Windows\\System32\\nvcuda.dll",
)
"""Files that a driver brings along: NVIDIA, Windows' subsystem for Linux, ROCm, Intel; NVIDIA on Windows."""


class Accelerator(NamedTuple):
    """One device that computes beside the CPU."""

    name: str
    """As its maker calls it."""
    memory_bytes: int
    """Bytes of its own memory; on devices that share the RAM, what they may use of it."""


def accelerators(drivers: tuple[str, ...] = _DRIVERS) -> tuple[Accelerator, ...]:
    """Return what there is.

    Torch is asked when it has begun to use a GPU. Otherwise NVML is, which is quick: asking torch begins its
    use of CUDA, which takes memory and time, and no child process that is forked later could use CUDA then.
    Torch is loaded only where a driver is there and NVML has no answer.
    """
    torch = loaded_module("torch")
    if torch is not None and (_uses_cuda(torch) or torch.version.cuda is None):
        return _torch_accelerators(torch)
    if not any(os.path.exists(path) for path in drivers):
        return () if torch is None else _torch_accelerators(torch)
    found = tuple(Accelerator(device.name, device.memory_bytes) for device in nvml_devices())
    return found or _torch_accelerators(_import_torch())


def _uses_cuda(torch: Any) -> bool:
    return bool(torch.cuda.is_initialized())


def _import_torch() -> Any:
    """Return the module; None where it is not installed."""
    if not is_there("torch"):
        return None
    import torch

    return torch


def _torch_accelerators(torch: Any) -> tuple[Accelerator, ...]:
    if torch is None or not torch.accelerator.is_available():
        return ()
    kind = torch.accelerator.current_accelerator().type
    module = torch.get_device_module(kind)
    count = torch.accelerator.device_count()
    return tuple(_accelerator(module, kind, index) for index in range(count))


def _accelerator(module: Any, kind: str, index: int) -> Accelerator:
    if hasattr(module, "get_device_properties"):
        properties = module.get_device_properties(index)
        return Accelerator(properties.name, properties.total_memory)
    return Accelerator(kind, getattr(module, "recommended_max_memory", int)())


class NvmlDevice(NamedTuple):
    """One GPU as NVIDIA's management library knows it."""

    name: str
    memory_bytes: int
    handle: Any
    uuid: str = ""


@functools.cache
def nvml_devices() -> tuple[NvmlDevice, ...]:
    """Return the GPUs that this process may use, as CUDA numbers them; parts of a card where it is divided.

    None without the library, its driver, or a GPU.
    """
    try:
        with IMPORTING:
            import pynvml

        pynvml.nvmlInit()
        cards = [
            _device_of(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return tuple(_visible(_in_cuda_order(pynvml, cards), _mig_instances(pynvml, cards), visible_gpus()))
    except Exception as error:
        _LOGGER.debug("NVML is of no use here: %s", error)
        return ()


def _device_of(pynvml: Any, handle: Any) -> NvmlDevice:
    return NvmlDevice(
        _text(pynvml.nvmlDeviceGetName(handle)),
        pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        handle,
        _text(pynvml.nvmlDeviceGetUUID(handle)),
    )


def _in_cuda_order(pynvml: Any, cards: list[NvmlDevice]) -> list[NvmlDevice]:
    """Return cards in CUDA's order: unlike ones by speed, unless ``CUDA_DEVICE_ORDER`` says by place.

    CUDA does not say what it takes for speed; the compute capability, then the memory, come close.
    """
    if gpus_in_bus_order() or len({card.name for card in cards}) < 2:
        return cards
    return sorted(
        cards,
        key=lambda card: (pynvml.nvmlDeviceGetCudaComputeCapability(card.handle), card.memory_bytes),
        reverse=True,
    )


def _mig_instances(pynvml: Any, cards: list[NvmlDevice]) -> list[NvmlDevice]:
    """Return the parts (MIG instances) into which cards are divided."""
    found = []
    for card in cards:
        try:
            if not pynvml.nvmlDeviceGetMigMode(card.handle)[0]:
                continue
            most = pynvml.nvmlDeviceGetMaxMigDeviceCount(card.handle)
        except Exception:
            continue  # a card that cannot be divided says so by an error, and old libraries do not ask
        for index in range(most):
            try:
                handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, index)
            except Exception:
                continue  # no instance of that number
            found.append(_device_of(pynvml, handle))
    return found


def _visible(cards: list[NvmlDevice], instances: list[NvmlDevice], asked: str | None) -> list[NvmlDevice]:
    """Return the devices that ``CUDA_VISIBLE_DEVICES`` names, in its order; all where it is unset.

    Where a card is divided CUDA sees the first instance of all and no whole card.
    """
    counted = instances[:1] or cards
    if asked is None:
        return counted
    found = []
    for word in filter(None, (each.strip() for each in asked.split(","))):
        matching = [each for each in (*instances, *counted) if _is_named(each, word)]
        if word.isdigit() and int(word) < len(counted):
            matching = [counted[int(word)]]
        if not matching:
            break
        found.append(matching[0])
    return found


def _is_named(device: NvmlDevice, word: str) -> bool:
    return word.startswith(("GPU-", "MIG-")) and device.uuid.startswith(word)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


SIMD = (
    "sse2",
    "sse4_1",
    "sse4_2",
    "avx",
    "fma",
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "amx_tile",
    "neon",
    "sve",
    "sve2",
)
"""Vector instructions that are reported, as Linux calls them; ``neon`` for ARM's Advanced SIMD."""
_FIRST_BYTES = 1 << 14
"""The first processor of ``/proc/cpuinfo`` lies within; the others say the same."""
_IMPLIED = {"x86_64": ("sse2",), "amd64": ("sse2",), "arm64": ("neon",), "aarch64": ("neon",)}
"""What every processor of an architecture has."""


def simd_support(proc: str = "/proc") -> tuple[str, ...]:
    """Return the vector instructions of the processor, weakest first."""
    flags = set(_flags(Path(proc, "cpuinfo"))) | set(_IMPLIED.get(platform.machine().lower(), ()))
    return tuple(name for name in SIMD if name in flags)


def model_name(proc: str = "/proc") -> str:
    """Return what the processor is called."""
    found = re.search(rb"^model name\s*:\s*(.+)$", _read_head(Path(proc, "cpuinfo")), re.MULTILINE)
    return found[1].decode(errors="replace").strip() if found else platform.processor() or platform.machine()


def physical_cores(system: str = "/sys/devices/system/cpu") -> int:
    """Return the cores under the processors this process may run on; threads of a core count once."""
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:
        return _physical_cores_psutil()
    folders = (Path(system, f"cpu{index}", "topology") for index in usable)
    siblings = {_read_head(folder / "thread_siblings_list").strip() for folder in folders}
    return len(siblings - {b""}) or _physical_cores_psutil()


def _physical_cores_psutil() -> int:
    import psutil

    try:
        return psutil.cpu_count(logical=False) or os.cpu_count() or 1
    except OSError:
        return os.cpu_count() or 1


def _flags(cpuinfo: Path) -> list[str]:
    if sys.platform == "darwin":
        return _flags_of_macos()
    found = re.search(rb"^(?:flags|Features)\s*:\s*(.+)$", _read_head(cpuinfo), re.MULTILINE)
    return found[1].decode().replace("asimd", "neon").split() if found else []


def _flags_of_macos() -> list[str]:
    names = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
    asked = subprocess.run(["sysctl", "-n", *names], capture_output=True, text=True, check=False)
    return asked.stdout.lower().replace("avx1.0", "avx").replace("sse4.", "sse4_").split()


def _read_head(path: Path) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(_FIRST_BYTES) or b""
    except OSError:
        return b""


@final
@dataclass(frozen=True, slots=True)
class HardwareCapabilities:
    """Processors, memory and GPUs of the machine; sizes in bytes.

    Raises
    ------
    ValueError
        When there is no core, or a size is negative.
    """

    cpu_cores: int
    """Logical cores that this process may use: affinity and quotas of control groups considered."""
    gpu_available: bool = False
    """Whether there is an accelerator."""
    gpu_memory_bytes: int = 0
    """Memory of the first accelerator, in bytes."""
    cpu_simd_support: tuple[str, ...] = ()
    """Vector instructions of the processor, such as ``"avx2"``, weakest first."""
    system_memory_bytes: int = 0
    """RAM that is built in, in bytes."""
    physical_cores: int = 0
    """Cores under the logical ones; 0: not known."""
    memory_limit_bytes: int = 0
    """The most RAM this process may use: the smallest limit of its control groups, else all of it."""
    accelerators: tuple[Accelerator, ...] = ()
    """Every accelerator, with its name and its memory in bytes."""

    def __post_init__(self) -> None:
        sizes = self.gpu_memory_bytes, self.system_memory_bytes, self.physical_cores, self.memory_limit_bytes
        if self.cpu_cores < 1 or min(sizes) < 0:
            raise ArgumentError(
                f"[HardwareCapabilities] cpu_cores={self.cpu_cores}, sizes {sizes}: at least one core, and no"
                f" size below 0; detect() tells what this machine has"
            )

    @staticmethod
    def detect() -> HardwareCapabilities:
        """Return what this machine has; found once, in milliseconds, and remembered."""
        return _detected()


@functools.cache
def _detected() -> HardwareCapabilities:
    memory, found = host_memory(), accelerators()
    return HardwareCapabilities(
        cpu_cores=usable_cores(),
        gpu_available=bool(found),
        gpu_memory_bytes=found[0].memory_bytes if found else 0,
        cpu_simd_support=simd_support(),
        system_memory_bytes=memory.total_bytes,
        physical_cores=physical_cores(),
        memory_limit_bytes=memory.limit_bytes,
        accelerators=found,
    )
