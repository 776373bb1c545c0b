"""The first ten minutes: matrices in memory, the engine, and what a budget does."""

from __future__ import annotations

import numpy as np

from accelera import BudgetExceededError, Matrix, MatrixEngine

# Matrices are made from arrays, lists and tensors, and calculate like numbers.
random = np.random.default_rng(0)
a = Matrix(random.standard_normal((1200, 800), dtype=np.float32))
b = Matrix(random.standard_normal((800, 1000), dtype=np.float32))
c = a @ b
print(c.shape, c.dtype, c.device)

# An engine decides how: what fits is computed directly, what does not is cut into planned chunks.
engine = MatrixEngine()
d = engine.matmul(a, b)
assert np.allclose(c.numpy(), d.numpy(), rtol=1e-4, atol=1e-3)
print({name: round(value, 1) for name, value in engine.get_memory_info().items()})

# A plan says what an operation would take before anything is allocated.
plan = engine.plan(a, b, budget="64MiB")
print(plan.explain())

# What cannot fit is refused, with the smallest budget that would do.
try:
    engine.plan(a, b, budget="1MiB")
except BudgetExceededError as refused:
    print("refused:", refused)
    engine.plan(a, b, budget=refused.needed_bytes)
