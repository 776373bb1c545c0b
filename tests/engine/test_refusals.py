"""Refusals name the remedy in the terms of the caller, and the budget that they name works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accelera import AcceleraError, BudgetExceededError, MatrixEngine, StoreError, concatenate, open_store
from accelera.stores._internal import is_in_memory
from tests.children import answer_of

ENGINE = MatrixEngine("cpu", enable_progress=False)


@pytest.fixture(scope="module")
def operands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files without blocks on the disk: 3000 x 2000 and 2000 x 3000 zeros."""
    folder = tmp_path_factory.mktemp("refusals")
    for name, shape in {"a": (3000, 2000), "b": (2000, 3000)}.items():
        with open(folder / f"{name}.npy", "wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + 4 * shape[0] * shape[1])
    return {"a": str(folder / "a.npy"), "b": str(folder / "b.npy")}


CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "matmul": lambda a, b, budget: ENGINE.matmul(a, b, budget=budget),
    "plan": lambda a, b, budget: ENGINE.plan(a, b, budget=budget),
    "gram": lambda a, b, budget: ENGINE.gram(a, budget=budget),
    "transpose": lambda a, b, budget: ENGINE.transpose(a, budget=budget),
    "copy": lambda a, b, budget: ENGINE.copy(a, budget=budget),
    "evaluate": lambda a, b, budget: ENGINE.evaluate(ENGINE.array(a) + 1, budget=budget),
    "stages": lambda a, b, budget: ENGINE.evaluate(
        ENGINE.array(a) - ENGINE.array(a).mean(axis=0), budget=budget
    ),
    "add": lambda a, b, budget: ENGINE.add(a, a, budget=budget),
}


@pytest.mark.parametrize("name", CALLS)
def test_refusal_of_a_result_in_ram_names_out(name: str, operands: dict[str, str]) -> None:
    with pytest.raises(BudgetExceededError, match="out=") as refused:
        CALLS[name](operands["a"], operands["b"], "36MiB")
    CALLS[name](operands["a"], operands["b"], refused.value.needed_bytes)


@pytest.mark.parametrize("value", [np.ones((4, 3)), [[1, 2]], 2.5], ids=["array", "list", "number"])
def test_evaluate_takes_any_operand(value: Any, tmp_path: Path) -> None:
    np.testing.assert_array_equal(np.asarray(ENGINE.evaluate(value)), np.asarray(value))
    ENGINE.plan_evaluate(value)
    np.save(tmp_path / "x.npy", value)
    np.testing.assert_array_equal(np.asarray(ENGINE.evaluate(tmp_path / "x.npy")), np.asarray(value))


def test_gram_of_an_expression_names_what_works() -> None:
    rows = np.random.default_rng(0).standard_normal((60, 5))
    x = ENGINE.array(rows) - rows.mean(axis=0)
    for call in (ENGINE.gram, ENGINE.plan_gram):
        with pytest.raises(AcceleraError, match=r"engine\.evaluate\(x\.T @ x\)"):
            call(x)
    centered = rows - rows.mean(axis=0)
    np.testing.assert_allclose(ENGINE.evaluate(x.T @ x).numpy(), centered.T @ centered, rtol=1e-10)


@pytest.mark.filterwarnings("ignore:Sparse C")
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
@pytest.mark.parametrize("name", ["sum", "matmul", "add", "gram"])
def test_sparse_tensor_is_refused_by_the_library(layout: str, name: str) -> None:
    tensor = getattr(torch.eye(6), layout)()
    operands = (tensor,) if name in ("sum", "gram") else (tensor, np.ones((6, 6), "f4"))
    with pytest.raises(AcceleraError, match="dense"):
        getattr(ENGINE, name)(*operands)


HIDDEN_TORCH = """
import json, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Hidden())
import numpy as np
from accelera import BackendMissingError, Matrix, MatrixEngine
calls = [
    lambda: Matrix(np.ones((2, 2))).tensor(),
    lambda: MatrixEngine("sim:64MiB").matmul(np.ones((3, 3)), np.ones((3, 3))),
]
outcomes = []
for call in calls:
    try:
        call()
    except BackendMissingError as error:
        outcomes.append("torch" in str(error))
    except ModuleNotFoundError:
        outcomes.append(False)
print(json.dumps(outcomes))
"""


def test_core_without_torch_names_the_extra() -> None:
    outcomes = answer_of("-c", HIDDEN_TORCH)
    assert outcomes
    assert all(outcomes)


LIMITED_FILES = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
import accelera
from accelera import AcceleraError
try:
    accelera.concatenate([sys.argv[1]] * 120)
except AcceleraError as error:
    print(json.dumps(str(error)))
"""


def test_limit_on_open_files_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3)))
    assert "ulimit" in answer_of("-c", LIMITED_FILES, str(tmp_path / "x.npy"))


LOADED = """
import json, sys
import numpy as np
from accelera import MatrixEngine
engine = MatrixEngine("cpu", enable_progress=False)
rows = np.arange(600.0, dtype="f4").reshape(30, 20)
np.save(sys.argv[1] + "/x.npy", rows)
x, out = sys.argv[1] + "/x.npy", np.zeros(20, "f4")
results = [
    engine.mean(x, axis=0, budget="48MiB"),
    engine.mean(x, axis=0, out=out, budget="48MiB"),
    engine.matmul(x, rows.T.copy(), budget="48MiB"),
    engine.matmul(rows, rows.T.copy(), budget="48MiB"),
    engine.gram(x, budget="48MiB"),
    engine.transpose(x, budget="48MiB"),
]
shapes = [list(result.shape) for result in results]
sums = [float(result.numpy().sum()) for result in results]
loaded = "torch" in sys.modules
tensors = [list(result.tensor().shape) for result in results]
print(json.dumps([loaded, shapes == tensors, sums, out.tolist()]))
"""


def test_result_in_memory_does_not_load_torch(tmp_path: Path) -> None:
    loaded, same_shapes, sums, out = answer_of("-c", LOADED, str(tmp_path))
    rows = np.arange(600.0).reshape(30, 20)
    product, means = (rows @ rows.T).sum(), rows.mean(axis=0)
    assert not loaded
    assert same_shapes
    np.testing.assert_allclose(
        sums, [means.sum(), means.sum(), product, product, (rows.T @ rows).sum(), rows.sum()], rtol=1e-5
    )
    np.testing.assert_allclose(out, means, rtol=1e-6)


IN_MEMORY = Path("/dev/shm")


@pytest.mark.skipif(not is_in_memory(IN_MEMORY), reason="needs a tmpfs at /dev/shm")
def test_intermediates_avoid_a_folder_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(IN_MEMORY))
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).standard_normal((3000, 40)).astype("f4")
    np.save("p.npy", rows)
    p, free = ENGINE.array("p.npy"), [free_bytes()]
    monkeypatch.setattr(
        "accelera.engine.expression_stores.FlatFile.write",
        watched(open_store("p.npy").__class__.write, free),
    )
    largest = ENGINE.evaluate(((p @ p.T) * 2).max(), budget="48MiB")
    assert largest == pytest.approx(float((rows @ rows.T).max() * 2), rel=1e-5)
    assert free[0] - min(free) < 8 << 20


def free_bytes() -> int:
    import os

    status = os.statvfs(IN_MEMORY)
    return status.f_bfree * status.f_frsize


def watched(write: Callable[..., int], free: list[int]) -> Callable[..., int]:
    def write_and_measure(store: Any, *arguments: Any) -> int:
        size = write(store, *arguments)
        free.append(free_bytes())
        return size

    return write_and_measure


def test_changed_copy_on_write_map_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((800, 400), "f4"))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    assert ENGINE.sum(mapped) == 320_000
    mapped[700, 5] = 3
    with pytest.raises(StoreError, match=r"np\.array"):
        ENGINE.sum(mapped)
    assert ENGINE.sum(np.array(mapped)) == 320_002
    with pytest.raises(StoreError, match="copy-on-write"):
        ENGINE.copy(np.ones((800, 400), "f4"), out=mapped)


def test_joined_maps_are_read_from_their_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((800, 400), "f4"))
    tensor = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="r+"))
    assert open_store(tensor).tier == "disk"
    tensor[5] = 2
    assert ENGINE.sum(concatenate([open_store(tensor), open_store(tensor)])) == 640_800
    ENGINE.copy(np.full((800, 400), 7, "f4"), out=tensor)
    assert float(tensor.sum()) == 7 * 320_000


ROWS = np.arange(30.0).reshape(6, 5)
UNSUPPORTED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "mask": (lambda x: x[np.ones((6, 5), bool)], r"np\.where"),
    "list": (lambda x: x[[1, 2]], "concatenate"),
    "array": (lambda x: x[np.array([1, 2])], "concatenate"),
    "reshape": (lambda x: np.reshape(x, (5, 6)), r"engine\.evaluate"),
    "einsum": (lambda x: np.einsum("ij->i", x), r"engine\.evaluate"),
    "median": (np.median, r"engine\.evaluate"),
    "sort": (np.sort, r"engine\.evaluate"),
    "product": (lambda x: x @ x, r"A @ B\.T fits"),
    "vectors": (lambda x: x.T @ x.T, r"A @ B\.T fits"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_call_of_an_expression_names_a_way(name: str) -> None:
    call, remedy = UNSUPPORTED[name]
    with pytest.raises(AcceleraError, match=remedy):
        call(ENGINE.array(ROWS))


@pytest.mark.parametrize("name", ["reshape", "ravel", "flatten", "sort", "tolist"])
def test_missing_method_of_an_expression_names_a_way(name: str) -> None:
    with pytest.raises(AttributeError, match=r"engine\.evaluate"):
        getattr(ENGINE.array(ROWS), name)
    assert not hasattr(ENGINE.array(ROWS), "no_such_method")


def test_archive_and_group_names_are_refused_with_a_way(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=ROWS)
    with pytest.raises(AcceleraError, match=r"np\.load"):
        ENGINE.sum(tmp_path / "x.npz")
    with pytest.raises(AcceleraError, match=r"g\.zarr/new\.zarr"):
        ENGINE.copy(ROWS, out=f"{tmp_path}/g.zarr::new")
