"""What one manager knows of a function before it runs, and what it learns when it has run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

from accelera.execution.learning.book import Book
from accelera.execution.learning.entry import Entry
from accelera.execution.learning.identity import key_of
from accelera.execution.profile import WorkloadProfile

Sample = tuple[str, int, float]
"""Device, tasks of a piece, seconds it took."""


class Sides(NamedTuple):
    """The two devices of a manager."""

    cpu: str
    """As results call it."""
    cpu_model: str
    """Under which its measurements are kept."""
    workers: int
    """How many pieces it runs at once."""
    gpu: str = ""
    """As results call it; empty: there is none."""
    gpu_model: str = ""
    """Under which its measurements are kept."""
    also_cpu: str = ""
    """Under what other name results call pieces of the CPU, such as those that went to worker processes."""

    @staticmethod
    def of(cpu: object, cpu_name: str, gpu: object | None, gpu_name: str) -> Sides:
        """Return what two executors are called; one that does not tell its workers counts as one."""
        told = getattr(cpu, "workers", 1)
        workers = told if isinstance(told, int) and told > 0 else 1
        sides = Sides(
            cpu_name,
            f"{cpu_name} {_type_of(cpu)} {workers}",
            workers,
            also_cpu=getattr(cpu, "name_of_processes", ""),
        )
        if gpu is None:
            return sides
        return sides._replace(gpu=gpu_name, gpu_model=f"{gpu_name} {_type_of(gpu)}")


@final
class Learner:
    """Reads and writes a book for one pair of devices.

    Parameters
    ----------
    book
        Returns where everything is kept; called when something is first looked up.
    sides
        The devices.
    """

    def __init__(self, book: Callable[[], Book], sides: Sides) -> None:
        self._book = book
        self.sides = sides

    def known(self, function: Callable[..., Any], profile: WorkloadProfile | None) -> Entry | None:
        """Return what is known of such a batch; None when none ever ran."""
        return self._book().entry(key_of(function, profile))

    def beginning(self) -> tuple[float, bool]:
        """Return the seconds the GPU would take now to become usable, and whether it has run before."""
        book, model = self._book(), self.sides.gpu_model
        begun = model in book.begun_devices
        return (0.0 if begun else book.begin_s(model)), begun

    def record(
        self,
        function: Callable[..., Any],
        profile: WorkloadProfile | None,
        samples: Sequence[Sample],
        seconds: float,
        speeds: tuple[float, float],
    ) -> None:
        """Learn from a batch that took ``seconds``.

        Parameters
        ----------
        function, profile
            What ran.
        samples
            Its pieces that went well.
        seconds
            What all of it took.
        speeds
            The shares of CPU and GPU that others left, by which measured seconds are multiplied.
        """
        key, book, sides = key_of(function, profile), self._book(), self.sides
        first: Sample | None = None
        with book.lock:
            entry = book.changing(key)
            for sample in samples:
                device, count, took_s = sample
                if device in (sides.cpu, sides.also_cpu):
                    entry.record(sides.cpu_model, count, took_s * speeds[0], launches=False)
                elif device == sides.gpu and (key, sides.gpu_model) not in book.begun:
                    book.begun.add((key, sides.gpu_model))
                    first = sample
                elif device == sides.gpu:
                    entry.record(sides.gpu_model, count, took_s * speeds[1], launches=True)
            entry.batch(seconds)
            if first is not None:
                self._began(book, entry, first)
        book.save_if_old()

    def _began(self, book: Book, entry: Entry, first: Sample) -> None:
        """Learn from a function's first piece how long the GPU took to begin, if it had not run before."""
        model = self.sides.gpu_model
        cold = model not in book.begun_devices
        book.begun_devices.add(model)
        estimate = entry.estimates.get(model)
        if cold and estimate is not None:
            book.began(model, max(0.0, first[2] - estimate.seconds(first[1])))


def _type_of(executor: object) -> str:
    return f"{type(executor).__module__}.{type(executor).__qualname__}"
