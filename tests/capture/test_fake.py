"""Recording shapes alone gives what recording the real thing gives, in the memory of neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from accelera import capture, estimate
from accelera.capture._internal import ShapeMode, as_fake
from benchmarks.models import small_references
from tests.architecture.repository import ROOT, run_python
from tests.capture.reading import events


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", sorted(small_references()))
def test_equals_the_real_run_event_by_event(name: str, train: bool) -> None:
    model = small_references()[name]
    module, inputs = model.build(), model.inputs()
    real = events(capture(module, inputs, train, steps=2, fake=False))
    assert events(capture(model.build, model.inputs, train, steps=2)) == real
    assert events(capture(module, inputs, train, steps=2, fake=True)) == real


def test_a_model_on_meta_is_followed_by_its_shapes() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    trace = capture(module, torch.ones(2, 4))
    assert trace.meta["fake"] is True
    assert all(each.is_meta for each in [*module.parameters(), *module.buffers()])
    assert events(trace) == events(
        capture(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.ones(2, 4))
    )


def test_a_function_can_build_the_real_thing() -> None:
    trace = capture(lambda: nn.Linear(2, 2), lambda: torch.ones(1, 2), fake=False)
    assert trace.meta["fake"] is False


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float64])
def test_is_built_in_the_type_asked_for(dtype: Any) -> None:
    trace = capture(lambda: nn.Linear(2, 2), lambda: torch.randn(1, 2), dtype=dtype, optimizer="sgd")
    assert set(trace.dtypes) == {str(dtype).removeprefix("torch.")}
    assert torch.get_default_dtype() is torch.float32


@given(
    st.sampled_from(["rows of matrices", "matrices of rows", "stacks", "sums"]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    *(st.integers(1, 20) for _ in range(2)),
)
def test_grouped_products_have_the_shapes_of_their_kernel(
    kind: str, dtype: torch.dtype, rows: int, columns: int
) -> None:
    a, b, offsets = grouped(kind, dtype, rows, columns)
    expected = torch._grouped_mm(a, b, offs=offsets)
    with ShapeMode() as mode:
        found = torch._grouped_mm(*as_fake((a, b), mode), offs=as_fake(offsets, mode))
    assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)


def grouped(kind: str, dtype: torch.dtype, rows: int, columns: int) -> tuple[Any, Any, Any]:
    """Return operands of a product in three groups, and where the groups end."""
    ends = torch.tensor([1, 1, 8], dtype=torch.int32)
    shapes = {
        "rows of matrices": ((8, 16), (3, columns, 16)),
        "matrices of rows": ((3, rows, 16), (8, 16)),
        "stacks": ((3, rows, 16), (3, columns, 16)),
        "sums": ((rows + 7 - (rows - 1) % 8, 8), (columns + 7 - (columns - 1) % 8, 8)),
    }
    a, b = (torch.randn(shape).to(dtype) for shape in shapes[kind])
    return a, b.mT, None if kind == "stacks" else ends


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_grouped_products_that_no_kernel_computes_are_refused(dtype: torch.dtype) -> None:
    a, b, offsets = grouped("stacks", dtype, 4, 8)
    with ShapeMode() as mode, pytest.raises(RuntimeError, match="grouped products are of"):
        torch._grouped_mm(*as_fake((a, b), mode), offs=offsets)


def test_layers_that_are_copied_while_building_are_followed() -> None:
    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        layer.register_buffer("scale", torch.ones(2))
        return nn.TransformerEncoder(layer, 2)

    rows = torch.randn(2, 4, 16)
    faked, real = capture(build, rows), capture(build(), rows, fake=False)
    assert events(faked) == events(real)
    assert faked.meta["parameters"] == real.meta["parameters"]


def test_weights_that_are_drawn_until_they_are_in_bounds_are_followed() -> None:
    class Drawn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.init.trunc_normal_(nn.Parameter(torch.empty(4, 3)), std=0.02)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.table

    assert capture(Drawn, torch.ones(2, 4)).meta["fake"]
    assert estimate(Drawn, torch.ones(2, 4), train=False).parameters == 12
    # Outside of them values are drawn as ever.
    assert nn.init.trunc_normal_(torch.zeros(4)).abs().max() > 0


def test_shared_weights_stay_shared() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
            self.outer.weight = self.inner.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.outer(self.inner(x))  # type: ignore[no-any-return]

    module, rows = Tied(), torch.zeros(3, dtype=torch.long)
    trace = capture(module, rows, fake=True)
    assert [name for name, role in zip(trace.names, trace.roles, strict=True) if role == "weight"] == [
        "inner.weight"
    ]
    assert module.outer.weight is module.inner.weight
    assert not isinstance(module.inner.weight, torch._subclasses.FakeTensor)
    assert events(trace) == events(capture(module, rows))


def test_a_model_that_needs_values_is_refused_with_the_remedy() -> None:
    class Chooses(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[super().forward(x).sum(-1) > 0]

    with pytest.raises(ValueError, match=r"asks for values at .*fake=False"):
        capture(Chooses(2, 2), torch.ones(2, 2), train=False, fake=True)
    assert capture(Chooses(2, 2), torch.ones(2, 2), train=False).step_count


def test_a_seven_billion_step_takes_no_weights(tmp_path: Path) -> None:
    code = (
        "from benchmarks.models import llama_7b_step; from accelera.memory import process_memory\n"
        "step = llama_7b_step()\n"
        "print(step.meta['parameters'], step.meta['peak_live_bytes'], process_memory().peak_bytes)"
    )
    ran = run_python("-c", code, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    assert ran.returncode == 0, ran.stderr
    parameters, peak, resident = map(int, ran.stdout.split())
    assert parameters == 6_738_415_616
    # Weights, gradients and two states of two bytes each are alive at once, and little more.
    assert 8 * parameters < peak < 1.1 * 8 * parameters
    assert resident < 1 << 30


def test_importing_the_package_loads_no_torch(tmp_path: Path) -> None:
    code = "import sys, accelera.capture; accelera.capture.capture; sys.exit('torch' in sys.modules)"
    assert run_python("-c", code, cwd=tmp_path).returncode == 0
