"""Schedules that go up and down in each batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from accelera.errors import ArgumentError
from accelera.tensora.optim.lr_scheduler.epochs import LRScheduler, each_group


class CyclicLR(LRScheduler):
    """Rate that rises from `base_lr` to `max_lr` and falls again, in each batch (L. Smith 2017).

    Parameters
    ----------
    optimizer
        Whose groups are set.
    base_lr, max_lr
        Least and greatest rate: one, or a list of one for each group.
    step_size_up, step_size_down
        Batches of the rise and the fall; the latter as the former if None.
    mode
        ``"triangular"``, ``"triangular2"`` (each cycle half as high), or ``"exp_range"`` (by `gamma`).
    gamma
        Factor of the height in each batch.
    scale_fn, scale_mode
        Factor of the height, of the number of the ``"cycle"`` or of the batch (``"iterations"``), instead.
    cycle_momentum, base_momentum, max_momentum
        Whether the momentum goes the other way, and its bounds.
    last_epoch
        Number of the last batch.

    """

    def __init__(
        self,
        optimizer: Any,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ArgumentError(f"[CyclicLR] mode={mode!r}; give 'triangular', 'triangular2' or 'exp_range'")
        self.max_lrs = each_group(optimizer, max_lr, "max_lr")
        low = each_group(optimizer, base_lr, "base_lr")
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, low, strict=True):
                group["lr"] = group["initial_lr"] = rate
        self.step_size_up = float(step_size_up)
        self.total_size = self.step_size_up + float(
            step_size_up if step_size_down is None else step_size_down
        )
        self.mode, self.gamma, self._scale_fn = mode, gamma, scale_fn
        self.scale_mode = scale_mode if scale_fn else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._key = _momentum_key(optimizer, "CyclicLR")
            self.base_momentums = each_group(optimizer, base_momentum, "base_momentum")
            self.max_momentums = each_group(optimizer, max_momentum, "max_momentum")
            for group, value in zip(optimizer.param_groups, self.max_momentums, strict=True):
                _set_momentum(group, self._key, value)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = low

    def _scale(self, x: float) -> float:
        if self._scale_fn is not None:
            return self._scale_fn(x)
        if self.mode == "triangular":
            return 1.0
        return 1 / (2.0 ** (x - 1)) if self.mode == "triangular2" else float(self.gamma**x)

    def get_lr(self) -> list[float]:
        """Return the rate of each group in the batch that begins; sets the momentum."""
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        ratio = self.step_size_up / self.total_size
        height = x / ratio if x <= ratio else (x - 1) / (ratio - 1)
        scale = self._scale(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            bounds = zip(self.base_momentums, self.max_momentums, strict=True)
            for group, (low, high) in zip(self.optimizer.param_groups, bounds, strict=True):
                _set_momentum(group, self._key, high - (high - low) * height * scale)
        return [
            low + (high - low) * height * scale for low, high in zip(self.base_lrs, self.max_lrs, strict=True)
        ]


class OneCycleLR(LRScheduler):
    """Rate that rises to `max_lr` and falls far below the first one, in one cycle (L. Smith 2018).

    Parameters
    ----------
    optimizer
        Whose groups are set.
    max_lr
        Greatest rate: one, or a list of one for each group.
    total_steps
        Batches in all; or `epochs` of `steps_per_epoch`.
    epochs, steps_per_epoch
        See above.
    pct_start
        Share of the batches in which the rate rises.
    anneal_strategy
        ``"cos"`` or ``"linear"``.
    cycle_momentum, base_momentum, max_momentum
        Whether the momentum goes the other way, and its bounds.
    div_factor, final_div_factor
        The first rate is ``max_lr / div_factor``, the last one this over the second factor.
    three_phase
        Fall to the first rate as slowly as it rose, and to the last one afterwards.
    last_epoch
        Number of the last batch.

    """

    def __init__(
        self,
        optimizer: Any,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None and (epochs is None or steps_per_epoch is None):
            raise ArgumentError("[OneCycleLR] give total_steps, or epochs and steps_per_epoch")
        self.total_steps = (
            total_steps if total_steps is not None else int(epochs or 0) * int(steps_per_epoch or 0)
        )
        if self.total_steps <= 0 or not 0 <= pct_start <= 1:
            raise ArgumentError(
                f"[OneCycleLR] {self.total_steps} steps, pct_start={pct_start}; give positive ones"
            )
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(f"[OneCycleLR] anneal_strategy={anneal_strategy!r}; give 'cos' or 'linear'")
        self.anneal_strategy = anneal_strategy
        self._phases = _one_cycle(self.total_steps, pct_start, three_phase)
        if last_epoch == -1:
            for group, most in zip(
                optimizer.param_groups, each_group(optimizer, max_lr, "max_lr"), strict=True
            ):
                group["initial_lr"] = most / div_factor
                group["max_lr"] = most
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._key = _momentum_key(optimizer, "OneCycleLR")
            bounds = zip(
                each_group(optimizer, base_momentum, "base_momentum"),
                each_group(optimizer, max_momentum, "max_momentum"),
                strict=True,
            )
            for group, (low, high) in zip(optimizer.param_groups, bounds, strict=True):
                if last_epoch == -1:
                    _set_momentum(group, self._key, high)
                    group["max_momentum"], group["base_momentum"] = high, low
        super().__init__(optimizer, last_epoch)

    def _between(self, start: float, end: float, share: float) -> float:
        if self.anneal_strategy == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)

    def get_lr(self) -> list[float]:
        """Return the rate of each group in the batch that begins; sets the momentum."""
        if self.last_epoch > self.total_steps:
            raise ArgumentError(
                f"[OneCycleLR] step {self.last_epoch} of {self.total_steps}; there are no more"
            )
        begin = 0.0
        for end, *_ in self._phases[:-1]:
            if self.last_epoch > end:
                begin = end
        end, *names = next(phase for phase in self._phases if phase[0] > begin)
        share = (self.last_epoch - begin) / (end - begin)
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(self._between(group[names[0]], group[names[1]], share))
            if self.cycle_momentum:
                _set_momentum(group, self._key, self._between(group[names[2]], group[names[3]], share))
        return rates


def _one_cycle(steps: int, start: float, three: bool) -> list[Any]:
    """(Last step, rates and momenta at both ends) of each phase."""
    rise = ("initial_lr", "max_lr", "max_momentum", "base_momentum")
    if not three:
        return [
            (float(start * steps) - 1, *rise),
            (steps - 1, "max_lr", "min_lr", "base_momentum", "max_momentum"),
        ]
    return [
        (float(start * steps) - 1, *rise),
        (float(2 * start * steps) - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"),
        (steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"),
    ]


def _momentum_key(optimizer: Any, name: str) -> str:
    for key in ("betas", "momentum"):
        if key in optimizer.defaults:
            return key
    raise ArgumentError(f"[{name}] the optimizer has no momentum; give cycle_momentum=False")


def _set_momentum(group: dict[str, Any], key: str, value: float) -> None:
    group[key] = (value, *group[key][1:]) if key == "betas" else value
