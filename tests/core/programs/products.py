"""Products of arrays, files and Matrices, with the core alone."""

import ml_dtypes
import numpy as np

from accelera import BudgetExceededError, DTypeError, Matrix, MatrixEngine, ShapeError

random = np.random.default_rng(0)
a, b = random.standard_normal((300, 200), "f"), random.standard_normal((200, 100), "f")
exact = a.astype(np.float64) @ b.astype(np.float64)
np.save("A.npy", a)
np.save("B.npy", b)
engine = MatrixEngine()


def check(found: object, wanted: np.ndarray = exact, tolerance: float = 1e-4) -> None:
    wide = np.result_type(wanted.dtype, np.float64)
    np.testing.assert_allclose(np.asarray(found).astype(wide), wanted, rtol=tolerance, atol=tolerance)


for left, right in ((a, b), ("A.npy", "B.npy"), (Matrix(a), b), (a, "B.npy")):
    made = engine.matmul(left, right)
    assert isinstance(made, Matrix)
    check(made)
check(Matrix(a) @ b)
check(a @ Matrix(b))
for out in (np.empty((300, 100), np.float32), Matrix.zeros((300, 100))):
    engine.matmul(a, "B.npy", out=out)
    check(out)
engine.matmul("A.npy", "B.npy", out="C.npy", budget="40MiB")
check(np.load("C.npy"))

batch = random.standard_normal((4, 1, 30, 20))
check(engine.matmul(batch, batch.swapaxes(-1, -2)), batch @ batch.swapaxes(-1, -2))

small = [np.rint(2 * each) for each in (a, b)]
for dtype in (np.float16, ml_dtypes.bfloat16, np.int16, np.int64, np.float64, np.complex64, np.complex128):
    for size in (100, 200):  # half of it, all of it
        left, right = small[0][:, :size].astype(dtype), small[1][:size].astype(dtype)
        made = engine.matmul(left, right)
        assert made.dtype == dtype
        wide = np.result_type(dtype, np.float64) if np.dtype(dtype).kind == "c" else np.float64
        check(made, left.astype(wide) @ right.astype(wide), tolerance=5e-3)

for wrong, error in (
    (lambda: engine.matmul(a, a), ShapeError),
    (lambda: engine.matmul(a, b.astype(np.float64)), DTypeError),
    (lambda: engine.matmul(a > 0, b > 0), DTypeError),
    (lambda: engine.matmul("A.npy", "B.npy", out="D.npy", budget=1000), BudgetExceededError),
):
    try:
        wrong()
    except error:
        pass
    else:
        raise AssertionError(error)
