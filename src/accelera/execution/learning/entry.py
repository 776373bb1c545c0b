"""All that is known of one function's tasks of one size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, final

from accelera.execution.decision import Decision
from accelera.execution.learning.rates import Estimate, Rates
from accelera.execution.pace import Pace


class Choice(NamedTuple):
    """What was decided lately, and from what: it stands while neither has changed."""

    now: object
    """Everything that mattered beside the estimates."""
    estimates: Mapping[str, Estimate]
    decision: Decision
    pace: Pace


@final
class Entry:
    """Rates by device, and how much has been run. Not thread-safe."""

    __slots__ = ("_rates", "batches", "choice", "estimates", "seconds", "since")

    def __init__(self) -> None:
        self.batches = 0
        """Batches that were recorded."""
        self.seconds = 0.0
        """Seconds that they took."""
        self.since: dict[str, float] = {}
        """Seconds of batches since a device was last sampled, by device."""
        self.estimates: dict[str, Estimate] = {}
        """What is known, by device."""
        self.choice: Choice | None = None
        """The last decision; forgotten when an estimate has moved since."""
        self._rates: dict[str, Rates] = {}

    def record(self, device: str, task_count: int, seconds: float, *, launches: bool) -> None:
        """Learn from a piece that ``device`` ran."""
        if device not in self._rates:
            self._rates[device] = Rates(launches=launches)
        self._rates[device].record(task_count, seconds)
        self.since[device] = 0.0

    def batch(self, seconds: float) -> None:
        """Note that a batch is over, whose pieces have been recorded."""
        self.batches += 1
        self.seconds += seconds
        for device in self._rates:
            self.since[device] = self.since.get(device, 0.0) + seconds
        self._conclude()

    def samples(self, device: str) -> int:
        """Return how many samples of ``device`` there are."""
        rates = self._rates.get(device)
        return 0 if rates is None else rates.samples

    def state(self) -> dict[str, Any]:
        """Return everything as plain values, for a file."""
        rates = {device: [rates.launches, *rates.state()] for device, rates in self._rates.items()}
        return {"batches": self.batches, "seconds": self.seconds, "since": self.since, "rates": rates}

    @staticmethod
    def of_state(state: Mapping[str, Any]) -> Entry:
        """Return the entry that ``state`` describes; raises where it cannot be one."""
        entry = Entry()
        entry.batches, entry.seconds = int(state["batches"]), float(state["seconds"])
        entry.since = {str(device): float(seconds) for device, seconds in state["since"].items()}
        for device, (launches, *rates) in state["rates"].items():
            entry._rates[device] = Rates.of_state(rates, launches=bool(launches))
        entry._conclude()
        return entry

    def _conclude(self) -> None:
        found = ((device, rates.estimate()) for device, rates in self._rates.items())
        self.estimates = {device: estimate for device, estimate in found if estimate is not None}
        choice = self.choice
        if choice is not None and not self._are_as_in(choice):
            self.choice = None

    def _are_as_in(self, choice: Choice) -> bool:
        return all(
            device in self.estimates and estimate.is_near(self.estimates[device])
            for device, estimate in choice.estimates.items()
        )
