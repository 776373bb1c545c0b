"""Callbacks of training frameworks: the values that their loggers receive are those of the handle."""

from __future__ import annotations

import csv
import logging
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import accelera
from accelera.callbacks import LightningCallback, TransformersCallback, log_memory
from accelera.errors import BackendMissingError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the frameworks and the packages that they import
    from lightning import pytorch as lightning
    from lightning.pytorch.loggers import CSVLogger
    from tensorboardX import SummaryWriter
    from tensorboardX.proto.event_pb2 import Event

pytestmark = pytest.mark.filterwarnings("ignore")

BUDGET_BYTES = 32 << 20
STEPS = 3
ROWS, WIDTH = 8, 512
COUNTERS = {
    "budget_bytes": "budget_bytes",
    "peak_bytes": "peak_bytes",
    "peak_tensor_bytes": "peak_tensor_bytes",
    "read_bytes": "bytes_read",
    "written_bytes": "bytes_written",
    "stall_s": "stall_s",
}
"""Fields of the report by the names of the scalars."""


class Regression(lightning.LightningModule):
    """A chain of layers, offloaded within the module that trains it."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.layers(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


class Classifier(nn.Module):
    """A chain of layers with the interface that the trainer of transformers expects."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layers(x).square().mean()}


def chain(*, planned: bool = True, offload: bool = True) -> nn.Module:
    """Return layers whose states exceed the budget, in training mode."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    inputs: dict[str, Any] = {"inputs": torch.randn(ROWS, WIDTH)} if planned else {}
    return accelera.offload(layers, BUDGET_BYTES, **inputs) if offload else layers


def expected(handle: accelera.Offloaded) -> dict[str, float]:
    report = handle.report()
    values = {f"accelera/{name}": getattr(report, field) for name, field in COUNTERS.items()}
    if handle.plan is not None:
        values["accelera/planned_peak_bytes"] = handle.plan.peak_pool_bytes
    return values


def fit(model: nn.Module, callback: Any, folder: Path) -> lightning.Trainer:
    trainer = lightning.Trainer(
        max_steps=STEPS,
        log_every_n_steps=1,
        accelerator="cpu",
        logger=CSVLogger(folder, flush_logs_every_n_steps=1),
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    dataset: Any = torch.randn(ROWS * STEPS, WIDTH)
    batches = torch.utils.data.DataLoader(dataset, ROWS)
    trainer.fit(Regression(model), batches)
    return trainer


def logged_rows(trainer: lightning.Trainer) -> list[dict[str, float]]:
    with (Path(str(trainer.log_dir)) / "metrics.csv").open(encoding="utf-8") as file:
        return [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]


def trainer_of(
    model: nn.Module, folder: Path, callbacks: list[Any] | None = None, report_to: str = "tensorboard"
) -> transformers.Trainer:
    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=ROWS,
        max_steps=STEPS,
        logging_steps=1,
        report_to=[report_to],
        disable_tqdm=True,
        save_strategy="no",
        use_cpu=True,
    )
    data = [{"x": row} for row in torch.randn(ROWS * STEPS, WIDTH)]
    return transformers.Trainer(Classifier(model), arguments, train_dataset=data, callbacks=callbacks)


def written_scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Return the scalars of the event files below a folder: values by tag and step."""
    scalars: dict[str, dict[int, float]] = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in events_of(path.read_bytes()):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    scalars.setdefault(value.tag, {})[event.step] = value.simple_value
    return scalars


def events_of(data: bytes) -> Iterator[Any]:
    """Yield the events of a file: records with a length, and two checksums of four bytes."""
    start = 0
    while start < len(data):
        (length,) = struct.unpack_from("<Q", data, start)
        yield Event.FromString(data[start + 12 : start + 12 + length])
        start += 16 + length


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the callbacks logged."""
    return [record.getMessage() for record in caplog.records if record.name == "accelera.callbacks"]


def compare(logged: dict[str, float], values: dict[str, float]) -> None:
    """Compare the values of the last step with those after the training, when more transfers have ended."""
    logged, values = single(logged), single(values)
    running = {f"accelera/{name}" for name in ("read_bytes", "written_bytes", "stall_s")}
    for name, value in values.items():
        if name in running:
            assert 0 < logged[name] <= value, name
        else:
            assert logged[name] == value, name


def single(values: dict[str, float]) -> dict[str, float]:
    """Return values in single precision, as event files and Lightning's metrics store them."""
    return {name: float(np.float32(value)) for name, value in values.items()}


@pytest.mark.parametrize("passes_handle", [True, False])
def test_lightning_logger_receives_the_report(passes_handle: bool, tmp_path: Path) -> None:
    model = chain()
    handle = accelera.offloaded(model)
    trainer = fit(model, LightningCallback(handle if passes_handle else None), tmp_path)
    rows = logged_rows(trainer)
    assert len(rows) == STEPS
    compare(rows[-1], expected(handle))
    assert trainer.callback_metrics["accelera/peak_bytes"] == handle.report().peak_bytes
    assert all(row["accelera/peak_bytes"] <= handle.plan.peak_pool_bytes <= BUDGET_BYTES for row in rows)
    reads = [row["accelera/read_bytes"] for row in rows]
    assert reads == sorted(reads)


def test_lightning_logger_receives_the_plan(tmp_path: Path) -> None:
    model = chain()
    trainer = fit(model, LightningCallback(), tmp_path)
    hyperparameters = trainer.logger.experiment.hparams
    plan = accelera.offloaded(model).plan
    assert hyperparameters["accelera/plan"] == repr(plan)
    assert hyperparameters["accelera/budget_bytes"] == BUDGET_BYTES


def test_lightning_callback_logs_plan_and_peaks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = chain()
    with caplog.at_level(logging.INFO, "accelera.callbacks"):
        fit(model, LightningCallback(), tmp_path)
    started, ended = messages(caplog)
    handle = accelera.offloaded(model)
    assert str(handle.plan) in started
    blocks = next(line for line in ended.splitlines() if line.startswith("blocks"))
    sizes = (handle.plan.peak_pool_bytes, handle.report().peak_bytes)
    assert all(accelera.format_bytes(size) in blocks for size in sizes)
    assert accelera.format_bytes(BUDGET_BYTES) in ended


def test_model_without_plan_logs_measured_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = chain(planned=False)
    with caplog.at_level(logging.INFO, "accelera.callbacks"):
        trainer = fit(model, LightningCallback(), tmp_path)
    assert "without inputs=" in messages(caplog)[0]
    row = logged_rows(trainer)[-1]
    assert row["accelera/budget_bytes"] == BUDGET_BYTES
    assert 0 < row["accelera/peak_bytes"] <= BUDGET_BYTES
    assert "accelera/planned_peak_bytes" not in row


def test_ordinary_model_logs_the_process_account(tmp_path: Path) -> None:
    with accelera.budget("1GiB"):
        row = logged_rows(fit(chain(offload=False), LightningCallback(), tmp_path))[-1]
    assert row["accelera/budget_bytes"] == 1 << 30
    assert row["accelera/used_bytes"] >= 0
    assert "accelera/peak_bytes" not in row


@pytest.mark.parametrize("passes_handle", [True, False])
def test_transformers_reporter_receives_the_report(passes_handle: bool, tmp_path: Path) -> None:
    model = chain()
    handle = accelera.offloaded(model)
    trainer = trainer_of(model, tmp_path)
    TransformersCallback(handle if passes_handle else None).add_to(trainer)
    metrics = trainer.train().metrics
    scalars = written_scalars(tmp_path)
    compare({name: scalars[f"train/{name}"][STEPS] for name in expected(handle)}, expected(handle))
    compare(metrics, expected(handle))
    peaks = scalars["train/accelera/peak_bytes"]
    assert sorted(peaks) == [1, 2, 3]
    assert max(peaks.values()) <= handle.plan.peak_pool_bytes <= BUDGET_BYTES


def test_transformers_callback_warns_behind_reporters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = trainer_of(chain(), tmp_path, [TransformersCallback()])
    with caplog.at_level(logging.WARNING, "accelera.callbacks"):
        metrics = trainer.train().metrics
    assert "tensorboard run before this callback" in messages(caplog)[0]
    assert metrics["accelera/budget_bytes"] == BUDGET_BYTES
    assert "train/accelera/peak_bytes" not in written_scalars(tmp_path)


def test_transformers_callback_is_added_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = TransformersCallback()
    model = chain()
    trainer = trainer_of(model, tmp_path, [callback], report_to="none")
    callback.add_to(trainer)
    callback.add_to(trainer)
    assert trainer.callback_handler.callbacks.count(callback) == 1
    assert trainer.callback_handler.callbacks[0] is callback
    with caplog.at_level(logging.INFO, "accelera.callbacks"):
        trainer.train()
    started, ended = messages(caplog)
    assert str(accelera.offloaded(model).plan) in started
    assert "other tensors" in ended


def test_log_memory_writes_event_files(tmp_path: Path) -> None:
    model = chain()
    handle = accelera.offloaded(model)
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(2):
            model(torch.randn(ROWS, WIDTH)).square().mean().backward()
            handle.cache.flush()  # transfers in flight are not counted yet
            log_memory(writer, handle, step)
    scalars = written_scalars(tmp_path)
    assert {name: values[1] for name, values in scalars.items()} == single(expected(handle))


def test_log_memory_without_handle_writes_components(tmp_path: Path) -> None:
    class Written(dict[str, float]):
        def add_scalar(self, tag: str, value: float, step: int | None) -> None:
            self[tag] = value

    writer = Written()
    model = chain()
    log_memory(writer)
    assert writer["accelera/used_bytes/offload"] >= BUDGET_BYTES
    assert writer["accelera/used_bytes"] >= writer["accelera/used_bytes/offload"]
    accelera.offloaded(model).close()


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [("LightningCallback", "lightning", "lightning"), ("TransformersCallback", "transformers", "llm")],
)
def test_absent_package_is_named(name: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> Any:
        raise ModuleNotFoundError(name=module)

    monkeypatch.setattr("accelera._lazily.importlib.import_module", absent)
    monkeypatch.delitem(vars(accelera.callbacks), name, raising=False)
    callback = getattr(accelera.callbacks, name)
    message = rf"\[{name}\] needs {module}; pip install 'accelera-engine\[{extra}\]'"
    with pytest.raises(BackendMissingError, match=message):
        callback()
