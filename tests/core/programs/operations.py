"""Expressions, reductions, Gram matrices, transposes and copies, with the core alone."""

import numpy as np

from accelera import Matrix, MatrixEngine, lazy

a = np.random.default_rng(0).standard_normal((120, 80), np.float32)
np.save("A.npy", a)
engine = MatrixEngine()

for source in (a, "A.npy", Matrix(a)):
    assert abs(engine.sum(source) - a.sum(dtype=np.float64)) < 1e-2
    assert engine.argmax(source) == a.argmax()
    assert engine.max(source) == a.max()
    np.testing.assert_allclose(engine.mean(source, 0).numpy(), a.mean(0), atol=1e-6)
    np.testing.assert_allclose(engine.norm(source), np.linalg.norm(a), rtol=1e-5)
    np.testing.assert_allclose(engine.gram(source).numpy(), a.T @ a, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(engine.transpose(source).numpy(), a.T)
    np.testing.assert_array_equal(engine.copy(source, dtype="float64").numpy(), a.astype(np.float64))
    np.testing.assert_array_equal(engine.add(source, a).numpy(), a + a)
    np.testing.assert_array_equal(engine.divide(source, [2.0]).numpy(), a / 2)

engine.evaluate(np.sqrt(abs(engine.array("A.npy"))) + 1, "root.npy")
np.testing.assert_allclose(np.load("root.npy"), np.sqrt(abs(a)) + 1, rtol=1e-6)
np.testing.assert_allclose(engine.evaluate(lazy(a).sum(1)).numpy(), a.sum(1), atol=1e-4)
for name in ("A.bin", "A.safetensors::a", "At.npy"):
    engine.copy("A.npy", name)
assert "peak" in engine.plan("A.npy", np.zeros((80, 9), np.float32)).explain()
