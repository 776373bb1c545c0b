"""An example of every verb, printed at the end of its ``--help``."""

from __future__ import annotations

EXAMPLES: dict[str, str] = {
    "info": "accelera info --json",
    "plan matmul": "accelera plan matmul A.npy B.npy --budget 8GiB",
    "plan gram": "accelera plan gram A.npy --side right --budget 8GiB",
    "plan evaluate": 'accelera plan evaluate "A @ B + C" A=A.npy B=B.npy C=C.npy --budget 8GiB',
    "matmul": "accelera matmul A.npy B.npy -o C.npy --budget 8GiB",
    "gram": "accelera gram A.npy -o G.npy --budget 8GiB",
    "evaluate": 'accelera evaluate "A @ B + C" A=A.npy B=B.npy C=C.npy -o D.npy --budget 8GiB',
    "copy": "accelera copy A.npy A.zarr --dtype float32 --codec zstd",
    "transpose": "accelera transpose A.npy At.npy --budget 2GiB",
    "simulate": "accelera simulate step.parquet --budget 8GiB --policy lru",
    "sweep": "accelera sweep step.parquet --budgets 10%,25%,50%",
    "advise": "accelera advise step.parquet --budget 8GiB",
    "report": "accelera report step.parquet -o report.html --budget 8GiB",
    "estimate": "accelera estimate models.py:network --input 3x224x224 --batch 32 --mode training",
    "strategy": "accelera strategy --tasks 100 --memory-per-task 4MiB",
    "serve": "accelera serve --port 8000 --ui",
    "predict-compile": "accelera predict-compile models.py:network --budget 24GiB",
    "build-shim": "accelera build-shim",
    "run": "accelera run --budget 8GiB train.py --epochs 3",
    "trace generate": "accelera trace generate --model-type Transformer --num-layers 12 -o step.parquet",
    "trace convert": "accelera trace convert step.parquet step.csv",
    "trace stats": "accelera trace stats step.parquet",
    "trace capture": "accelera trace capture train.py -o step.parquet",
}


def epilog_of(verb: str) -> str:
    """Return the end of the help of ``verb``."""
    return f"Example: `{EXAMPLES[verb]}`"
