"""One out-of-core product per process, by one contender; prints one line of JSON.

``python -m benchmarks.contenders NAME FOLDER EDGE BUDGET [DEVICE]`` reads ``A.npy`` and ``B.npy`` in FOLDER
and leaves ``C`` there. Peak is the high-water mark of resident memory above the idle process,
imports done and the arithmetic library warm; on an accelerator also the most that torch allocated there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from accelera.memory import process_memory, reset_peak

Work = Callable[[], dict[str, Any]]


def accelera(folder: Path, budget: int, device: str) -> Work:
    """Files in, a file out, inside the budget."""
    from accelera import MatrixEngine

    engine = MatrixEngine(device, enable_progress=False)

    def work() -> dict[str, Any]:
        engine.matmul(folder / "A.npy", folder / "B.npy", out=folder / "C.npy", budget=budget)
        report = engine.last_report
        return {
            "planned_bytes": report.plan.moved_bytes,
            "moved_bytes": report.moved_bytes,
            "projected_peak_bytes": report.plan.peak_bytes["ram"],
            "projected_device_bytes": report.plan.peak_bytes.get(engine.device.name, 0),
            "stall_s": report.stall_s,
            "compute_s": report.compute_s,
            "predicted_s": report.plan.forecast.seconds,
            "schedule": f"{report.plan.schedule}: {report.plan.shape_note}",
        }

    return work


def accelera_direct(folder: Path, budget: int, device: str) -> Work:
    """The same with the page cache bypassed."""
    os.environ["ACCELERA_DIRECT_IO"] = "always"
    return accelera(folder, budget, device)


def numpy_incore(folder: Path, _budget: int, _device: str) -> Work:
    """Everything in RAM; loading is not timed."""
    a, b = np.load(folder / "A.npy"), np.load(folder / "B.npy")
    out = np.empty((a.shape[0], b.shape[1]), a.dtype)
    out[:] = 0

    def work() -> dict[str, Any]:
        np.matmul(a, b, out=out)
        np.save(folder / "C.npy", out[:64])
        return {}

    return work


def torch_incore(folder: Path, _budget: int, _device: str) -> Work:
    """Everything in RAM, torch's product; loading is not timed."""
    import torch

    a, b = (torch.from_numpy(np.load(folder / name)) for name in ("A.npy", "B.npy"))
    out = torch.zeros(a.shape[0], b.shape[1])

    def work() -> dict[str, Any]:
        torch.matmul(a, b, out=out)
        np.save(folder / "C.npy", out[:64].numpy())
        return {}

    return work


def torch_resident(folder: Path, _budget: int, device: str) -> Work:
    """Everything in the device's memory before the clock starts; cuBLAS, and the result stays there."""
    import torch

    a, b = (torch.from_numpy(np.load(folder / name)).to(device) for name in ("A.npy", "B.npy"))
    out = torch.zeros(a.shape[0], b.shape[1], device=device)
    torch.matmul(a, b, out=out)
    _synchronize(device)

    def work() -> dict[str, Any]:
        torch.matmul(a, b, out=out)
        _synchronize(device)
        return {"after": lambda: np.save(folder / "C.npy", out[:64].cpu().numpy())}

    return work


def torch_whole_job(folder: Path, _budget: int, device: str) -> Work:
    """Load both files, move them to the device, multiply, bring the result back and save it."""
    import torch

    warm = torch.ones(512, 512, device=device)
    torch.matmul(warm, warm)
    _synchronize(device)

    def work() -> dict[str, Any]:
        a, b = (torch.from_numpy(np.load(folder / name)).to(device) for name in ("A.npy", "B.npy"))
        np.save(folder / "C.npy", (a @ b).cpu().numpy())
        return {}

    return work


def numpy_whole_job(folder: Path, _budget: int, _device: str) -> Work:
    """Load both files, multiply in RAM, save the result."""

    def work() -> dict[str, Any]:
        a, b = np.load(folder / "A.npy"), np.load(folder / "B.npy")
        np.save(folder / "C.npy", a @ b)
        return {}

    return work


def numpy_memmap(folder: Path, _budget: int, _device: str) -> Work:
    """``np.matmul`` on memory-mapped files."""

    def work() -> dict[str, Any]:
        a, b = np.load(folder / "A.npy", mmap_mode="r"), np.load(folder / "B.npy", mmap_mode="r")
        shape = (a.shape[0], b.shape[1])
        out = np.lib.format.open_memmap(folder / "C.npy", "w+", a.dtype, shape)
        np.matmul(a, b, out=out)
        out.flush()
        return {}

    return work


def dask(folder: Path, _budget: int, _device: str) -> Work:
    """dask.array over memory-mapped files, chunks of 2048, two workers with one BLAS thread each."""
    import dask.array
    from dask.array.core import normalize_chunks

    def work() -> dict[str, Any]:
        a, b = (np.load(folder / name, mmap_mode="r") for name in ("A.npy", "B.npy"))
        out = np.lib.format.open_memmap(folder / "C.npy", "w+", a.dtype, (a.shape[0], b.shape[1]))
        x, y = (dask.array.from_array(m, normalize_chunks(2048, m.shape), asarray=False) for m in (a, b))
        with _one_blas_thread():
            dask.array.store(x @ y, out, lock=False, scheduler="threads", num_workers=2)
        out.flush()
        return {}

    return work


def cubed(folder: Path, budget: int, _device: str) -> Work:
    """Cubed over Zarr copies of the files (made before the clock starts)."""
    import cubed
    import cubed.array_api
    import zarr

    spec = cubed.Spec(work_dir=str(folder / "cubed"), allowed_mem=budget, reserved_mem=0)
    edge = 2048 if budget >= 256 << 20 else 1024
    for name in ("A", "B"):
        data = np.load(folder / f"{name}.npy", mmap_mode="r")
        chunk = tuple(min(edge, size) for size in data.shape)
        copy = zarr.create_array(
            str(folder / f"{name}.zarr"), shape=data.shape, chunks=chunk, dtype=data.dtype, overwrite=True
        )
        for start in range(0, data.shape[0], edge):
            copy[start : start + edge] = data[start : start + edge]

    def work() -> dict[str, Any]:
        x, y = (cubed.from_zarr(str(folder / f"{name}.zarr"), spec=spec) for name in ("A", "B"))
        cubed.to_zarr(cubed.array_api.matmul(x, y), str(folder / "C.zarr"))
        c = zarr.open_array(str(folder / "C.zarr"), mode="r")
        np.save(folder / "C.npy", c[:64])
        return {}

    return work


def _one_blas_thread() -> Any:
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1, "blas")


def _synchronize(device: str) -> None:
    if device != "cpu":
        import torch

        torch.accelerator.synchronize()


def device_peak(device: str) -> int:
    """Return the most bytes that torch allocated on a CUDA device; 0 for others."""
    if not device.startswith("cuda"):
        return 0
    import torch

    return int(torch.cuda.max_memory_allocated(device))


CONTENDERS: dict[str, Callable[[Path, int, str], Work]] = {
    "accelera": accelera,
    "accelera-direct": accelera_direct,
    "numpy-in-core": numpy_incore,
    "torch-in-core": torch_incore,
    "numpy-whole-job": numpy_whole_job,
    "numpy-memmap": numpy_memmap,
    "dask": dask,
    "cubed": cubed,
    "torch-resident": torch_resident,
    "torch-whole-job": torch_whole_job,
}


def main(name: str, folder: str, edge: str, budget: str, device: str = "cpu") -> None:
    """Run one contender and print its figures."""
    work = CONTENDERS[name](Path(folder), int(budget), device)
    warm = np.ones((512, 512), np.float32)
    np.matmul(warm, warm)
    idle = process_memory()
    reset_peak()
    began, cpu = time.perf_counter(), time.process_time()
    extra = work()
    seconds = time.perf_counter() - began
    peak = process_memory().peak_bytes - idle.rss_bytes
    extra.pop("after", lambda: None)()
    figures = {
        "contender": name,
        "seconds": seconds,
        "cpu_s": time.process_time() - cpu,
        "gflops": 2 * int(edge) ** 3 / seconds / 1e9,
        "peak_bytes": peak,
        "idle_bytes": idle.rss_bytes,
        "device_peak_bytes": device_peak(device),
        **extra,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
