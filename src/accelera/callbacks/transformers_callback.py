"""Callback of the trainer of transformers that logs the memory of an offloaded model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from accelera.callbacks.memory_scalars import LOGGER, MemoryLog, memory_scalars

if TYPE_CHECKING:
    from transformers import Trainer

    from accelera.offload import Offloaded


class TransformersCallback(TrainerCallback):
    """Callback of the trainer of transformers that logs the memory of an offloaded model.

    When training starts, the plan goes to the logger ``accelera.callbacks`` (level INFO). Each time the
    trainer logs, ``accelera/peak_bytes``, ``accelera/budget_bytes``, ``accelera/read_bytes`` and others are
    added to its values. When training ends, a table compares planned and measured peaks.

    The trainer calls the reporters of ``report_to``, such as TensorBoard, before the callbacks that it was
    constructed with. ``add_to(trainer)`` puts this callback before the reporters.

    Parameters
    ----------
    handle
        The handle of the model, ``accelera.offloaded(model)``. None takes that of the model that is trained.
        If it is not offloaded, the account of the process is logged, see ``accelera.budget_report``.
    """

    def __init__(self, handle: Offloaded | None = None) -> None:
        self._log = MemoryLog(handle)
        self._is_first = False

    def add_to(self, trainer: Trainer) -> None:
        """Add this callback to ``trainer`` before its reporters, which then receive the scalars."""
        callbacks = trainer.callback_handler.callbacks
        callbacks[:] = [self, *(callback for callback in callbacks if callback is not self)]
        self._is_first = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the plan."""
        self._log.start(kwargs["model"])
        if args.report_to and not self._is_first:
            LOGGER.warning(
                "[TransformersCallback] %s run before this callback and do not receive its scalars; call "
                "callback.add_to(trainer) instead of Trainer(callbacks=[callback])",
                ", ".join(args.report_to),
            )

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        """Add the scalars to the values that the trainer logs."""
        if logs is not None:
            logs.update(memory_scalars(self._log.handle))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the planned and measured peaks."""
        self._log.finish()
