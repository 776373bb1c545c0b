"""Import of the extension module: little static thread-local storage, and errors with the linker's reason."""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

PT_DYNAMIC, PT_TLS, DT_FLAGS, DF_STATIC_TLS = 2, 7, 30, 0x10
STATIC_LIMIT = 256
"""Bytes: glibc keeps 1664 for all libraries of a process that are loaded after its start."""

linux = pytest.mark.skipif(sys.platform != "linux", reason="static thread-local storage of glibc")


def _modules() -> list[str]:
    spec = importlib.util.find_spec("accelera._tensora")
    assert spec is not None
    assert spec.origin is not None
    return sorted(str(path) for path in Path(spec.origin).parent.glob("*.so"))


def _thread_storage(path: str) -> tuple[int, bool]:
    """Return the bytes of thread-local storage of an ELF library, and whether it must be static."""
    image = Path(path).read_bytes()
    start, entry_size, entries = struct.unpack_from("<Q", image, 32)[0], *struct.unpack_from("<HH", image, 54)
    nbytes, is_static = 0, False
    for i in range(entries):
        kind, _, offset, _, _, size, memory = struct.unpack_from("<IIQQQQQ", image, start + i * entry_size)
        if kind == PT_TLS:
            nbytes = memory
        if kind == PT_DYNAMIC:
            tags = struct.iter_unpack("<qQ", image[offset : offset + size - size % 16])
            is_static = any(tag == DT_FLAGS and value & DF_STATIC_TLS for tag, value in tags)
    return nbytes, is_static


@linux
@pytest.mark.parametrize("path", _modules(), ids=lambda path: Path(path).name)
def test_extension_modules_need_little_static_storage(path):
    nbytes, is_static = _thread_storage(path)
    assert not is_static or nbytes <= STATIC_LIMIT


SOURCE = "static __thread volatile char own[BYTES]; int get(void) { return own[BYTES - 1]; }"
IMPORT = """
import ctypes, sys
for library in sys.argv[1:]:
    ctypes.CDLL(library)
import accelera.tensora as ts
print(ts.sum(ts.ones(7)).item())
"""


@linux
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("sizes", [[], [192] * 4, [64] * 18, [512, 512, 128], [1024, 256], [1200]])
def test_import_after_libraries_with_static_storage(tmp_path, sizes):
    libraries = []
    for number, size in enumerate(sizes):
        libraries.append(str(tmp_path / f"{number}_{size}.so"))
        flags = ["-shared", "-fPIC", "-ftls-model=initial-exec", f"-DBYTES={size}", "-x", "c", "-", "-o"]
        subprocess.run(["cc", *flags, libraries[-1]], input=SOURCE, text=True, check=True)
    ended = subprocess.run(
        [sys.executable, "-c", IMPORT, *libraries], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stdout.strip() == "7.0", ended.stderr[-2000:]


FAILING = """
import importlib.machinery, sys
import accelera
sys.modules.pop("accelera._tensora", None)

class Finder:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == "accelera._tensora" else None
    def create_module(self, spec):
        raise ImportError(sys.argv[1])
    def exec_module(self, module):
        pass

class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name == "accelera._tensora" else self.finder.find_spec(name, path, target)

if sys.argv[1]:
    sys.meta_path.insert(0, Finder())
else:
    sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
try:
    import accelera.tensora
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("/lib/_tensora.so: cannot allocate memory in static TLS block", "before them"),
        ("/lib/_tensora.so: undefined symbol: _ZN8accelera4initEv", "reinstall"),
        ("/lib64/libstdc++.so.6: version `GLIBCXX_3.4.32' not found", "reinstall"),
        ("", "make demo"),
    ],
)
def test_failed_import_reports_the_reason_of_the_linker(reason, remedy):
    ended = subprocess.run(
        [sys.executable, "-c", FAILING, reason], capture_output=True, text=True, timeout=120, check=False
    )
    assert "[tensora]" in ended.stdout, ended.stderr[-2000:]
    assert reason in ended.stdout
    assert remedy in ended.stdout
    assert ("was not compiled" in ended.stdout) == (not reason)
