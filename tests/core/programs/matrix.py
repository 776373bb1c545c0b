"""A Matrix over NumPy, with the core alone."""

import numpy as np

from accelera import BackendMissingError, ChunkIterator, DTypeError, Matrix, RowChunking, ShapeError

m = Matrix([[1.0, 2.0], [3.0, 4.0]])
assert (m.dtype, str(m.device), str(m.storage_device)) == (np.float32, "cpu", "cpu")
assert (m.sum(), m.mean(), m.max(), m.min()) == (10, 2.5, 4, 1)
assert m.sum(0, keepdim=True).shape == (1, 2)
assert (m.ndim, len(m), m.memory_size()) == (2, 2, 16)
assert repr(m) == "Matrix(shape=(2, 2), dtype=float32, device=cpu)"

assert m.T.numpy().tolist() == [[1, 3], [2, 4]]
assert m[0].numpy().tolist() == [1, 2]
assert ((m + 1) * 2 / 4 - m).numpy().tolist() == [[0, -0.5], [-1, -1.5]]
assert (abs(-m) == m).numpy().all()
assert (m > 2).numpy().tolist() == [[False, False], [True, True]]
assert bool(Matrix([1]) == 1)
m[0] = Matrix([9.0, 9.0])
assert m.numpy()[0].tolist() == [9, 9]

assert (1 / m).dtype == np.float32
assert (Matrix([1, 2]) + Matrix([0.5, 1])).dtype == np.float32
assert (Matrix([3]) / 2).numpy() == 1.5

array = np.zeros(3, np.float32)
assert np.shares_memory(Matrix(array).numpy(), array)
assert not np.shares_memory(Matrix(array).clone().numpy(), array)
assert Matrix.eye(2, 3).shape == (2, 3)
assert Matrix.ones((2,), dtype="int8").dtype == np.int8
assert 0 <= Matrix.random((9,)).min() < 1
assert Matrix.randn((3, 3)).to_gpu().to_cpu().shape == (3, 3)
np.random.seed(1)
first = Matrix.randn((3,)).numpy()
np.random.seed(1)
assert (Matrix.randn((3,)).numpy() == first).all()
assert [chunk.shape for chunk in ChunkIterator(m, RowChunking(), 1)] == [(1, 2), (1, 2)]

for refused, expected in (
    (m.tensor, BackendMissingError),
    (lambda: m.to_gpu("cuda"), BackendMissingError),
    (lambda: Matrix([1], device="cuda:0"), BackendMissingError),
    (lambda: m + Matrix([1, 2, 3]), ShapeError),
    (lambda: Matrix(["a"]), DTypeError),
    (lambda: Matrix([[1], [2, 3]]), DTypeError),
):
    try:
        refused()
    except expected:
        pass
    else:
        raise AssertionError(refused)
