"""Programs that tools/install_check.py runs in the environments of users."""

from __future__ import annotations

FILES = """
import numpy as np
random = np.random.default_rng(0)
for name, shape in (("A", (300, 200)), ("B", (200, 100))):
    np.save(f"{name}.npy", random.standard_normal(shape, np.float32))
"""
COMPARISON = """
import numpy as np
a, b, c = (np.load(f"{name}.npy") for name in "ABC")
np.testing.assert_allclose(c, a.astype(float) @ b.astype(float), rtol=1e-4, atol=1e-4)
"""
TRAINING = """
import numpy as np
import accelera.tensora as ts
x = ts.asarray(np.random.default_rng(0).standard_normal((64, 8), np.float32))
model = ts.nn.Linear(8, 1)
optimizer = ts.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(3):
    optimizer.zero_grad()
    loss = ts.mean(ts.square(model(x) - ts.sum(x, axis=1, keepdims=True)))
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
assert losses == sorted(losses, reverse=True), losses
"""
NOTHING_OPTIONAL = """
import sys
import accelera
accelera.MatrixEngine().matmul(np.ones((9, 9)), np.ones((9, 9)))
from accelera._extras import EXTRAS
optional = {module for modules in EXTRAS.values() for module in modules} & sys.modules.keys()
assert not optional, f"imported without need: {sorted(optional)}"
"""
MODULES_OF_EXTRA = """
import importlib
from accelera._extras import EXTRAS
for module in EXTRAS["{extra}"]:
    importlib.import_module(module)
"""
TRACE = "import accelera\ntrace = accelera.generate_synthetic_trace('Transformer', num_layers=1)\n"
COPY = """
import numpy as np
from accelera import MatrixEngine
from accelera.stores import open_store
array = np.arange(12.0).reshape(3, 4)
np.save("A.npy", array)
MatrixEngine().copy("A.npy", out="{path}")
np.testing.assert_array_equal(open_store("{path}").to_numpy(), array)
"""
USES = {
    "trace": TRACE
    + "from accelera.trace import read_trace, write_trace\n"
    + "write_trace(trace, 't.parquet')\nassert len(read_trace('t.parquet')) == len(trace.to_pandas())",
    "zarr": COPY.format(path="A.zarr"),
    "hdf5": COPY.format(path="A.h5::group/A"),
    "plot": TRACE + "accelera.sweep(trace, ['lru'], ['50%']).plot('sweep.png')",
    "learned": TRACE
    + "from accelera.simulator import score, train_scorer\n"
    + "score(trace, 'learned', model=train_scorer([trace]))",
    "metrics": "from prometheus_client import CollectorRegistry\n"
    "from accelera.execution import OpenTelemetryObserver, PrometheusObserver\n"
    "PrometheusObserver(CollectorRegistry()), OpenTelemetryObserver()",
    "service": "from accelera.service import create_app\nassert create_app().openapi()['paths']",
    "ui": "from accelera.service import CopilotClient\nimport accelera.ui\n"
    "CopilotClient('http://127.0.0.1:1')",
    "torch": "import accelera, torch\n"
    "with accelera.intercepted(budget='64MiB'):\n"
    "    assert (torch.ones(9, 9) @ torch.ones(9, 9)).sum() == 729",
}
"""A program for each extra; an extra without one is checked by importing its modules."""
