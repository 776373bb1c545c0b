"""Write the seeds of every target: ``python -m tests.fuzz.make_corpus``. Regressions stay as they are."""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from accelera import tensora
from accelera.engine import MatrixEngine, lazy
from accelera.simulator import advise, generate_synthetic_trace
from accelera.tensora import models
from accelera.tensora.serialization import save_checkpoint, save_file, save_model
from accelera.trace import write_trace
from tests.fuzz.harness import CORPUS, SEPARATOR
from tests.fuzz.targets.plans import BUDGET, journal_seed, with_checksums
from tests.trace.damage import ROWS, SNAPSHOT
from tests.trace.examples import step_by_step

Seeds = dict[str, dict[str, bytes]]
"""Contents by target and file name."""


def _file(write: Callable[[Path], Any], suffix: str) -> bytes:
    """Return the bytes that ``write`` puts into a new file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"seed{suffix}"
        write(path)
        return path.read_bytes()


def _joined(*parts: bytes) -> bytes:
    return SEPARATOR.join(parts)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def trace_seeds() -> Seeds:
    """Return one file of every format, and tables with few and many columns."""
    trace = step_by_step()

    def written(suffix: str) -> bytes:
        return _file(lambda path: write_trace(trace, path), suffix)

    return {
        "trace_json": {"columns": written(".json"), "rows": _json(ROWS), "object": _json({"trace": ROWS})},
        "trace_csv": {
            "full": written(".csv"),
            "two-columns": b"tensor_id,size_mb\nQ_0,16\nK_0,0.5\nQ_0,16\n",
            "quoted": b'tensor_id,size_bytes,kind,step,op\n"a,b",4,read,0,"x\ny"\nc,8,write,1,\n',
        },
        "trace_libcachesim_csv": {
            "header": written(".libcachesim.csv"),
            "plain": b"1,7,100,3\n2,8,50,-1\n3,7,100,-1\n",
        },
        "trace_oracle_general": {"records": written(".oracleGeneral")},
        "trace_parquet": {"full": written(".parquet")},
        "trace_torch_pickle": {
            **{f"protocol-{version}": pickle.dumps(SNAPSHOT, version) for version in (0, 2, 4, 5)},
            "memo": b"(dp0\nVdevice_traces\np1\n(lp2\n(lp3\nas.",
        },
        "trace_path": {"csv": b"a.csv", "home": b"~root/a.json", "long": b"a" * 300 + b".parquet"},
        "trace_torch_json": {"snapshot": _json(SNAPSHOT)},
    }


def _npy(array: np.ndarray[Any, Any], version: tuple[int, int] = (1, 0)) -> bytes:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.lib.format.write_array(file, array, version)

    return _file(write, ".npy")


def _hdf5(**options: Any) -> bytes:
    import h5py

    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=np.arange(12, dtype="<f4").reshape(3, 4), **options)

    return _file(write, ".h5")


def _zarr(version: Any, **options: Any) -> bytes:
    import zarr

    with tempfile.TemporaryDirectory() as folder:
        array = zarr.create_array(
            store=folder, shape=(4, 3), chunks=(2, 3), dtype="float32", zarr_format=version, **options
        )
        array[...] = np.arange(12, dtype=np.float32).reshape(4, 3)
        metadata, chunk = ("zarr.json", "c/0/0") if version == 3 else (".zarray", "0.0")
        return _joined(Path(folder, metadata).read_bytes(), Path(folder, chunk).read_bytes())


def _zarr_group(version: Any) -> bytes:
    import zarr

    with tempfile.TemporaryDirectory() as folder:
        group = zarr.open_group(folder, mode="w", zarr_format=version)
        group.create_array("a.zarr", shape=(2, 3), dtype="float32")
        zarr.consolidate_metadata(folder)
        name = "zarr.json" if version == 3 else ".zmetadata"
        content = Path(folder, name).read_bytes()
    return content if version == 3 else _joined(b"", content)


def array_seeds() -> Seeds:
    """Return small arrays in every format."""
    numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = {"x": numbers, "y": np.arange(3), "z": np.zeros((2, 0), np.float16)}
    return {
        "array_npy": {
            "c-order": _npy(numbers),
            "f-order": _npy(np.asfortranarray(numbers.astype(">i2"))),
            "version-2": _npy(numbers, (2, 0)),
            "scalar": _npy(np.array(1 + 2j)),
            "records": _npy(np.zeros(2, [("a", "<i4"), ("b", "<f8")])),
        },
        "array_safetensors": {
            "one": _file(lambda path: _save_numpy({"x": numbers}, path), ".safetensors"),
            "three": _file(lambda path: _save_numpy(tensors, path), ".safetensors"),
        },
        "array_hdf5": {
            "contiguous": _hdf5(),
            "deflate": _hdf5(chunks=(2, 2), compression="gzip", shuffle=True, fletcher32=True),
        },
        "array_zarr_v3": {
            "plain": _zarr(3, compressors=None),
            "zstd": _zarr(3),
            "shards": _zarr(3, shards=(4, 3)),
        },
        "array_zarr_v2": {"plain": _zarr(2, compressors=None), "compressed": _zarr(2)},
        "array_zarr_group": {"v3": _zarr_group(3), "v2": _zarr_group(2)},
        "array_raw": {
            "matrix": _joined(b"4x6", b"float32", b"0", b"96"),
            "offset": _joined(b"2x3", b">i2", b"8", b"20"),
            "bfloat16": _joined(b"3", b"bfloat16", b"1", b"7"),
        },
        "array_key": {str(number): name for number, name in enumerate((b"x", b"group/x", b"y.z", b"../a"))},
        "array_path": {
            str(number): name
            for number, name in enumerate(
                (b"a.npy", b"x.h5::group/name", b"x.safetensors::a.b", b"~/a.zarr", b"a.npz", b"b::c::d")
            )
        },
    }


def _save_numpy(tensors: dict[str, Any], path: Path) -> None:
    from safetensors.numpy import save_file as save

    save(tensors, path)


def plan_seeds() -> Seeds:
    """Return plans of the operations that the targets run, journals, advice and rates."""
    a, b = np.zeros((32, 24), np.float32), np.zeros((24, 16), np.float32)
    engine = MatrixEngine()
    plans = {
        "plan_matmul": engine.plan(a, b, budget=BUDGET),
        "plan_gram": engine.plan_gram(a, budget=BUDGET),
        "plan_elementwise": engine.plan_evaluate(lazy(a) + 1.0, budget=BUDGET),
        "plan_stages": engine.plan_evaluate((lazy(a) @ lazy(b)) + 1.0, budget=BUDGET),
        "plan_transpose": engine.plan_evaluate(lazy(a).transpose((1, 0)), budget=BUDGET),
    }
    seeds = {name: {"plan": _file(plan.save, ".json")} for name, plan in plans.items()}
    # A transpose is planned as an evaluation, and names its own operation.
    transposed = seeds["plan_transpose"]["plan"].replace(b'"evaluate"', b'"transpose"')
    seeds["plan_transpose"]["plan"] = transposed
    everything = {name: each["plan"] for name, each in seeds.items()}
    advice = advise(generate_synthetic_trace(num_layers=1), "50%")
    rates = {
        "format": 1,
        "machine": "MACHINE",
        "begin_s": {"cpu": 0.5},
        "functions": {
            "f": {
                "batches": 2,
                "seconds": 1.5,
                "since": {"cpu": 1.0},
                "rates": {"cpu": [True, 2, 0, 4, 1.0, 1.0, 1.0, 1.0]},
            }
        },
    }
    return seeds | {
        "plan_file": everything,
        "journal": {"lines": with_checksums(journal_seed())},
        "journal_with_checksums": {"lines": journal_seed()},
        "advice": {"advice": advice.to_json().encode()},
        "measured_rates": {"rates": _json(rates)},
    }


def tensora_seeds() -> Seeds:
    """Return files of tensors, checkpoints and language models of one narrow layer."""
    from tests.fuzz.targets.tensora_files import _parts

    linear = tensora.nn.Linear(3, 2)
    tensors = {"a": tensora.ones((2, 3)), "b": tensora.arange(3), "c": tensora.zeros((2,), dtype="bfloat16")}
    whole = _file(lambda path: save_checkpoint(path, extra={"epoch": 3}, **_parts()), ".safetensors")
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    metadata = header.pop("__metadata__")
    text = _json(header)
    unsigned = _joined(
        metadata["state"].encode(), len(text).to_bytes(8, "little") + text + whole[8 + length :]
    )
    gpt2 = {"vocab_size": 7, "n_positions": 5, "n_embd": 4, "n_layer": 1, "n_head": 2}
    llama = {
        "vocab_size": 7,
        "max_position_embeddings": 5,
        "hidden_size": 4,
        "intermediate_size": 6,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }
    index = _json({"weight_map": {"x": "part.safetensors"}})
    seeds: Seeds = {
        "tensora_tensors": {
            "three": _file(lambda path: save_file(tensors, path, {"k": "v"}), ".safetensors")
        },
        "tensora_model_file": {"linear": _file(lambda path: save_model(linear, path), ".safetensors")},
        "tensora_checkpoint": {"training": whole},
        "tensora_checkpoint_signed": {"training": unsigned},
        "tensora_model_config": {"gpt2": _json(gpt2), "llama": _json(llama)},
    }
    kind: Any
    made: Any
    for name, config, kind, made in (
        ("tensora_gpt2", gpt2, models.GPT2, models.GPT2Config),
        ("tensora_llama", llama, models.Llama, models.LlamaConfig),
    ):
        model = kind(made.from_dict(config))
        weights = _file(lambda path, model=model: save_model(model, path), ".safetensors")
        seeds[name] = {
            "whole": _joined(_json(config), weights),
            "parts": _joined(_json(config), weights, index),
        }
    return seeds


def configuration_seeds() -> Seeds:
    """Return limits, tokens, configurations of models and an index of a checkpoint."""
    gpt2 = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "vocab_size": 50,
        "torch_dtype": "float32",
    }
    llama = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "num_attention_heads": 2,
    }
    tensors = _file(lambda path: _save_numpy({"w": np.zeros((2, 3), np.float32)}, path), ".safetensors")
    index = _json({"metadata": {"total_size": 24}, "weight_map": {"w": "model-1.safetensors"}})
    return {
        "service_limits": {"limits": _json({"job_s": 1200.5, "runs": 5, "requests_per_minute": None})},
        "service_token": {"token": b"0123456789abcdefXYZ\n"},
        "model_config": {"gpt2": _json(gpt2), "llama": _json(llama)},
        "sharded_checkpoint": {"one": _joined(index, tensors)},
    }


def program_seeds() -> Seeds:
    """Return programs and answers of models."""
    from accelera.simulator.scorers.learned import train_scorer

    program = (
        b"import torch\n\ndef f(x, *rest, k=3):\n    y = torch.relu(x @ x) + 1\n    for i in range(4):\n"
        b"        y = y * 2 if i else torch.sum(y)\n    while k:\n        k -= 1\n"
        b"    return [z for z in y]\n\n"
        b"class C:\n    async def g(self):\n        match self:\n"
        b"            case [a, *_]: return lambda b: a\n"
    )
    cpp = b"#include <vector>\nfor (int i = 0; i < n; ++i) { if (a[i] > 0) sum += a[i] * b[i]; }\n"
    model = train_scorer([generate_synthetic_trace(num_layers=1)], rounds=1).encode()
    return {
        "program_python": {"program": program},
        "program_other_language": {"cpp": cpp},
        "language_model_ranking": {"ranking": b"Here: [3, 1, 0, 2].", "short": b"[0,1]"},
        "scorer_model": {"one-tree": model},
    }


def request_seeds() -> Seeds:
    """Return a body for every operation that takes one, and replies of every kind."""
    from accelera.service import create_app

    schema = create_app().openapi()
    bodies = {}
    for path, operations in sorted(schema["paths"].items()):
        for method, operation in sorted(operations.items()):
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            example = _example(schema, content.get("schema", {}))
            name = f"{method}{path.replace('/', '-').replace('{', '').replace('}', '')}"
            bodies[name] = _joined(
                f"{method.upper()} {path.strip('/')}".encode(), _json(example) if content else b""
            )
    job = {"id": "a", "kind": "sweep", "state": "done", "created_s": 1.5, "sequence": 3, "progress": 1.0}
    trace = {"digest": "ab", "name": "t", "created_s": 1.0, "accesses": 3, "bytes": 12}
    return {
        "http_body": bodies,
        "http_upload": {
            "csv": _joined(b"t.csv", b"tensor_id,size_mb\nQ_0,16\nK_0,0.5\n"),
            "json": _joined(b"t.json", _json([{"tensor_id": "Q_0", "size_mb": 16}])),
        },
        "http_reply": {
            "job": _joined(b"200 0", _json(job)),
            "jobs": _joined(b"200 1", _json({"jobs": [job]})),
            "trace": _joined(b"200 2", _json(trace)),
            "traces": _joined(b"200 3", _json({"traces": [trace]})),
            "runs": _joined(b"200 5", _json({"runs": [{"id": "r", "kind": "fit", "created_s": 2.0}]})),
            "result": _joined(b"200 6", _json({"rows": [1, 2]})),
            "accepted": _joined(b"202 7", _json(job)),
            "stored": _joined(b"200 7 location", _json(job)),
            "events": _joined(b"200 8", b"id: 3\ndata: " + _json(job) + b"\n\n: ping\n\n"),
            "problem": _joined(b"422 0", _json({"status": 422, "detail": "no", "errors": [{"x": 1}]})),
        },
    }


def _example(schema: dict[str, Any], node: dict[str, Any]) -> Any:
    """Return the example of a body, its reference followed; the first of several forms."""
    while "$ref" in node or "oneOf" in node or "anyOf" in node:
        if "$ref" in node:
            node = schema["components"]["schemas"][node["$ref"].rpartition("/")[2]]
        else:
            node = (node.get("oneOf") or node["anyOf"])[0]
    return node.get("example", (node.get("examples") or [{}])[0])


TEXTS: dict[str, tuple[str, ...]] = {
    "store_url": (
        "https://user:word@host/a/A.npy?key=1",
        "zip://A.npy::https://host/x.zip",
        "s3://b/m.safetensors::w",
    ),
    "size_text": ("512MiB", "1.5 GB", "4096", "2k", ".5 PiB", "1e3kb"),
    "share_text": ("50%", "0.5", "512MiB", "1048576", "1.0"),
    "fraction_text": ("80%", "0.8", "1e-3"),
    "budget_text": ("2GB", "25%", "0.5", "100"),
    "hierarchy_text": ("laptop", "gpu-24gb", "512MiB", "50%", "copilot", "1e3"),
    "policy_name": ("lru", "belady", "wtinylfu", "s3fifo"),
    "dtype_name": ("float32", "bfloat16", "<f4", "complex64", "i2", "4f8", "f4,i2", "datetime64[ns]"),
    "device_name": ("cpu", "cuda:1", "sim:512MiB", "sim", "xpu:0", "mps"),
    "strategy_name": ("auto", "cpu", "hybrid", "GPU "),
    "chunking_name": ("row", "tile", "adaptive"),
    "codec_text": ("zstd:9", "gzip", "blosc-lz4:5", "none", "blosc-zstd"),
    "command_line_axes": ("4096x1024", "1,0", "512x512x3", "-1,0"),
}


VALUES = {
    "budget": "50%",
    "max_chunk_size": "8",
    "device": "cpu",
    "memory_threshold_gb": "0.5",
    "spill": "~/spill",
    "llm_path": "~root/model",
    "cache": "cache/x",
    "workers": "2",
    "copilot_url": "http://127.0.0.1:8000",
    "copilot_token": "0123456789abcdef",
    "log_level": "debug",
}
"""Texts of the settings that have no usual value."""


def text_seeds() -> Seeds:
    """Return texts as users type them, and a value for every setting."""
    from accelera.settings import SETTINGS

    seeds: Seeds = {
        name: {str(number): text.encode() for number, text in enumerate(texts)}
        for name, texts in TEXTS.items()
    }
    seeds["setting_value"] = {
        setting.name: _joined(setting.name.encode(), str(setting.default or VALUES[setting.name]).encode())
        for setting in SETTINGS
    }
    return seeds


FAMILIES = (
    trace_seeds,
    array_seeds,
    plan_seeds,
    tensora_seeds,
    configuration_seeds,
    program_seeds,
    request_seeds,
    text_seeds,
)


def main() -> None:
    """Write all seeds."""
    for family in FAMILIES:
        for target, files in family().items():
            folder = CORPUS / target
            folder.mkdir(parents=True, exist_ok=True)
            for name, data in files.items():
                (folder / f"seed-{name}").write_bytes(data)


if __name__ == "__main__":
    main()
