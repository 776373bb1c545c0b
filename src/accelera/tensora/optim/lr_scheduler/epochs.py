"""Schedules whose rate is a function of the epoch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from accelera.errors import ArgumentError, UnknownNameError
from accelera.tensora.python_calls import host_call
from accelera.tensora.state_kinds import matching_state

Factor: TypeAlias = Callable[[int], float]


class LRScheduler(ABC):
    """Base of the schedules: sets the learning rate of each group after each epoch.

    Parameters
    ----------
    optimizer
        Whose groups' ``"lr"`` is set; ``"initial_lr"`` keeps the first one.
    last_epoch
        Number of the last epoch, when training is taken up again; -1 for a new one.

    Raises
    ------
    KeyError
        If training is taken up again and a group has no ``"initial_lr"``.

    """

    def __init__(self, optimizer: Any, last_epoch: int = -1) -> None:
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise UnknownNameError(
                    f"[{type(self).__name__}] group {i} has no 'initial_lr', which last_epoch needs"
                )
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._step_count = 0
        self.step()

    def rates(self) -> list[float]:
        """Return the rates as they are now."""
        return [group["lr"] for group in self.optimizer.param_groups]

    @abstractmethod
    def get_lr(self) -> list[float]:
        """Return the rate of each group in the epoch that begins."""

    def get_last_lr(self) -> list[float]:
        """Return the rates that the last step set."""
        return list(self._last_lr)

    @host_call
    def step(self) -> None:
        """Start the next epoch.

        Raises
        ------
        ArgumentError
            If an option such as a period of 0 leaves the rates undefined; the schedule is unchanged.

        """
        self._step_count += 1
        self.last_epoch += 1
        try:
            rates = self.get_lr()
        except ArithmeticError as error:
            epoch = self.last_epoch
            self._step_count -= 1
            self.last_epoch -= 1
            raise ArgumentError(
                f"[{type(self).__name__}] the rates of epoch {epoch} are undefined: {error}; give positive "
                "periods and finite factors"
            ) from error
        self._set(rates)

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = list(rates)

    def state_dict(self) -> dict[str, Any]:
        """Return all but the optimizer, functions left out."""
        return {
            name: value
            for name, value in self.__dict__.items()
            if name != "optimizer" and not callable(value)
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned; raises ArgumentError for any other."""
        op = f"{type(self).__name__}.load_state_dict"
        self.__dict__.update(matching_state(op, state_dict, self.state_dict()))


class _ByFunction(LRScheduler):
    def __init__(self, optimizer: Any, lr_lambda: Factor | list[Factor], last_epoch: int = -1) -> None:
        groups = len(optimizer.param_groups)
        self.lr_lambdas = list(lr_lambda) if isinstance(lr_lambda, list | tuple) else [lr_lambda] * groups
        if len(self.lr_lambdas) != groups:
            raise ArgumentError(
                f"[{type(self).__name__}] {len(self.lr_lambdas)} functions for {groups} groups"
            )
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return all but the optimizer and the functions."""
        state = super().state_dict()
        del state["lr_lambdas"]
        return state


class LambdaLR(_ByFunction):
    """First rate times a function of the epoch, one or a list of one for each group."""

    def get_lr(self) -> list[float]:
        """Return the rate of each group in the epoch that begins."""
        return [
            base * factor(self.last_epoch)
            for base, factor in zip(self.base_lrs, self.lr_lambdas, strict=True)
        ]


class MultiplicativeLR(_ByFunction):
    """Rate times a function of the epoch, in each epoch."""

    def get_lr(self) -> list[float]:
        """Return the rate of each group in the epoch that begins."""
        if self.last_epoch == 0:
            return self.rates()
        return [
            rate * factor(self.last_epoch) for rate, factor in zip(self.rates(), self.lr_lambdas, strict=True)
        ]


class StepLR(LRScheduler):
    """Rate times `gamma` every `step_size` epochs."""

    def __init__(self, optimizer: Any, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the rate of each group in the epoch that begins."""
        if self.last_epoch == 0 or self.last_epoch % self.step_size:
            return self.rates()
        return [rate * self.gamma for rate in self.rates()]


class MultiStepLR(LRScheduler):
    """Rate times `gamma` at each of the epochs `milestones`."""

    def __init__(
        self, optimizer: Any, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the rate of each group in the epoch that begins."""
        return [rate * self.gamma ** self.milestones[self.last_epoch] for rate in self.rates()]


class ConstantLR(LRScheduler):
    """First rate times `factor`, for `total_iters` epochs."""

    def __init__(
        self, optimizer: Any, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 <= factor <= 1:
            raise ArgumentError(f"[ConstantLR] factor={factor}; give a number from 0 to 1")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the rate of each group in the epoch that begins."""
        if self.last_epoch == 0:
            return [rate * self.factor for rate in self.rates()]
        if self.last_epoch != self.total_iters:
            return self.rates()
        return [rate * (1.0 / self.factor) for rate in self.rates()]


class LinearLR(LRScheduler):
    """First rate times a factor that goes from `start_factor` to `end_factor` in `total_iters` epochs."""

    def __init__(
        self,
        optimizer: Any,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ArgumentError(
                f"[LinearLR] factors {start_factor} and {end_factor}; give numbers from 0 to 1"
            )
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the rate of each group in the epoch that begins."""
        if self.last_epoch == 0:
            return [rate * self.start_factor for rate in self.rates()]
        if self.last_epoch > self.total_iters:
            return self.rates()
        rise = self.end_factor - self.start_factor
        factor = 1.0 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise)
        return [rate * factor for rate in self.rates()]


class ExponentialLR(LRScheduler):
    """Rate times `gamma` in each epoch."""

    def __init__(self, optimizer: Any, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the rate of each group in the epoch that begins."""
        return self.rates() if self.last_epoch == 0 else [rate * self.gamma for rate in self.rates()]


class PolynomialLR(LRScheduler):
    """First rate times a power of the share of `total_iters` epochs that is left."""

    def __init__(
        self, optimizer: Any, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the rate of each group in the epoch that begins."""
        if self.last_epoch == 0 or self.last_epoch > self.total_iters:
            return self.rates()
        now, before = 1.0 - self.last_epoch / self.total_iters, 1.0 - (self.last_epoch - 1) / self.total_iters
        return [rate * (now / before) ** self.power for rate in self.rates()]


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the first rate to `eta_min` in `T_max` epochs, and back (I. Loshchilov 2017)."""

    def __init__(self, optimizer: Any, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the rate of each group in the epoch that begins."""
        epoch, half, least = self.last_epoch, self.T_max, self.eta_min
        if epoch == 0:
            return self.rates()
        if (epoch - 1 - half) % (2 * half) == 0:
            rise = (1 - math.cos(math.pi / half)) / 2
            return [
                rate + (base - least) * rise for base, rate in zip(self.base_lrs, self.rates(), strict=True)
            ]
        factor = (1 + math.cos(math.pi * epoch / half)) / (1 + math.cos(math.pi * (epoch - 1) / half))
        return [factor * (rate - least) + least for rate in self.rates()]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine from the first rate to `eta_min` in `T_0` epochs, repeated, each `T_mult` longer."""

    def __init__(
        self,
        optimizer: Any,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if T_0 < 1 or T_mult < 1:
            raise ArgumentError(f"[CosineAnnealingWarmRestarts] T_0={T_0}, T_mult={T_mult}; give at least 1")
        self.T_0, self.T_i, self.T_mult, self.eta_min = T_0, T_0, T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the rate of each group in the epoch that begins."""
        share = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]

    @host_call
    def step(self, epoch: float | None = None) -> None:
        """Begin the next epoch, or a given one, which may be a fraction."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
            self.last_epoch += 1
        else:
            self._jump(epoch)
            self.last_epoch = math.floor(epoch)
        self._set(self.get_lr())

    def _jump(self, epoch: float) -> None:
        if epoch < 0:
            raise ArgumentError(f"[CosineAnnealingWarmRestarts] epoch={epoch}; give 0 or more")
        self.T_cur, self.T_i = epoch, self.T_0
        if epoch < self.T_0:
            return
        if self.T_mult == 1:
            self.T_cur = epoch % self.T_0
            return
        n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
        self.T_cur = epoch - self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)
        self.T_i = self.T_0 * self.T_mult**n


def each_group(optimizer: Any, value: Any, name: str) -> list[float]:
    """Return one number for each group."""
    groups = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [value] * groups
    if len(value) != groups:
        raise ArgumentError(f"[{name}] {len(value)} numbers for {groups} groups")
    return list(value)
