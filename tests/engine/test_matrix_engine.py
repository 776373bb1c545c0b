import logging
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import accelera as acc
from accelera.engine import incore
from accelera.engine._internal import default_engine, set_default_engine
from accelera.errors import BudgetExceededError, DTypeError, ShapeError, StateError, UnknownNameError

RNG = np.random.default_rng(5)
A = RNG.standard_normal((50, 30)).astype(np.float32)
B = RNG.standard_normal((30, 40)).astype(np.float32)

TOLERANCE = {
    "float16": 2e-3,
    "bfloat16": 2e-2,
    "float32": 1e-5,
    "float64": 1e-12,
    "complex64": 1e-5,
    "complex128": 1e-12,
}


@pytest.fixture
def engine():
    return acc.MatrixEngine(enable_progress=False)


def random_array(rng, shape, dtype):
    values = rng.integers(-5, 6, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.integers(-5, 6, shape)
    return values.astype(dtype)


def by_plan(**options):
    """Return an engine that sends everything through a plan, cut in chunks of 7 rows."""
    return acc.MatrixEngine(auto_detect_memory=False, chunk_size=7, enable_progress=False, **options)


@pytest.mark.parametrize(
    "wrap",
    [lambda x: x, torch.from_numpy, acc.Matrix, np.ndarray.tolist],
    ids=["numpy", "torch", "Matrix", "list"],
)
@pytest.mark.parametrize("make", [lambda: acc.MatrixEngine(), by_plan], ids=["direct", "by plan"])
def test_operands_of_every_kind_give_a_matrix(make, wrap):
    result = make().matmul(wrap(A), wrap(B))
    assert isinstance(result, acc.Matrix)
    np.testing.assert_allclose(result.numpy(), A @ B, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [lambda: acc.MatrixEngine(), by_plan], ids=["direct", "by plan"])
@pytest.mark.parametrize(
    "dtype",
    [
        "float16",
        ml_dtypes.bfloat16,
        "float32",
        "float64",
        "complex64",
        "complex128",
        "int8",
        "uint8",
        "int16",
        "int64",
    ],
    ids=str,
)
def test_element_types_are_kept(make, dtype):
    a, b = random_array(RNG, (23, 9), dtype), random_array(RNG, (9, 31), dtype)
    result = make().matmul(a, b).numpy()
    assert result.dtype == a.dtype
    if a.dtype.kind in "iu":
        np.testing.assert_array_equal(result, a @ b)
    else:
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(
            result.astype(wide), a.astype(wide) @ b.astype(wide), rtol=TOLERANCE[a.dtype.name]
        )


SHAPES = st.tuples(
    st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.sampled_from([(), (1,), (3,), (2, 1), (2, 3)])
)


@given(SHAPES, st.sampled_from(["both", "a", "b"]), st.booleans(), st.booleans(), st.booleans())
def test_shapes_follow_torch(shape, batched, vector_a, vector_b, planned):
    m, k, n, batch = shape
    a = torch.ones((k,) if vector_a else ((*batch, m, k) if batched != "b" else (m, k)))
    b = torch.ones((k,) if vector_b else ((*batch, k, n) if batched != "a" else (k, n)))
    engine = by_plan() if planned else acc.MatrixEngine(enable_progress=False)
    np.testing.assert_array_equal(engine.matmul(a, b).numpy(), torch.matmul(a, b).numpy())


@pytest.mark.parametrize("make", [lambda: acc.MatrixEngine(), by_plan], ids=["direct", "by plan"])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T.copy().T,
        lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
        lambda x: x[::-1].copy()[::-1],
    ],
    ids=["transposed", "strided", "reversed"],
)
def test_views_are_taken_as_they_lie(make, view):
    np.testing.assert_allclose(make().matmul(view(A), view(B)).numpy(), A @ B, rtol=1e-4, atol=1e-5)


class Halves(acc.ChunkingStrategy):
    """A user's own cut: left half, right half, drawn lazily."""

    def get_chunks(self, shape, chunk_size):
        middle = shape[1] // 2
        yield slice(None), slice(0, middle)
        yield slice(None), slice(middle, shape[1])


@pytest.mark.parametrize(
    "strategy",
    [
        "row",
        "tile",
        "adaptive",
        acc.RowChunking(),
        acc.TileChunking((16, 8)),
        acc.AdaptiveChunking(),
        Halves(),
    ],
    ids=lambda strategy: strategy if isinstance(strategy, str) else type(strategy).__name__,
)
def test_every_strategy_gives_the_same_product(strategy):
    expected = A @ B
    assigned = by_plan()
    assigned.chunking_strategy = strategy
    for result in (
        by_plan(chunking_strategy=strategy).matmul(A, B),
        assigned.matmul(A, B),
        acc.MatrixEngine().matmul(A, B, chunk_strategy=strategy),
    ):
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_fixed_chunk_size_really_cuts():
    engine = by_plan(chunking_strategy="row")
    engine.matmul(A, B)
    assert engine.last_report.steps_run == 8
    engine.set_chunk_size(25)
    engine.matmul(A, B)
    assert engine.last_report.steps_run == 2


def test_a_strategy_of_ones_own_is_used_though_the_product_fits(engine):
    engine.chunking_strategy = Halves()
    engine.matmul(A, B)
    assert engine.last_report.steps_run == 2


def test_a_named_strategy_cuts_only_where_needed(engine):
    engine.chunking_strategy = "row"
    engine.matmul(A, B, chunk_strategy="tile")
    with pytest.raises(StateError, match="has not run a plan"):
        _ = engine.last_report


class Nothing(acc.ChunkingStrategy):
    def get_chunks(self, shape, chunk_size):
        pass


class Gap(acc.ChunkingStrategy):
    def get_chunks(self, shape, chunk_size):
        return [(slice(0, 10),)]


@pytest.mark.parametrize(
    ("strategy", "complaint"), [(Nothing(), "returned None"), (Gap(), r"10:50, 0:40.*in no chunk")]
)
def test_a_strategy_that_does_not_cover_the_result_is_refused(engine, strategy, complaint):
    engine.chunking_strategy = strategy
    with pytest.raises(ShapeError, match=complaint):
        engine.matmul(A, B)


def test_unknown_strategies_are_named(engine):
    with pytest.raises(UnknownNameError, match="did you mean 'tile'"):
        acc.MatrixEngine(chunking_strategy="tiles")
    with pytest.raises(UnknownNameError, match="known: adaptive, row, tile"):
        engine.matmul(A, B, chunk_strategy="zigzag")


def test_chunk_sizes(engine):
    assert engine.chunk_size is None
    engine.enable_auto_memory_detection(False)
    assert engine.chunk_size == 1024
    engine.set_chunk_size(512)
    assert engine.chunk_size == 512
    engine.enable_auto_memory_detection(True)
    assert engine.chunk_size is None
    assert acc.MatrixEngine(chunk_size=64).chunk_size is None, "ignored while sizes are automatic"
    for size in (0, -3):
        with pytest.raises(ShapeError, match=f"chunk_size={size}"):
            engine.set_chunk_size(size)


@pytest.mark.parametrize("make", [lambda: acc.MatrixEngine(), by_plan], ids=["direct", "by plan"])
def test_misfits_are_refused_before_any_work(make):
    with pytest.raises(ShapeError, match=r"\(50, 30\) and \(29, 40\)"):
        make().matmul(A, B[:-1])
    with pytest.raises(DTypeError, match="bool cannot be multiplied"):
        make().matmul(A > 0, B > 0)


@pytest.mark.parametrize("make", [lambda: acc.MatrixEngine(), by_plan], ids=["direct", "by plan"])
def test_types_are_promoted_as_in_numpy(make):
    for a, b in ((A, B.astype("f8")), (A.astype("i4"), B), (A.astype("c8"), B.astype("f8"))):
        found = make().matmul(a, b).numpy()
        assert found.dtype == (a @ b).dtype
        np.testing.assert_allclose(found, a.astype("c16") @ b.astype("c16"), rtol=1e-5, atol=1e-5)


def test_a_result_over_the_budget_is_refused_with_both_numbers(engine):
    big = np.zeros((2000, 1), np.float32), np.zeros((1, 2000), np.float32)
    with pytest.raises(BudgetExceededError) as caught:
        engine.matmul(*big, budget="8MiB")
    assert caught.value.budget_bytes == 8 * 2**20
    assert caught.value.needed_bytes >= 16_000_000
    assert engine.matmul(*big, budget="64MiB").shape == (2000, 2000)


def test_budgets_of_the_engine_and_of_the_variable(monkeypatch):
    big = np.zeros((2000, 1), np.float32), np.zeros((1, 2000), np.float32)
    for engine in (acc.MatrixEngine(budget="8MiB"), acc.MatrixEngine(memory_threshold_gb=0.008)):
        with pytest.raises(BudgetExceededError):
            engine.matmul(*big)
    monkeypatch.setenv("ACCELERA_BUDGET", "8MiB")
    with pytest.raises(BudgetExceededError):
        acc.MatrixEngine().matmul(*big)


def test_results_go_where_they_are_told(engine, tmp_path):
    expected = A @ B
    array, tensor, matrix = np.empty((50, 40), np.float32), torch.empty(50, 40), acc.Matrix.zeros((50, 40))
    for out in (array, tensor, matrix):
        result = engine.matmul(A, B, out=out)
        assert isinstance(result, acc.Matrix)
        assert result.tensor().data_ptr() == torch.as_tensor(np.asarray(out)).data_ptr()
        np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-4, atol=1e-5)
    engine.matmul(A, B, out=tmp_path / "c.npy")
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), expected, rtol=1e-4, atol=1e-5)


def test_operands_on_disk(engine, tmp_path):
    np.save(tmp_path / "a.npy", A)
    np.save(tmp_path / "b.npy", B)
    for a, b in (
        (tmp_path / "a.npy", str(tmp_path / "b.npy")),
        (A, tmp_path / "b.npy"),
        (acc.open_store(tmp_path / "a.npy"), acc.Matrix(B)),
        (np.load(tmp_path / "a.npy", mmap_mode="r"), B),
    ):
        np.testing.assert_allclose(engine.matmul(a, b).numpy(), A @ B, rtol=1e-4, atol=1e-5)


def test_a_direct_product_that_runs_out_of_memory_goes_on_by_a_plan(engine, monkeypatch, caplog):
    def full(*_):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch, "matmul", full)
    with caplog.at_level(logging.WARNING, "accelera"):
        result = engine.matmul(A, B)
    np.testing.assert_allclose(result.numpy(), A @ B, rtol=1e-4, atol=1e-5)
    assert "goes on in chunks" in caplog.text


def test_other_errors_of_torch_are_not_taken_for_memory(engine, monkeypatch):
    def broken(*_):
        raise RuntimeError("something else")

    monkeypatch.setattr(torch, "matmul", broken)
    with pytest.raises(RuntimeError, match="something else"):
        engine.matmul(A, B)


def test_products_that_torch_does_slowly_go_by_a_plan(engine, monkeypatch):
    monkeypatch.setattr(incore, "FEW_MULTIPLICATIONS", 1)
    half = engine.matmul(A.astype(np.float16), B.astype(np.float16))
    assert half.dtype == torch.float16
    np.testing.assert_allclose(half.numpy(), A @ B, atol=2e-2)


@pytest.mark.parametrize(("name", "function"), [("add", np.add), ("multiply", np.multiply)])
def test_elementwise_operations_broadcast_and_promote(engine, name, function):
    operation = getattr(engine, name)
    for other in (A * 2, acc.Matrix(A), torch.ones(30), A[:, :1].astype(np.float64), A[:1].tolist()):
        result = operation(A, other)
        assert isinstance(result, acc.Matrix)
        np.testing.assert_allclose(
            result.numpy(), function(A, np.asarray(other, np.asarray(other).dtype)), rtol=1e-6
        )
    with pytest.raises(ShapeError, match="do not broadcast"):
        operation(A, B)


def test_elementwise_results_over_the_budget_are_refused():
    column, row = np.zeros((2000, 1), np.float32), np.zeros((1, 2000), np.float32)
    with pytest.raises(BudgetExceededError, match="16,000,000 bytes"):
        acc.MatrixEngine(budget="8MiB").add(column, row)


def test_gradients_are_not_followed_and_inputs_are_not_touched(engine):
    a, b = torch.tensor(A, requires_grad=True), torch.tensor(B)
    assert not engine.matmul(a, b).tensor().requires_grad
    np.testing.assert_array_equal(a.detach().numpy(), A)


def test_the_operator_uses_the_default_engine():
    try:
        engine = by_plan()
        set_default_engine(engine)
        assert default_engine() is engine
        np.testing.assert_allclose((acc.Matrix(A) @ B).numpy(), A @ B, rtol=1e-4, atol=1e-5)
        reflected: Any = A @ acc.Matrix(B)  # NumPy's stubs say ndarray
        np.testing.assert_allclose(reflected.numpy(), A @ B, rtol=1e-4, atol=1e-5)
    finally:
        set_default_engine(None)
    assert default_engine() is default_engine() is not engine


def test_it_says_what_it_is(engine, caplog):
    assert "device='cpu'" in repr(engine) or engine.device.name in repr(engine)
    with caplog.at_level(logging.INFO, "accelera"):
        acc.MatrixEngine()
    assert "MatrixEngine computes on" in caplog.text


def test_the_log_level_configures_our_logger_alone_and_once(monkeypatch, own_logger):
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setenv("ACCELERA_LOG_LEVEL", "debug")
    acc.MatrixEngine()
    acc.MatrixEngine()
    assert own_logger.level == logging.DEBUG
    assert len(own_logger.handlers) == 1
    assert root.level == before[0]
    assert root.handlers == []


def test_without_the_variable_logging_is_left_alone(monkeypatch, own_logger):
    monkeypatch.delenv("ACCELERA_LOG_LEVEL", raising=False)
    handlers = list(own_logger.handlers)
    acc.MatrixEngine()
    assert own_logger.handlers == handlers
