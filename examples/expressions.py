"""Whole expressions, reductions, Gram matrices and conversions, each in one pass over the files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from accelera import MatrixEngine

random = np.random.default_rng(3)
engine = MatrixEngine("cpu", budget="64MiB")

with tempfile.TemporaryDirectory() as name:
    x, y, z = (Path(name) / f"{letter}.npy" for letter in "xyz")
    np.save(x, random.standard_normal((800, 600), dtype=np.float32))
    np.save(y, random.standard_normal((800, 600), dtype=np.float32))

    # Operands of an expression are named; arithmetic and NumPy's functions build it; nothing is read yet.
    left, right = engine.array(x), engine.array(y)
    expression = np.sqrt(left * left + right * right) + 1
    print(engine.plan_evaluate(expression, z).explain())

    # One pass: each tile of x and y is read once, and each of z written once.
    engine.evaluate(expression, z)
    assert np.allclose(np.load(z), np.hypot(np.load(x), np.load(y)) + 1, rtol=1e-5)
    print("bytes read:", dict(engine.last_report.bytes_read))

    # Reductions, of files or of whole expressions.
    print("mean", engine.mean(x), "largest", engine.max(z), "at", engine.argmax(z))
    deviations = engine.evaluate((left * left).mean(axis=0)).numpy()
    assert np.allclose(deviations, (np.load(x) ** 2).mean(axis=0), rtol=1e-4)

    # The Gram matrix costs half of x.T @ x.
    engine.gram(x, out=Path(name) / "gram.npy")
    assert np.allclose(np.load(Path(name) / "gram.npy"), np.load(x).T @ np.load(x), atol=1e-2)

    # Another format or element type; a transposed file, where somebody else needs one.
    engine.copy(x, Path(name) / "x64.raw", dtype="float64")
    engine.transpose(x, out=Path(name) / "xt.npy")
    assert np.array_equal(np.load(Path(name) / "xt.npy"), np.load(x).T)
