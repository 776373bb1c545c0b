"""torch tensors: shared on the CPU; the accelerator's store runs on any device, so it is tried here too."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from accelera.errors import DTypeError, ShapeError, StoreError
from accelera.stores import Store, open_store
from accelera.stores._internal import OutputStore, create_store, parse_dtype, whole
from accelera.stores.tensor import TorchOutput, TorchStore, share
from accelera.testing._internal import OutputContract
from accelera.testing.store_contract import sample

DTYPES = (*OutputContract.dtypes, "bfloat16", "uint16", "complex128")


def tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    made = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name))
    share(made)[...] = array
    return made


class TestTensor(OutputContract):
    dtypes = DTYPES

    def make(self, array: np.ndarray[Any, Any]) -> Store:
        return open_store(tensor_of(array))

    def begin(self, shape: tuple[int, ...], dtype: str, *, resume: bool = False) -> OutputStore:
        return create_store(torch.empty(shape, dtype=getattr(torch, dtype)), shape, dtype)


class TestAcceleratorStore(OutputContract):
    dtypes = DTYPES
    device = "cpu"

    def make(self, array: np.ndarray[Any, Any]) -> Store:
        return TorchStore(tensor_of(array).to(self.device))

    def begin(self, shape: tuple[int, ...], dtype: str, *, resume: bool = False) -> OutputStore:
        element = getattr(torch, dtype)
        return TorchOutput(torch.empty(shape, dtype=element, device=self.device), shape, parse_dtype(dtype))


@pytest.mark.cuda
class TestCuda(TestAcceleratorStore):
    device = "cuda"

    def test_tensors_are_opened_where_they_lie(self) -> None:
        tensor = torch.arange(12.0, device="cuda").reshape(3, 4)
        store = open_store(tensor)
        assert store.tier == "cuda:0"
        assert store.resident() is None
        output = create_store(torch.zeros(3, 4, device="cuda"), (3, 4), "float32")
        output.write(whole((3, 4)), store.to_numpy())
        assert output.tier == "cuda:0"
        np.testing.assert_array_equal(output.to_numpy(), tensor.cpu().numpy())


def test_a_cpu_tensor_is_used_in_place() -> None:
    tensor = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4).T
    store = open_store(tensor)
    tensor[0, 0] = 5
    assert store.tier == "ram"
    assert store.resident()[0, 0] == 5
    assert store.layout.order == (1, 0)


def test_gradients_and_lazy_conjugates_are_resolved() -> None:
    assert open_store(torch.ones(3, requires_grad=True)).to_numpy().tolist() == [1, 1, 1]
    tensor = torch.tensor([1 + 2j, 3 - 1j])
    np.testing.assert_array_equal(open_store(tensor.conj()).to_numpy(), [1 - 2j, 3 + 1j])
    np.testing.assert_array_equal(open_store(tensor.conj().imag).to_numpy(), [-2, 1])


def test_tensors_without_plain_memory_are_refused() -> None:
    with pytest.raises(StoreError, match="sparse"):
        open_store(torch.eye(3).to_sparse())
    with pytest.raises(StoreError, match="meta"):
        open_store(torch.empty(3, device="meta"))
    with pytest.raises(DTypeError, match="float8"):
        open_store(torch.zeros(3, dtype=torch.float8_e4m3fn))


def test_a_tensor_that_cannot_take_the_result_is_refused() -> None:
    with pytest.raises(ShapeError):
        create_store(torch.zeros(3, 4), (4, 3), "float32")
    with pytest.raises(DTypeError):
        create_store(torch.zeros(3, 4), (3, 4), "float64")
    with pytest.raises(ShapeError):
        TorchOutput(torch.zeros(3, 4), (4, 3), parse_dtype("float32"))
    with pytest.raises(DTypeError):
        TorchOutput(torch.zeros(3, 4), (3, 4), parse_dtype("float64"))


def test_a_result_in_a_tensor_is_the_tensor() -> None:
    tensor = torch.zeros(3, 4, dtype=torch.bfloat16)
    output = create_store(tensor, (3, 4), "bfloat16")
    output.write(whole((3, 4)), sample((3, 4), "bfloat16"))
    output.commit()
    assert share(tensor).tobytes() == sample((3, 4), "bfloat16").tobytes()


def test_torch_dtypes_name_results() -> None:
    assert parse_dtype(torch.bfloat16) == parse_dtype("bfloat16")
    assert parse_dtype(torch.float32) == np.float32


def test_files_and_arrays_need_no_torch() -> None:
    code = (
        "import sys, accelera.stores as s; s.open_store([1.0]).to_numpy(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
