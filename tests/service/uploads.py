"""Files that tests upload."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from accelera.simulator import generate_synthetic_trace
from accelera.trace import write_trace


def parquet_of(model_type: str, num_layers: int, **options: Any) -> bytes:
    """Return the trace of a synthetic model as a Parquet file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.parquet"
        write_trace(generate_synthetic_trace(model_type, num_layers, **options), path, "parquet")
        return path.read_bytes()
