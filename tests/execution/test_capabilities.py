"""What the machine has, as it is found: cheaply, and without loading torch to learn that there is no GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from accelera.execution import HardwareCapabilities
from accelera.execution.hardware import capabilities as probing_accelerators
from accelera.execution.hardware.capabilities import (
    Accelerator,
    NvmlDevice,
    accelerators,
    model_name,
    nvml_devices,
    physical_cores,
    simd_support,
)
from accelera.execution.hardware.load import NvmlLoad, nvml_load
from accelera.memory._internal import host_memory
from tests.architecture.repository import run_python


def test_what_is_found_is_real_and_found_once() -> None:
    found = HardwareCapabilities.detect()
    assert found is HardwareCapabilities.detect()
    assert 1 <= found.cpu_cores <= (os.cpu_count() or 1)
    assert 1 <= found.physical_cores <= (os.cpu_count() or 1)
    assert found.system_memory_bytes == host_memory().total_bytes
    assert 0 < found.memory_limit_bytes <= found.system_memory_bytes
    assert found.gpu_available == bool(found.accelerators)
    assert (found.gpu_memory_bytes > 0) == found.gpu_available


def test_looking_does_not_load_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from accelera.execution.hardware.capabilities import accelerators\n"
        "from accelera.execution import HardwareCapabilities, SystemLoad\n"
        "HardwareCapabilities.detect() if not accelerators() else None\n"
        "print(*{'torch', 'pynvml', 'cpuinfo'} & set(sys.modules)) if not accelerators() else print()\n"
    )
    ran = run_python("-c", code, cwd=tmp_path)
    assert (ran.returncode, ran.stdout.split()) == (0, []), ran.stderr


def test_vector_instructions_are_read_from_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("sys.platform", "linux")
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: Example 9000\nflags\t\t: fpu avx2 fma sse2 avx\n\nprocessor\t: 1\n"
    )
    assert simd_support(str(tmp_path)) == ("sse2", "avx", "fma", "avx2")
    assert model_name(str(tmp_path)) == "Example 9000"
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    (tmp_path / "cpuinfo").write_text("Features\t: fp asimd sve\n")
    assert simd_support(str(tmp_path)) == ("neon", "sve")
    assert simd_support(str(tmp_path / "absent")) == ("neon",)


def test_threads_of_a_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    for index, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        topology = tmp_path / f"cpu{index}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    assert physical_cores(str(tmp_path)) == 2


def test_where_nothing_tells_of_cores_all_of_them_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(logical: bool = True) -> int:
        raise FileNotFoundError("/proc/cpuinfo")

    monkeypatch.setattr(psutil, "cpu_count", absent)
    assert physical_cores(str(tmp_path)) == os.cpu_count()


def fake_torch(devices: list[tuple[str, int]], begun: list[bool] | None = None, cuda: str = "13.0") -> Any:
    """``begun`` is appended to when a property is asked for, which begins the use of CUDA."""
    properties = [SimpleNamespace(name=name, total_memory=size) for name, size in devices]
    begun = [] if begun is None else begun

    def described(index: int) -> Any:
        begun.append(True)
        return properties[index]

    module = SimpleNamespace(get_device_properties=described)
    return SimpleNamespace(
        version=SimpleNamespace(cuda=cuda or None),
        cuda=SimpleNamespace(is_initialized=lambda: bool(begun)),
        accelerator=SimpleNamespace(
            is_available=lambda: bool(devices),
            current_accelerator=lambda: SimpleNamespace(type="cuda"),
            device_count=lambda: len(devices),
        ),
        get_device_module=lambda kind: module,
    )


def test_a_torch_that_is_loaded_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch([("Big", 80 << 30), ("Small", 8 << 30)]))
    assert accelerators(drivers=()) == (Accelerator("Big", 80 << 30), Accelerator("Small", 8 << 30))
    monkeypatch.setitem(sys.modules, "torch", fake_torch([]))
    assert accelerators() == ()


def test_a_driver_lets_nvml_be_asked_and_torch_where_it_has_no_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    driver = tmp_path / "driver"
    driver.touch()
    monkeypatch.setattr(probing_accelerators, "nvml_devices", lambda: (NvmlDevice("Known", 5, None),))
    assert accelerators((str(driver),)) == (Accelerator("Known", 5),)
    assert accelerators((str(tmp_path / "absent"),)) == ()
    monkeypatch.setattr(probing_accelerators, "nvml_devices", lambda: ())
    monkeypatch.setattr(probing_accelerators, "_import_torch", lambda: fake_torch([("Big", 7)]))
    assert accelerators((str(driver),)) == (Accelerator("Big", 7),)


def test_looking_does_not_begin_the_use_of_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It takes half a gigabyte and seconds, and children forked later have no CUDA then."""
    driver, begun = tmp_path / "driver", list[bool]()
    driver.touch()
    torch = fake_torch([("Known to torch", 7)], begun)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(probing_accelerators, "nvml_devices", lambda: (NvmlDevice("Known", 5, None),))
    assert accelerators((str(driver),)) == (Accelerator("Known", 5),)
    assert not begun
    begun.append(True)
    assert accelerators((str(driver),)) == (Accelerator("Known to torch", 7),)
    monkeypatch.setitem(sys.modules, "torch", fake_torch([], cuda=""))
    assert accelerators((str(driver),)) == (), "a torch built without CUDA uses no GPU"


def fake_nvml(fails: bool = False) -> Any:
    calls: list[str] = []

    def begin() -> None:
        calls.append("init")
        if fails:
            raise OSError("library not found")

    return SimpleNamespace(
        calls=calls,
        nvmlInit=begin,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}{handle}",
        nvmlDeviceGetName=lambda handle: f"card {handle}".encode(),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=100, used=25),
        nvmlDeviceGetCudaComputeCapability=lambda handle: (8, 0),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=60),
    )


@pytest.fixture
def fresh_nvml() -> Any:
    nvml_devices.cache_clear()
    yield
    nvml_devices.cache_clear()


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["card 0", "card 1"]),
        ("1", ["card 1"]),
        ("1,0", ["card 1", "card 0"]),
        ("GPU-1", ["card 1"]),
        ("", []),
        ("0,-1,1", ["card 0"]),
    ],
)
@pytest.mark.usefixtures("fresh_nvml")
def test_nvml_names_what_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, names: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [device.name for device in nvml_devices()] == names


@pytest.mark.parametrize(
    ("order", "names"),
    [("FASTEST_FIRST", ["new", "old", "older"]), ("PCI_BUS_ID", ["older", "new", "old"]), (None, ["new"])],
)
@pytest.mark.usefixtures("fresh_nvml")
def test_unlike_cards_are_numbered_as_cuda_does(
    monkeypatch: pytest.MonkeyPatch, order: str | None, names: list[str]
) -> None:
    library = fake_nvml()
    library.nvmlDeviceGetCount = lambda: 3
    library.nvmlDeviceGetName = lambda handle: ("older", "new", "old")[handle]
    library.nvmlDeviceGetCudaComputeCapability = lambda handle: ((6, 1), (9, 0), (7, 5))[handle]
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0" if order is None else "0,1,2")
    if order is not None:
        monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    assert [device.name for device in nvml_devices()] == names


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, [("part 0", 20)]),
        ("0", [("part 0", 20)]),
        ("1", []),
        ("MIG-b", [("part 1", 40)]),
        ("GPU-0", []),
    ],
)
@pytest.mark.usefixtures("fresh_nvml")
def test_of_a_divided_card_only_a_part_counts(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, found: list[tuple[str, int]]
) -> None:
    def part(handle: int, index: int) -> str:
        if handle or index > 1:
            raise RuntimeError("Not Found")
        return f"part {index}"

    library = fake_nvml()
    library.nvmlDeviceGetMigMode = lambda handle: (int(handle == 0), 0)
    library.nvmlDeviceGetMaxMigDeviceCount = lambda handle: 7
    library.nvmlDeviceGetMigDeviceHandleByIndex = part
    library.nvmlDeviceGetUUID = {0: "GPU-00", 1: "GPU-11", "part 0": "MIG-a", "part 1": "MIG-b"}.get
    library.nvmlDeviceGetName = str
    sizes = {0: 80, 1: 80, "part 0": 20, "part 1": 40}
    library.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(total=sizes[handle], used=5)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [(device.name, device.memory_bytes) for device in nvml_devices()] == found


@pytest.mark.usefixtures("fresh_nvml")
def test_nvml_tells_the_load_and_a_failure_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    assert nvml_load() == NvmlLoad(0.6, 0.25)
    nvml_devices.cache_clear()
    failing = fake_nvml(fails=True)
    monkeypatch.setitem(sys.modules, "pynvml", failing)
    assert (nvml_devices(), nvml_load()) == ((), None)
    assert failing.calls == ["init"]


@pytest.mark.usefixtures("fresh_nvml")
def test_a_gpu_that_does_not_tell_its_utilisation_tells_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As parts of a GPU do, and some that share the RAM."""

    def unsupported(handle: int) -> Any:
        raise RuntimeError("Not Supported")

    library = fake_nvml()
    library.nvmlDeviceGetUtilizationRates = unsupported
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert nvml_load() == NvmlLoad(0.0, 0.25)
    library.nvmlDeviceGetMemoryInfo = unsupported
    assert nvml_load() is None
