"""How many threads products run on: what the process may use, and what the caller allows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accelera.devices import CpuDevice, threads
from accelera.devices._internal import usable_processors
from accelera.devices.threads import BlasThreads


def test_limits_nest_and_the_smallest_wins() -> None:
    device = CpuDevice()
    most = device.threads
    with device.limit_threads(most + 5):
        assert device.threads == most
        with device.limit_threads(1):
            assert device.threads == 1
            with device.limit_threads(2):
                assert device.threads == 1
        assert device.threads == most
    assert device.threads == most


def test_a_limit_ends_with_an_error_too() -> None:
    device = CpuDevice()
    most = device.threads
    with pytest.raises(KeyError), device.limit_threads(1):
        raise KeyError
    assert device.threads == most


def test_no_threads_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[threads\] a limit of 0 threads"), CpuDevice().limit_threads(0):
        pass


class FakeLibrary:
    """A BLAS whose thread count can be read and set."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __getattr__(self, name: str) -> Any:
        controls = {"openblas_get_num_threads": self._read, "openblas_set_num_threads": self._write}
        if name not in controls:
            raise AttributeError(name)
        return _Function(controls[name])

    def _read(self) -> int:
        return self.count

    def _write(self, count: int) -> None:
        self.count = count


class _Function:
    def __init__(self, body: Any) -> None:
        self._body = body

    def __call__(self, *arguments: Any) -> Any:
        return self._body(*arguments)


def test_a_quota_lowers_the_librarys_count_and_nothing_raises_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelera.devices.threads.usable_processors", lambda: 3)
    for found, kept in ((8, 3), (2, 2)):
        library = FakeLibrary(found)
        threads = BlasThreads(library)  # type: ignore[arg-type]
        assert (threads.most, library.count) == (kept, kept)
        with threads.limited(1):
            assert library.count == 1
        assert library.count == kept


def test_a_library_without_controls_is_left_alone() -> None:
    threads = BlasThreads(object())  # type: ignore[arg-type]
    with threads.limited(1):
        assert threads.count == 1
    assert threads.count == usable_processors()


def test_affinity_counts() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no affinity")
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from accelera.devices import get_device; print(get_device('cpu').threads)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


V1, V2 = "cgroup cgroup rw,cpu", "cgroup2 cgroup2 rw"


@pytest.mark.parametrize(
    ("line", "mount", "files", "processors_granted"),
    [
        ("0::/job/step", V2, {"job/cpu.max": "150000 100000", "job/step/cpu.max": "max 100000"}, 2),
        ("0::/job", V2, {"job/cpu.max": "max 100000"}, 64),
        ("0::/job", V2, {"cpu.max": "400000 100000", "job/cpu.max": "900000 100000"}, 4),
        (
            "4:cpu,cpuacct:/job",
            "cgroup cgroup rw,cpu,cpuacct",
            {"job/cpu.cfs_quota_us": "50000", "job/cpu.cfs_period_us": "100000"},
            1,
        ),
        ("4:cpu:/job", V1, {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, 64),
        ("4:memory:/job", "cgroup cgroup rw,memory", {"cpu.max": "100000 100000"}, 64),
        ("0::/gone", V2, {"cpu.max": "300000 100000"}, 3),
    ],
)
def test_quotas_of_either_hierarchy_count(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    mount: str,
    files: dict[str, str],
    processors_granted: int,
) -> None:
    monkeypatch.setattr(threads, "_affinity", lambda: 64)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(line + "\n")
    (tmp_path / "proc/self/mountinfo").write_text(f"30 23 0:26 / {tmp_path / 'groups'} rw - {mount}\n")
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text + "\n")
    found = usable_processors(str(tmp_path / "proc"))
    assert found == processors_granted


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert usable_processors(str(tmp_path)) == len(os.sched_getaffinity(0))
