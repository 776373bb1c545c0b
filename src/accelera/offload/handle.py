"""What is to be known of an offloaded model, and how it is taken back."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, final

import torch

from accelera.errors import DeviceError
from accelera.offload.tensors.copies import as_mapped
from accelera.offload.tensors.staying import may_leave
from accelera.offload.tensors.taking import give_back, offloaded_tensors
from accelera.offload.tensors.tensor import OffloadedTensor
from accelera.offload.training.training import CopiedTraining, Training

if TYPE_CHECKING:
    from accelera.offload.keeping.keeper import Keeper
    from accelera.offload.keeping.report import OffloadReport
    from accelera.offload.planning.offload_plan import OffloadPlan
    from accelera.trace import Trace


@final
class Offloaded:
    """The handle of an offloaded model; ``offloaded(model)`` gives it."""

    def __init__(
        self,
        model: torch.nn.Module,
        keeper: Keeper,
        plan: OffloadPlan | None = None,
        training: Training | CopiedTraining | None = None,
    ) -> None:
        self._model = weakref.ref(model)
        self._training = training
        self.keeper = keeper
        """What keeps the bytes."""
        self.plan = plan
        """What was predicted, when the model was offloaded with ``inputs``; else None."""
        self.restored = False
        """Whether the model is an ordinary one again."""

    def report(self) -> OffloadReport:
        """Return what was moved, held and waited for so far, and what becomes of saved tensors."""
        counted = self.keeper.report()
        chosen = self._training.choice.chosen if isinstance(self._training, Training) else None
        if chosen is None:
            return counted
        return replace(counted, activation_bytes=chosen.bytes_by_fate(), activation_added_s=chosen.added_s)

    def trace(self) -> Trace:
        """Return the accesses so far; raises ValueError unless ``offload`` was told to record."""
        return self.keeper.trace()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the model's state as ordinary tensors over the files where the bytes are.

        For writers that need addresses, such as ``safetensors.torch.save_file``: it takes no memory beside
        the page cache. Read it and let go of it: changes do not reach the model.
        """
        state = self._alive().state_dict()
        return {
            name: as_mapped(value) if isinstance(value, OffloadedTensor) else value
            for name, value in state.items()
        }

    def restore(self) -> torch.nn.Module:
        """Make the model an ordinary one again, whole in memory, and return it; the values stay."""
        model = self._alive()
        if self._training is not None:
            self._training.stop()
        give_back(model, self.keeper)
        may_leave(model)
        self.restored = True
        self.keeper.let_go()
        return model

    def save(self, folder: str | Path) -> Path:
        """Write the model's tensors to ``folder/model.safetensors`` and return that path.

        No memory is taken for them; ``accelera.offload_checkpoint`` opens the folder again. Raises StoreError
        when it cannot be written.
        """
        from accelera.offload.checkpoints.saving import save_checkpoint

        return save_checkpoint(self._alive(), folder)

    def close(self) -> None:
        """Give all memory and files back without restoring; the model is of no use afterwards."""
        self.keeper.close()

    def _alive(self) -> torch.nn.Module:
        model = self._model()
        if model is None:
            raise DeviceError("[offload] the model of this handle is gone; there is nothing to restore")
        return model

    def __repr__(self) -> str:
        model = self._model()
        if model is None:
            return "Offloaded(a model that is gone)"
        tensors = offloaded_tensors(model, self.keeper)
        return f"Offloaded({type(model).__name__}, {len(tensors)} tensors, {self.report()})"
