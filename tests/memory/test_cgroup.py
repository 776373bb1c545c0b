"""Control groups as containers set them up, laid out in a folder."""

from pathlib import Path

import pytest

from accelera.memory.probe import CgroupMemory, cgroup_levels, cgroup_memory

MIB = 2**20


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def machine(tmp_path):
    """Return (proc folder, cgroup mount folder)."""
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path / "proc", tmp_path / "mount"


def mount_v2(proc, mount, group, root="/"):
    write(proc / "self/mountinfo", f"30 23 0:26 {root} {mount} rw,nosuid shared:9 - cgroup2 cgroup2 rw\n")
    write(proc / "self/cgroup", f"0::{group}\n")


def limits(proc):
    return list(cgroup_memory(below_bytes=1024 * MIB, proc=str(proc)))


def test_version_2_with_page_cache_counted_as_free(machine):
    proc, mount = machine
    mount_v2(proc, mount, "/job")
    write(mount / "job/memory.max", f"{100 * MIB}\n")
    write(mount / "job/memory.current", f"{70 * MIB}\n")
    write(mount / "job/memory.stat", f"anon 1\ninactive_file {30 * MIB}\nactive_file 5\n")
    assert limits(proc) == [CgroupMemory(100 * MIB, 60 * MIB)]


def test_a_limit_on_an_ancestor_counts_and_max_is_none(machine):
    proc, mount = machine
    mount_v2(proc, mount, "/slice/job")
    write(mount / "slice/job/memory.max", "max\n")
    write(mount / "slice/memory.max", f"{200 * MIB}\n")
    write(mount / "slice/memory.current", f"{250 * MIB}\n")
    assert limits(proc) == [CgroupMemory(200 * MIB, 0)]


@pytest.mark.parametrize(
    ("group", "root"),
    [
        pytest.param("/docker/abc", "/docker/abc", id="a container's own"),
        pytest.param("/../../elsewhere", "/", id="hidden by a namespace"),
    ],
)
def test_a_group_that_is_the_mount(machine, group, root):
    proc, mount = machine
    mount_v2(proc, mount, group, root)
    write(mount / "memory.max", f"{50 * MIB}\n")
    write(mount / "memory.current", "0\n")
    assert limits(proc) == [CgroupMemory(50 * MIB, 50 * MIB)]


def test_version_1(machine):
    proc, mount = machine
    write(
        proc / "self/mountinfo",
        f"33 24 0:28 / {mount}/cpu rw - cgroup cgroup rw,cpu\n"
        f"34 24 0:29 / {mount}/memory rw,relatime - cgroup cgroup rw,memory\n",
    )
    write(proc / "self/cgroup", "5:cpu:/elsewhere\n4:memory:/batch/7\n0::/\n")
    unlimited = 0x7FFFFFFFFFFFF000
    write(mount / "memory/batch/7/memory.limit_in_bytes", f"{300 * MIB}\n")
    write(mount / "memory/batch/7/memory.usage_in_bytes", f"{120 * MIB}\n")
    write(mount / "memory/batch/7/memory.stat", f"inactive_file 1\ntotal_inactive_file {20 * MIB}\n")
    write(mount / "memory/batch/memory.limit_in_bytes", f"{unlimited}\n")
    assert limits(proc) == [CgroupMemory(300 * MIB, 200 * MIB)]


def test_no_groups_at_all(tmp_path):
    assert cgroup_levels("memory", str(tmp_path)) == ()
