"""Handle of an offloaded model: its report, its trace, saving, and taking it back."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

import torch

from accelera.errors import ArgumentError, DeviceError
from accelera.offload.block_cache import BlockCache, OffloadReport
from accelera.offload.checkpoints.shards import save_checkpoint
from accelera.offload.module import offloaded_tensors, swap_out, unguard_device
from accelera.offload.tensor import OffloadedTensor, as_mapped
from accelera.offload.training.hooks import CopiedTraining, Training

if TYPE_CHECKING:
    from accelera.offload.planning.plan import OffloadPlan
    from accelera.trace import Trace


@final
class Offloaded:
    """The handle of an offloaded model; ``offloaded(model)`` gives it."""

    def __init__(
        self,
        model: torch.nn.Module,
        caches: Sequence[BlockCache],
        plan: OffloadPlan | None = None,
        training: Training | CopiedTraining | None = None,
    ) -> None:
        self._model = weakref.ref(model)
        self._training = training
        self.caches = tuple(caches)
        """The caches that hold the bytes, one per device."""
        self.plan = plan
        """What was predicted, when the model was offloaded with ``inputs``; else None."""
        self.restored = False
        """Whether the model is an ordinary one again."""

    @property
    def cache(self) -> BlockCache:
        """The cache that holds the bytes; of several the first device's."""
        return self.caches[0]

    def report(self) -> OffloadReport:
        """Return what was moved, held and waited for so far, and what becomes of saved tensors.

        Of a model over several devices, figures are sums, and ``by_device`` has those of each.
        """
        transfers = self._training.transfers if isinstance(self._training, Training) else None
        counted = _total_of([cache.report() for cache in self.caches])
        if transfers is not None:
            counted = replace(counted, crossed_bytes=transfers.moved_bytes)
        chosen = self._training.choice.chosen if isinstance(self._training, Training) else None
        if chosen is None:
            return counted
        return replace(counted, activation_bytes=chosen.bytes_by_fate(), activation_added_s=chosen.added_s)

    def trace(self) -> Trace:
        """Return the accesses so far; raises ValueError unless ``offload`` was told to record.

        A model over several devices has several traces: those of ``caches``; ValueError is raised for it.
        """
        if len(self.caches) > 1:
            raise ArgumentError(
                "[offload] each device has a trace of its own: [each.trace() for each in handle.caches]"
            )
        return self.cache.trace()

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
        """Make the model an ordinary one again, whole in memory, and return it; the values stay.

        It is on its device, and in RAM when there are several.
        """
        model = self._alive()
        if self._training is not None:
            self._training.stop()
        swap_out(model, *self.caches)
        unguard_device(model)
        self.restored = True
        for cache in self.caches:
            cache.reap()
            cache.release_budget()
        return model

    def save(self, folder: str | Path) -> Path:
        """Write the model's tensors to ``folder/model.safetensors`` and return that path.

        No memory is taken for them; ``accelera.offload_checkpoint`` opens the folder again. Raises StoreError
        when it cannot be written.
        """
        return save_checkpoint(self._alive(), folder)

    def close(self) -> None:
        """Give all memory and files back without restoring; the model is of no use afterwards."""
        for cache in self.caches:
            cache.close()

    def _alive(self) -> torch.nn.Module:
        model = self._model()
        if model is None:
            raise DeviceError("[offload] the model of this handle is gone; there is nothing to restore")
        return model

    def __repr__(self) -> str:
        model = self._model()
        if model is None:
            return "Offloaded(a model that is gone)"
        tensors = [each for each in offloaded_tensors(model) if each.cache in self.caches]
        return f"Offloaded({type(model).__name__}, {len(tensors)} tensors, {self.report()})"


def _total_of(reports: Sequence[OffloadReport]) -> OffloadReport:
    """Return the sum of reports of several devices, whose backing stores are the same; one report as it is.

    Peaks are sums as well: no more was there at once.
    """
    if len(reports) == 1:
        return reports[0]
    counted = [each.name for each in fields(OffloadReport) if each.type in ("int", "float")]
    sums = {name: sum(getattr(each, name) for each in reports) for name in counted}
    device = ", ".join(each.device for each in reports)
    return replace(reports[0], **sums, device=device, by_device=tuple(reports))
