"""Arrays behind URLs: read by ranges, changed or broken servers reported, and nothing written."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

from accelera import MatrixEngine, lazy, open_store
from accelera.cli import app
from accelera.errors import (
    AcceleraError,
    BackendMissingError,
    StoreChangedError,
    StoreError,
    StoreFormatError,
    UnknownNameError,
)
from accelera.stores import Store
from accelera.stores._internal import create_store
from accelera.stores.urls import parse_url
from accelera.testing._internal import StoreContract
from tests.stores.range_server import RangeServer, serving

VALUES = np.random.default_rng(7).random((700, 300))
HEADER_BYTES = 128


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    np.save(tmp_path / "A.npy", VALUES)
    with serving(tmp_path) as running:
        yield running


class TestNpyByHttp(StoreContract):
    @pytest.fixture(autouse=True)
    def _served(self, _folder: None) -> Iterator[None]:
        with serving(self.folder) as self.running:
            yield

    def make(self, array: np.ndarray[Any, Any]) -> Store:
        name = f"{len(list(self.folder.iterdir()))}.npy"
        np.save(self.folder / name, array)
        return open_store(f"{self.running.url}/{name}")


class TestFortranOrderInMemory(StoreContract):
    def make(self, array: np.ndarray[Any, Any]) -> Store:
        files = fsspec.filesystem("memory")
        with files.open("/accelera/F.npy", "wb") as file:
            np.save(file, np.array(array, array.dtype.newbyteorder(">"), order="F"))
        return open_store("memory://accelera/F.npy")


def test_opening_transfers_the_header_alone(server: RangeServer) -> None:
    store = open_store(f"{server.url}/A.npy")
    assert (store.shape, store.dtype, store.name) == ((700, 300), np.float64, f"{server.url}/A.npy")
    assert sum(server.sizes) <= HEADER_BYTES + 16


@pytest.mark.parametrize(
    ("key", "requests"),
    [
        ((slice(20, 40), slice(None)), 1),
        ((slice(None), slice(None)), 4),
        ((slice(3, 4), slice(5, 9)), 1),
    ],
)
def test_runs_of_rows_transfer_no_other_bytes(
    server: RangeServer, key: tuple[slice, slice], requests: int
) -> None:
    store = open_store(f"{server.url}/A.npy")
    server.sizes.clear()
    server.encodings.clear()
    np.testing.assert_array_equal(store[key].to_numpy(), VALUES[key])
    assert (sum(server.sizes), len(server.sizes)) == (VALUES[key].nbytes, requests)
    assert server.encodings == {"identity"}


def test_columns_of_long_rows_transfer_no_other_bytes(tmp_path: Path, server: RangeServer) -> None:
    wide = np.arange(40 * 4000.0).reshape(40, 4000)
    np.save(tmp_path / "W.npy", wide)
    store = open_store(f"{server.url}/W.npy")
    server.sizes.clear()
    np.testing.assert_array_equal(store[:, 1000:1010].to_numpy(), wide[:, 1000:1010])
    assert (sum(server.sizes), len(server.sizes)) == (40 * 80, 40)


def test_short_gaps_are_read_in_one_request(server: RangeServer) -> None:
    store = open_store(f"{server.url}/A.npy")
    server.sizes.clear()
    np.testing.assert_array_equal(store[10:110, 40:240:2].to_numpy(), VALUES[10:110, 40:240:2])
    assert len(server.sizes) == 1
    assert sum(server.sizes) <= 100 * 300 * 8


def test_operations_read_urls_within_the_budget(tmp_path: Path, server: RangeServer) -> None:
    engine = MatrixEngine("cpu", budget="48MiB")
    url = f"{server.url}/A.npy"
    server.sizes.clear()
    engine.gram(url, out=tmp_path / "G.npy")
    np.testing.assert_allclose(np.load(tmp_path / "G.npy"), VALUES.T @ VALUES)
    assert VALUES.nbytes <= sum(server.sizes) <= VALUES.nbytes + HEADER_BYTES + 16
    product = engine.matmul(VALUES.T, url)
    np.testing.assert_allclose(np.asarray(product), VALUES.T @ VALUES)
    result = engine.evaluate(lazy(open_store(url)) * 2 + 1, out=tmp_path / "E.npy")
    np.testing.assert_allclose(np.asarray(result), VALUES * 2 + 1)


def test_plan_reserves_the_bytes_of_requests(server: RangeServer) -> None:
    store = open_store(f"{server.url}/A.npy")
    engine = MatrixEngine("cpu", budget="48MiB")
    by_url = engine.plan(VALUES.T, store, out="C.npy").reserved["staging"]
    assert by_url >= engine.plan(VALUES.T, VALUES, out="C.npy").reserved["staging"] + store.scratch_bytes


def test_other_formats_are_read_by_url(tmp_path: Path, server: RangeServer) -> None:
    VALUES.tofile(tmp_path / "A.bin")
    for name in ("A.safetensors::weight", "A.zarr"):
        with create_store(tmp_path / name, VALUES.shape, "f8") as output:
            output.write((slice(0, 700), slice(0, 300)), VALUES)
            output.commit()
    raw = open_store(f"{server.url}/A.bin", shape=VALUES.shape, dtype="f8")
    tensor = open_store(f"{server.url}/A.safetensors::weight")
    for store in (raw, tensor, open_store(f"{server.url}/A.zarr")):
        np.testing.assert_array_equal(store[5:9].to_numpy(), VALUES[5:9])
    with pytest.raises(StoreFormatError, match="ends at"):
        open_store(f"{server.url}/A.bin", shape=(700, 301), dtype="f8")
    with pytest.raises(UnknownNameError, match="bias"):
        open_store(f"{server.url}/A.safetensors::bias")


def test_zarr_operands_are_not_read_twice(tmp_path: Path, server: RangeServer) -> None:
    group = zarr.create_group(store=str(tmp_path / "G.zarr"))
    group.create_array("x/values", shape=(700, 300), chunks=(350, 300), dtype="f8", compressors=None)[...] = (
        VALUES
    )
    store = open_store(f"{server.url}/G.zarr::x/values")
    server.sizes.clear()
    MatrixEngine("cpu", budget="64MiB").gram(store, out=tmp_path / "G.npy")
    np.testing.assert_allclose(np.load(tmp_path / "G.npy"), VALUES.T @ VALUES)
    assert sum(server.sizes) < 1.1 * VALUES.nbytes


def test_protocols_of_fsspec_are_urls(tmp_path: Path, server: RangeServer) -> None:
    local = open_store((tmp_path / "A.npy").as_uri())
    assert local.name == str(tmp_path / "A.npy")
    fsspec.filesystem("memory").pipe("/accelera/A.npy", (tmp_path / "A.npy").read_bytes())
    for url in ("memory://accelera/A.npy", f"simplecache::{server.url}/A.npy"):
        np.testing.assert_array_equal(open_store(url)[::100].to_numpy(), VALUES[::100])


def test_threads_share_one_store(server: RangeServer) -> None:
    store = open_store(f"{server.url}/A.npy")
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda i: store[i * 10 : i * 10 + 10].to_numpy(), range(70)))
    np.testing.assert_array_equal(np.concatenate(parts), VALUES)


def _read_in_child(store: Store, queue: Any) -> None:
    queue.put(store[3:5].to_numpy())


def test_forked_process_reads_an_open_store(server: RangeServer) -> None:
    store = open_store(f"{server.url}/A.npy")
    store[:1].to_numpy()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_read_in_child, args=(store, queue))
    child.start()
    np.testing.assert_array_equal(queue.get(timeout=60), VALUES[3:5])
    child.join(60)


def test_pickled_store_is_opened_again(server: RangeServer) -> None:
    store = open_store(f"{server.url}/A.npy")
    sent = pickle.dumps(store)
    np.testing.assert_array_equal(pickle.loads(sent)[7].to_numpy(), VALUES[7])
    server.tag = "2"
    with pytest.raises(StoreChangedError, match="not the version that was sent"):
        pickle.loads(sent)


def test_changed_file_is_noticed(tmp_path: Path, server: RangeServer) -> None:
    store = open_store(f"{server.url}/A.npy")
    assert json.loads(json.dumps(store.fingerprint())) == dict(store.fingerprint() or {})
    server.tag = "2"
    with pytest.raises(StoreChangedError, match="changed since it was opened"):
        MatrixEngine("cpu").gram(store, out=tmp_path / "G.npy", budget="48MiB")


def test_server_without_ranges_is_refused(server: RangeServer) -> None:
    server.mode = "whole"
    with pytest.raises(StoreError, match=r"A\.npy: the server sends whole files, ranges of bytes expected"):
        open_store(f"{server.url}/A.npy")


@pytest.mark.parametrize("mode", ["cut", "fail", "whole"])
def test_failures_after_opening_are_store_errors(server: RangeServer, mode: str) -> None:
    store = open_store(f"{server.url}/A.npy")
    server.mode = mode
    with pytest.raises(StoreError, match=r"\[read\] http://127\.0\.0\.1:\d+/A\.npy"):
        store[10:200].to_numpy()


def test_file_that_is_too_short_is_refused(tmp_path: Path, server: RangeServer) -> None:
    data = (tmp_path / "A.npy").read_bytes()
    for name, count in (("cut.npy", 5000), ("head.npy", 60), ("empty.npy", 0)):
        (tmp_path / name).write_bytes(data[:count])
        with pytest.raises(StoreFormatError, match=name):
            open_store(f"{server.url}/{name}")


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("http://127.0.0.1:9/A.npy", StoreError, "Cannot connect"),
        ("nonsense://x/A.npy", StoreError, "Protocol not known"),
        ("memory://accelera/none.npy", StoreError, "no such file"),
        ("memory://accelera/a.h5", StoreError, "local disk"),
        ("memory://accelera/a.txt", UnknownNameError, "txt"),
        ("memory://accelera/none.zarr", StoreFormatError, "not a readable Zarr array"),
    ],
)
def test_wrong_urls_are_refused(url: str, kind: type[AcceleraError], message: str) -> None:
    with pytest.raises(kind, match=message):
        open_store(url)


@pytest.mark.parametrize(
    ("text", "address", "suffix", "key"),
    [
        ("http://[::1]:80/A.npy", "http://[::1]:80/A.npy", ".npy", None),
        ("http://[::1]:80/m.safetensors::w", "http://[::1]:80/m.safetensors", ".safetensors", "w"),
        ("https://h/G.zarr::x/values", "https://h/G.zarr", ".zarr", "x/values"),
        ("https://h/A.NPY?a=b.txt", "https://h/A.NPY?a=b.txt", ".npy", None),
        ("zip://A.npy::blockcache::s3://b/x.zip", "zip://A.npy::blockcache::s3://b/x.zip", ".npy", None),
        ("simplecache::s3://b/A.bin", "simplecache::s3://b/A.bin", ".bin", None),
    ],
)
def test_url_has_suffix_and_key(text: str, address: str, suffix: str, key: str | None) -> None:
    url = parse_url(text)
    assert (url.address, url.suffix, url.key) == (address, suffix, key)


def test_missing_file_names_the_status(server: RangeServer) -> None:
    with pytest.raises(StoreError, match=r"\[open_store\] http://127\.0\.0\.1:\d+/B\.npy: .*404"):
        open_store(f"{server.url}/B.npy")


def test_secrets_of_a_url_are_in_no_message(server: RangeServer) -> None:
    address = f"{server.url}/A.npy?signature=hush".replace("//", "//user:hush@")
    store = open_store(address)
    np.testing.assert_array_equal(store[0].to_numpy(), VALUES[0])
    assert "hush" not in f"{store!r} {store.fingerprint()}"
    for mode in ("fail", "whole"):
        server.mode = mode
        for use in (lambda: store[1].to_numpy(), lambda: open_store(address)):
            with pytest.raises(StoreError) as caught:
                use()
            assert "hush" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/C.npy", "memory://C.zarr", "file:///tmp/C.npy"])
def test_results_cannot_be_urls(url: str) -> None:
    engine = MatrixEngine("cpu")
    for use in (
        lambda: engine.matmul(VALUES.T, VALUES, out=url),
        lambda: engine.copy(VALUES, out=url),
        lambda: create_store(url, (3,), "f4"),
    ):
        with pytest.raises(StoreError, match="URLs are read, never written"):
            use()


def test_url_store_takes_no_results(server: RangeServer) -> None:
    with pytest.raises(StoreError, match="is read by its URL"):
        MatrixEngine("cpu").copy(VALUES, out=open_store(f"{server.url}/A.npy"))


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelera._extras.find_spec", lambda name: None)
    with pytest.raises(BackendMissingError, match=r"needs fsspec; pip install 'accelera-engine\[remote\]'"):
        open_store("https://127.0.0.1/A.npy")


def test_command_line_takes_urls(
    tmp_path: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("B.npy", VALUES.T)
    url = f"{server.url}/A.npy"
    for words in (
        ["plan", url, "B.npy"],
        ["matmul", url, "B.npy", "--out", "C.npy", "--budget", "64MiB"],
        ["evaluate", "A + 1", f"A={url}", "--out", "E.npy"],
    ):
        outcome = CliRunner().invoke(app, words)
        assert outcome.exit_code == 0, outcome.output
    np.testing.assert_allclose(np.load("C.npy"), VALUES @ VALUES.T)
    np.testing.assert_array_equal(np.load("E.npy"), VALUES + 1)
