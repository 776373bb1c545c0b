"""Memory scalars: the values, plan and peaks that the callbacks log, and ``log_memory`` for a bare writer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol, final

from accelera._text_table import text_table
from accelera.errors import DeviceError
from accelera.memory import budget_report
from accelera.units import format_bytes

if TYPE_CHECKING:
    import torch

    from accelera.offload import Offloaded, OffloadPlan

LOGGER = logging.getLogger("accelera.callbacks")

PREFIX = "accelera/"
"""Start of the name of every logged value."""


class ScalarWriter(Protocol):
    """A writer of TensorBoard event files: of PyTorch, tensorboardX, or another with this method."""

    def add_scalar(self, tag: str, value: float, step: int | None, /) -> Any:
        """Write one value of a step."""


def log_memory(writer: ScalarWriter, handle: Offloaded | None = None, step: int | None = None) -> None:
    """Write the memory of an offloaded model as scalars.

    The tags are those of the callbacks: ``accelera/peak_bytes``, ``accelera/budget_bytes`` and so on.

    Parameters
    ----------
    writer
        A ``SummaryWriter`` of ``torch.utils.tensorboard`` or tensorboardX, or any object with its method
        ``add_scalar(tag, value, step)``.
    handle
        The handle of the model, ``accelera.offloaded(model)``. None writes the account of the process, see
        ``accelera.budget_report``.
    step
        Number of the training step; None leaves it to the writer.
    """
    for tag, value in memory_scalars(handle).items():
        writer.add_scalar(tag, value, step)


def memory_scalars(handle: Offloaded | None) -> dict[str, float]:
    """Return the values to log of an offloaded model, or of the process if ``handle`` is None."""
    values = _process_values() if handle is None else _model_values(handle)
    return {PREFIX + name: float(value) for name, value in values.items()}


def _model_values(handle: Offloaded) -> dict[str, float]:
    report = handle.report()
    values = {
        "budget_bytes": report.budget_bytes,
        "peak_bytes": report.peak_bytes,
        "peak_tensor_bytes": report.peak_tensor_bytes,
        "read_bytes": report.bytes_read,
        "written_bytes": report.bytes_written,
        "stall_s": report.stall_s,
    }
    return values if handle.plan is None else {**values, "planned_peak_bytes": handle.plan.peak_pool_bytes}


def _process_values() -> dict[str, float]:
    usage = budget_report()
    values: dict[str, float] = {"used_bytes": usage.used_bytes}
    for component, nbytes in usage.component_bytes.items():
        values[f"used_bytes/{component.replace(' ', '_')}"] = nbytes
    return values if usage.limit_bytes is None else {**values, "budget_bytes": usage.limit_bytes}


@final
class MemoryLog:
    """The handle of one training run, and the texts that a callback logs at its start and end.

    Parameters
    ----------
    handle
        The handle that the caller of the callback passed; None: ``start`` looks for one in the model.
    """

    def __init__(self, handle: Offloaded | None) -> None:
        self.handle = handle
        self._is_searched = handle is None

    def start(self, model: torch.nn.Module) -> None:
        """Find the handle if the caller passed none, and log the plan."""
        if self._is_searched:
            self.handle = handle_of(model)
        if LOGGER.isEnabledFor(logging.INFO):  # the text of a plan measures the speed of the disk
            LOGGER.info("Training starts\n%s", self._start_text())

    def finish(self) -> None:
        """Log the planned and measured peaks."""
        text = str(budget_report()) if self.handle is None else peak_table(self.handle)
        LOGGER.info("Training ended\n%s", text)

    def facts(self) -> dict[str, Any]:
        """Return the plan as hyperparameters: one line of text, and its sizes in bytes."""
        if self.handle is None or self.handle.plan is None:
            return {}
        plan = self.handle.plan
        values = {
            "plan": repr(plan),
            "budget_bytes": plan.budget_bytes,
            "planned_peak_bytes": plan.peak_pool_bytes,
        }
        return {PREFIX + name: value for name, value in values.items()}

    def _start_text(self) -> str:
        if self.handle is None:
            return str(budget_report())
        if self.handle.plan is None:
            return f"{self.handle!r}\nno plan: the model was offloaded without inputs="
        return str(self.handle.plan)


def handle_of(model: torch.nn.Module) -> Offloaded | None:
    """Return the handle of a model, or of the child that is offloaded; None if the model is not offloaded."""
    whole = _handle_or_none(model)
    if whole is None or whole.plan is not None:
        return whole
    for child in model.children():
        part = _handle_or_none(child)
        # A module around the offloaded one has its caches, but not its plan.
        if part is not None and part.plan is not None and part.caches == whole.caches:
            return part
    return whole


def _handle_or_none(model: torch.nn.Module) -> Offloaded | None:
    from accelera.offload import offloaded  # loads torch, which a process account does not need

    try:
        return offloaded(model)
    except DeviceError:
        return None


def peak_table(handle: Offloaded) -> str:
    """Return a table of planned and measured peaks; a model without a plan has measured ones only."""
    report = handle.report()
    blocks, tensors = ("-", "-") if handle.plan is None else _planned_sizes(handle.plan)
    rows = [
        ("peak", "planned", "measured"),
        ("blocks", blocks, format_bytes(report.peak_bytes)),
        ("other tensors", tensors, format_bytes(report.peak_tensor_bytes)),
        ("budget", format_bytes(report.budget_bytes), ""),
    ]
    return text_table(rows)


def _planned_sizes(plan: OffloadPlan) -> tuple[str, str]:
    return format_bytes(plan.peak_pool_bytes), format_bytes(plan.reserved["activations and temporaries"])
