import mmap
import sys

import psutil
import pytest

from accelera.memory import process_memory, reset_peak
from accelera.memory._internal import host_memory

MIB = 2**20


def test_host_memory_agrees_with_psutil():
    memory, reference = host_memory(), psutil.virtual_memory()
    assert memory.total_bytes == reference.total
    assert 0 < memory.available_bytes <= memory.limit_bytes <= memory.total_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="kinds of pages are told apart on Linux")
def test_process_memory_follows_what_the_process_holds():
    before = process_memory()
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(b"x" * 64 * MIB)
        assert process_memory().anon_bytes - before.anon_bytes >= 60 * MIB
    after = process_memory()
    assert after.anon_bytes - before.anon_bytes < 32 * MIB
    assert after.peak_bytes >= before.rss_bytes + 60 * MIB
    assert abs(after.rss_bytes - after.anon_bytes - after.file_bytes - after.shmem_bytes) < MIB


@pytest.mark.skipif(sys.platform != "linux", reason="the peak can be reset on Linux")
def test_the_peak_can_begin_anew():
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(b"x" * 64 * MIB)
    high = process_memory().peak_bytes
    if not reset_peak():
        pytest.skip("this kernel or container does not let the peak be reset")
    assert process_memory().peak_bytes < high - 32 * MIB


def test_other_systems_are_asked_through_psutil(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    memory = host_memory()
    assert 0 < memory.available_bytes <= memory.limit_bytes == memory.total_bytes
    process = process_memory()
    assert process.rss_bytes == process.anon_bytes > MIB
