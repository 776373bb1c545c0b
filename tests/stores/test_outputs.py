"""Results in files: refused early, never half there, never lost."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from accelera.errors import StoreError, StoreFormatError, UnknownNameError
from accelera.stores import open_store
from accelera.stores._internal import create_store, whole
from tests.children import answer_of

NAMES = ["c.npy", "c.safetensors", "c.bin"]


@pytest.fixture
def small_files() -> Iterator[int]:
    """No file may grow beyond 64 KiB: the system then says what it says of a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, limits[1]))
    yield 64 << 10
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("name", NAMES)
def test_space_is_reserved_before_anything_is_computed(tmp_path: Path, name: str) -> None:
    output = create_store(tmp_path / name, (512, 512), "float32")
    partial = tmp_path / f"{name}.partial"
    assert partial.stat().st_blocks * 512 >= 1 << 20
    assert not (tmp_path / name).exists()
    output.abort()


@pytest.mark.parametrize("name", NAMES)
def test_a_result_larger_than_the_disk_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match=r"needs 4503599627\d+ bytes .* are free"):
        create_store(tmp_path / name, (1 << 50,), "float32")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_a_result_the_filesystem_cannot_hold_is_refused(tmp_path: Path, small_files: int, name: str) -> None:
    with pytest.raises(StoreError, match="needs"):
        create_store(tmp_path / name, (small_files,), "float32")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("direct", [True, False])
def test_a_disk_that_fills_up_is_told(tmp_path: Path, small_files: int, direct: bool) -> None:
    """The file is reserved as far as it may grow, then the header makes it pass the limit."""
    output = create_store(tmp_path / "c.bin", (small_files,), "uint8", direct=direct)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with pytest.raises(StoreError, match=r"\[write\] .*c.bin.* of \d+ bytes moved"):
        output.write(whole((small_files,)), np.ones(small_files, np.uint8))
    output.abort()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk_full_names_the_remedy(tmp_path: Path) -> None:
    from accelera.stores._internal import FlatFile, Placement

    real = os.open(tmp_path / "c.bin", os.O_RDWR | os.O_CREAT)
    os.truncate(real, 4096)
    store = FlatFile(
        tmp_path / "c.bin", real, Placement.dense((4096,), np.dtype("u1")), writable=True, direct=False
    )
    os.dup2(os.open("/dev/full", os.O_RDWR), real)
    with pytest.raises(StoreError, match=r"disk full .* free some space"):
        store.write(whole((4096,)), np.ones(4096, np.uint8))


def test_targets_that_cannot_be_written_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises((StoreError, UnknownNameError), match="folder"):
        create_store(tmp_path / "folder.npy", (3,), "float32")
    with pytest.raises(StoreError, match="does not exist"):
        create_store(tmp_path / "absent" / "c.npy", (3,), "float32")
    with pytest.raises(UnknownNameError, match=r"did you mean '\.npy'"):
        create_store(tmp_path / "c.np", (3,), "float32")
    with pytest.raises(StoreFormatError, match="key"):
        create_store(f"{tmp_path}/c.npy::name", (3,), "float32")
    (tmp_path / "c.npy.partial").mkdir()
    with pytest.raises(StoreError, match="cannot be written"):
        create_store(tmp_path / "c.npy", (3,), "float32")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StoreError, match="read-only"):
        create_store(tmp_path / "d.npy", (3,), "float32")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_files_and_folders_without_permission() -> None:
    code = """
        import os, sys
        import accelera.stores.npy  # while its files can be read
        from accelera.errors import StoreError
        from accelera.stores import open_store
        from accelera.stores._internal import create_store
        os.setuid(65534)
        folder = sys.argv[1]
        asks = [
            lambda: open_store(folder + "/secret.npy"),
            lambda: create_store(folder + "/c.npy", (3,), "float32"),
        ]
        for ask in asks:
            try:
                ask()
            except StoreError as error:
                print(error)
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        np.save(Path(folder) / "secret.npy", np.ones(3))
        (Path(folder) / "secret.npy").chmod(0)
        command = [sys.executable, "-c", textwrap.dedent(code), folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert "cannot be opened: Permission denied" in first
    assert "is read-only" in second


def test_a_failed_commit_keeps_the_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = create_store(tmp_path / "c.npy", (3,), "float32")
    output.write(whole((3,)), np.ones(3, np.float32))

    def refuse(source: Path, target: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StoreError, match="rename it by hand"):
        output.commit()
    assert np.load(tmp_path / "c.npy.partial").tolist() == [1, 1, 1]


def test_a_killed_run_leaves_the_old_result_and_its_own_partial(tmp_path: Path) -> None:
    path = tmp_path / "c.npy"
    np.save(path, np.zeros(4, np.float32))
    code = f"""
        import os, numpy as np
        from accelera.stores._internal import create_store
        output = create_store({str(path)!r}, (4,), "float32")
        output.write((slice(0, 2),), np.ones(2, np.float32))
        os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert np.load(path).tolist() == [0] * 4
    output = create_store(path, (4,), "float32", resume=True)
    output.write((slice(2, 4),), np.full(2, 2, np.float32))
    output.commit()
    assert np.load(path).tolist() == [1, 1, 2, 2]


def test_files_get_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    create_store(tmp_path / "c.npy", (3,), "float32").commit()
    assert (tmp_path / "c.npy").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_result_may_replace_a_file_that_is_being_read(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", np.zeros(3, np.float32))
    before = open_store(tmp_path / "c.npy")
    create_store(tmp_path / "c.npy", (5,), "float32").commit()
    assert before.to_numpy().tolist() == [0, 0, 0]
    assert open_store(tmp_path / "c.npy").shape == (5,)


FORBIDDEN = """
import json, os, sys
import numpy as np
from accelera import AcceleraError, MatrixEngine
engine = MatrixEngine("cpu", enable_progress=False)
for suffix in (".npy", ".h5", ".safetensors", ".zarr"):
    engine.copy(np.ones((2, 3)), "warm" + suffix)  # the other user cannot load modules
os.setgid(64123), os.setuid(64123)
os.umask(0o022)
outcomes = {}
for suffix in (".npy", ".raw", ".h5", ".safetensors", ".zarr"):
    path = "result" + suffix
    if suffix == ".raw":
        open(path, "wb").close()
    else:
        engine.copy(np.zeros((2, 2)), path)
    for mode in (0o600, 0o640, 0o755, 0o444):
        os.chmod(path, mode | (0o111 if suffix == ".zarr" else 0))
        try:
            engine.copy(np.ones((2, 3)), path)
            refused = False
        except AcceleraError:
            refused = True
        kept = os.stat(path).st_mode & 0o666 == mode & 0o666
        outcomes[f"{path} {mode:o}"] = refused == (mode == 0o444) and kept
    os.chmod(path, 0o755)
print(json.dumps(outcomes))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, which acts as another user here")
def test_result_keeps_the_permissions_of_the_file(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    program = f"import os; os.chdir({str(tmp_path)!r})\n{FORBIDDEN}"
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    outcomes = answer_of("-c", program)
    assert all(outcomes.values()), outcomes
