"""Schedules made of others, and one that waits for a metric."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from accelera.errors import ArgumentError
from accelera.tensora.optim.lr_scheduler.epochs import CosineAnnealingWarmRestarts, LRScheduler, each_group
from accelera.tensora.python_calls import host_call
from accelera.tensora.state_kinds import matching_state


class ChainedScheduler:
    """Schedules whose factors are applied one after the other in each epoch."""

    def __init__(self, schedulers: Sequence[Any], optimizer: Any = None) -> None:
        if not schedulers:
            raise ArgumentError("[ChainedScheduler] no schedules; give at least one")
        self.optimizer = schedulers[0].optimizer if optimizer is None else optimizer
        if any(each.optimizer is not self.optimizer for each in schedulers):
            raise ArgumentError("[ChainedScheduler] schedules of different optimizers; give those of one")
        self._schedulers = list(schedulers)
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    @host_call
    def step(self) -> None:
        """Begin the next epoch."""
        for each in self._schedulers:
            each.step()
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def get_last_lr(self) -> list[float]:
        """Return the rates that the last step set."""
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all schedules."""
        return {"_last_lr": self._last_lr, "_schedulers": [each.state_dict() for each in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned; raises ArgumentError for any other."""
        state = matching_state("ChainedScheduler.load_state_dict", state_dict, self.state_dict())
        self._last_lr = state["_last_lr"]
        for each, part in zip(self._schedulers, state["_schedulers"], strict=True):
            each.load_state_dict(part)


class SequentialLR(LRScheduler):
    """Schedules one after the other, each from its milestone on."""

    def __init__(
        self, optimizer: Any, schedulers: Sequence[Any], milestones: Sequence[int], last_epoch: int = -1
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ArgumentError(
                f"[SequentialLR] {len(milestones)} milestones for {len(schedulers)} schedules; give one less"
            )
        if any(each.optimizer is not optimizer for each in schedulers):
            raise ArgumentError("[SequentialLR] schedules of different optimizers; give those of one")
        self._schedulers, self._milestones = list(schedulers), list(milestones)
        self.last_epoch = last_epoch + 1
        self.optimizer = optimizer
        # All schedules have made their first step: only the first one's counts.
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for each in self._schedulers:
            each.last_epoch -= 1
        self._schedulers[0].step()
        self._last_lr = self._schedulers[0].get_last_lr()

    def get_lr(self) -> list[float]:
        """Return the rates as they are now."""
        return self.rates()

    @host_call
    def step(self) -> None:
        """Begin the next epoch."""
        self.last_epoch += 1
        i = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[i]
        if i > 0 and self._milestones[i - 1] == self.last_epoch:
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"]
            scheduler.last_epoch = -1
            if isinstance(scheduler, CosineAnnealingWarmRestarts):
                scheduler.step(0)
            else:
                scheduler.step()
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all schedules, and where it stands."""
        return {
            "last_epoch": self.last_epoch,
            "_last_lr": self._last_lr,
            "_milestones": self._milestones,
            "_schedulers": [each.state_dict() for each in self._schedulers],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned; raises ArgumentError for any other."""
        state = matching_state("SequentialLR.load_state_dict", state_dict, self.state_dict())
        for each, part in zip(self._schedulers, state.pop("_schedulers"), strict=True):
            each.load_state_dict(part)
        self.__dict__.update(state)


class ReduceLROnPlateau:
    """Rate times `factor` whenever a metric has not become better for `patience` epochs.

    Parameters
    ----------
    optimizer
        Whose groups are set.
    mode
        ``"min"`` where less is better, ``"max"`` where more is.
    factor
        Of the rate.
    patience
        Epochs without a better metric that are let pass.
    threshold, threshold_mode
        By how much it has to become better: a share of the best (``"rel"``), or as it is (``"abs"``).
    cooldown
        Epochs after a change that do not count.
    min_lr
        Least rate: one, or a list of one for each group.
    eps
        Smaller changes are not made.

    """

    def __init__(
        self,
        optimizer: Any,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ArgumentError(f"[ReduceLROnPlateau] factor={factor}; give one below 1")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ArgumentError(f"[ReduceLROnPlateau] mode={mode!r}, threshold_mode={threshold_mode!r}")
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown, self.eps = (
            threshold,
            threshold_mode,
            cooldown,
            eps,
        )
        self.min_lrs = each_group(optimizer, min_lr, "min_lr")
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self._last_lr = [group["lr"] for group in optimizer.param_groups]

    def _is_better(self, metric: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "rel":
            return sign * metric > sign * (self.best * (1 + sign * self.threshold))
        return sign * metric > sign * (self.best + sign * self.threshold)

    @host_call
    def step(self, metrics: Any) -> None:
        """End an epoch with this metric."""
        metric = float(metrics)
        self.last_epoch += 1
        if self._is_better(metric):
            self.best, self.num_bad_epochs = metric, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                rate = max(group["lr"] * self.factor, least)
                if group["lr"] - rate > self.eps:
                    group["lr"] = rate
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def get_last_lr(self) -> list[float]:
        """Return the rates that the last step set."""
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        """Return all but the optimizer."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned; raises ArgumentError for any other."""
        op = "ReduceLROnPlateau.load_state_dict"
        self.__dict__.update(matching_state(op, state_dict, self.state_dict()))
