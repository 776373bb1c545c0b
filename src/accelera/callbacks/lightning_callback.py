"""Callback of Lightning that logs the memory of an offloaded model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback

from accelera.callbacks.memory_scalars import MemoryLog, memory_scalars

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from accelera.offload import Offloaded


class LightningCallback(Callback):
    """Callback of Lightning's trainer that logs the memory of an offloaded model.

    When training starts, the plan goes to the logger ``accelera.callbacks`` (level INFO) and, in one line, to
    the hyperparameters of the trainer's loggers. After each batch the module logs ``accelera/peak_bytes``,
    ``accelera/budget_bytes``, ``accelera/read_bytes`` and others, so that they also are in
    ``trainer.callback_metrics``. When training ends, a table compares planned and measured peaks.

    Parameters
    ----------
    handle
        The handle of the model, ``accelera.offloaded(model)``. None takes that of the module that is trained
        or of a child of it. If no model is offloaded, the account of the process is logged, see
        ``accelera.budget_report``.
    """

    def __init__(self, handle: Offloaded | None = None) -> None:
        self._log = MemoryLog(handle)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the plan."""
        self._log.start(pl_module)
        facts = self._log.facts()
        if facts:
            for logger in trainer.loggers:
                logger.log_hyperparams(facts)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the scalars of a batch."""
        pl_module.log_dict(memory_scalars(self._log.handle), on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the planned and measured peaks."""
        self._log.finish()
