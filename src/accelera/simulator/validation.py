"""Validation of a trace: how near its reuse, locality, sizes and lives are to those of real models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from accelera.errors import ArgumentError
from accelera.trace import Kind, Trace
from accelera.trace._internal import StackDistances, reuse_entropy, stack_distances, temporal_locality

if TYPE_CHECKING:
    import pandas as pd

NEAR = 5
"""A reuse with fewer other buffers in between is near; the seed's threshold."""
REFERENCE = "reference_sizes.json"
"""Sizes in captured models, beside this module; ``python -m benchmarks reference_sizes`` makes it."""
SHOWN = 5
"""How many offending events are named."""


@dataclass(frozen=True)
class SizeComparison:
    """A trace's sizes against those of captured models: the two-sample Kolmogorov-Smirnov test."""

    statistic: float
    """Largest distance of the two cumulative distributions, from 0 to 1."""
    p_value: float
    """Chance of such a distance between samples of one distribution."""
    nearest: str
    """The captured model whose own sizes are nearest."""
    nearest_statistic: float
    """The distance from that model."""
    samples: int
    """Buffers compared."""


@dataclass(frozen=True)
class Validation:
    """Result of ``validate_trace``."""

    accesses: int
    reuses: int
    """Accesses to a buffer that was accessed before in this life."""
    reuse_entropy_bits: float
    """Shannon entropy, base 2, of the distribution of reuse distances."""
    reuse_entropy_normalised: float
    """The same over its largest possible value for so many reuses: 0 all alike, 1 all different."""
    temporal_locality: float
    """Share of reuses with fewer than ``near`` other buffers in between."""
    near: int
    sizes: SizeComparison | None
    """None for a trace without buffers."""
    used_after_free: int
    """Reads of a buffer after it was freed and before it was overwritten."""
    freed_twice: int
    """Frees of what was dead already."""
    read_before_written: int
    """First reads of activations, gradients and other buffers that a step must have made first."""
    problems: tuple[str, ...]
    """The first such events in words; empty for a sound trace."""

    @property
    def sound(self) -> bool:
        """Whether no event contradicts another."""
        return not self.problems

    def interpretations(self) -> dict[str, str]:
        """Return what each figure means, by name."""
        return dict(_interpretations(self))

    def to_dict(self) -> dict[str, Any]:
        """Return all figures and interpretations as JSON-able values."""
        return {**asdict(self), "sound": self.sound, "interpretations": self.interpretations()}

    def table(self) -> str:
        """Return one line per figure with its meaning, as text."""
        figures = {
            "reuse entropy": f"{self.reuse_entropy_bits:.2f} bits ({self.reuse_entropy_normalised:.0%})",
            "temporal locality": f"{self.temporal_locality:.0%}",
            "sizes": "none" if self.sizes is None else f"KS {self.sizes.statistic:.2f}",
            "lives": "sound" if self.sound else f"{len(self.problems)} kinds of problems",
        }
        meanings = self.interpretations()
        return "\n".join(f"{name:<18} {figure:<18} {meanings[name]}" for name, figure in figures.items())


def validate_trace(trace: Trace, *, near: int = NEAR) -> Validation:
    """Describe a trace's reuse, compare its sizes with captured models, and look for impossible events.

    Parameters
    ----------
    trace
        The trace to examine, or its table.
    near
        A reuse with fewer other buffers in between counts as near.

    Raises
    ------
    ValueError
        For ``near`` below 1.

    Examples
    --------
    >>> from accelera.simulator import generate_synthetic_trace
    >>> validate_trace(generate_synthetic_trace()).sound
    True
    """
    if near < 1:
        raise ArgumentError(f"[validate_trace] near={near} must be at least 1")
    distances = stack_distances(trace)
    lives = _lives(trace)
    return Validation(
        accesses=trace.access_count,
        reuses=len(distances.reuses),
        reuse_entropy_bits=reuse_entropy(distances),
        reuse_entropy_normalised=_normalised_entropy(distances),
        temporal_locality=temporal_locality(distances, near=near),
        near=near,
        sizes=_compared(trace.size_bytes) if trace.buffer_count else None,
        used_after_free=len(lives["used after it was freed"]),
        freed_twice=len(lives["freed twice"]),
        read_before_written=len(lives["read before any step wrote it"]),
        problems=tuple(_problems(trace, lives)),
    )


def calculate_reuse_entropy(trace: Trace | pd.DataFrame) -> float:
    """Return the Shannon entropy of the reuse distances in bits; the seed's name for it.

    Parameters
    ----------
    trace
        A trace, or its table.
    """
    return reuse_entropy(stack_distances(_as_trace(trace)))


def calculate_temporal_locality(trace: Trace | pd.DataFrame, near: int = NEAR) -> float:
    """Return the share of reuses with fewer than ``near`` others in between; the seed's name for it.

    Parameters
    ----------
    trace
        A trace, or its table.
    near
        How many other buffers in between are still near.
    """
    return temporal_locality(stack_distances(_as_trace(trace)), near=near)


def validate_tensor_size_distribution(trace: Trace | pd.DataFrame) -> SizeComparison:
    """Compare the sizes of a trace's buffers with those in captured models; the seed's name for it.

    Parameters
    ----------
    trace
        A trace, or its table.

    Raises
    ------
    ValueError
        For a trace without buffers.
    """
    given = _as_trace(trace)
    if not given.buffer_count:
        raise ArgumentError("[validate_trace] the trace has no buffers, so no sizes to compare")
    return _compared(given.size_bytes)


@lru_cache(maxsize=1)
def reference_sizes() -> dict[str, NDArray[np.int64]]:
    """Return buffer sizes in bytes by captured model: quantiles that stand for all."""
    path = resources.files("accelera.simulator").joinpath(REFERENCE)
    read = json.loads(path.read_text(encoding="utf-8"))
    return {name: np.array(values, dtype=np.int64) for name, values in read.items()}


def _as_trace(trace: Trace | pd.DataFrame) -> Trace:
    return trace if isinstance(trace, Trace) else Trace.from_pandas(trace)


def _normalised_entropy(distances: StackDistances) -> float:
    count = len(distances.reuses)
    return reuse_entropy(distances) / float(np.log2(count)) if count > 1 else 0.0


def _compared(sizes: NDArray[np.int64]) -> SizeComparison:
    from scipy.stats import ks_2samp

    references = reference_sizes()
    whole = ks_2samp(sizes, np.concatenate(list(references.values())), method="asymp")
    by_model = {
        name: float(ks_2samp(sizes, values, method="asymp").statistic) for name, values in references.items()
    }
    nearest = min(by_model, key=by_model.__getitem__)
    return SizeComparison(float(whole.statistic), float(whole.pvalue), nearest, by_model[nearest], len(sizes))


_MADE = frozenset({"activation", "gradient", "kv_cache", "workspace"})
"""Roles whose contents a step makes, so that a first read cannot find any."""


def _lives(trace: Trace) -> dict[str, NDArray[np.int64]]:
    """Return the events that contradict an earlier one, by what is wrong."""
    matters = np.flatnonzero(trace.is_access | (trace.kind == Kind.FREE))
    order = matters[np.argsort(trace.buffer[matters], kind="stable")]
    buffer, kind = trace.buffer[order], trace.kind[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = buffer[1:] != buffer[:-1]
    after_free = np.zeros(len(order), dtype=bool)
    after_free[1:] = ~first[1:] & (kind[:-1] == Kind.FREE)
    made = np.array([role in _MADE for role in trace.roles], dtype=bool)
    unmade = first & (kind == Kind.READ) & made[buffer]
    return {
        "used after it was freed": np.sort(order[after_free & (kind == Kind.READ)]),
        "freed twice": np.sort(order[after_free & (kind == Kind.FREE)]),
        "read before any step wrote it": np.sort(order[unmade]),
    }


def _problems(trace: Trace, lives: dict[str, NDArray[np.int64]]) -> Iterator[str]:
    for what, events in lives.items():
        shown = [f"{trace.names[trace.buffer[event]]} (event {event})" for event in events[:SHOWN].tolist()]
        more = f" and {len(events) - SHOWN} more" if len(events) > SHOWN else ""
        if shown:
            yield f"{what}: {', '.join(shown)}{more}"


def _interpretations(found: Validation) -> Iterator[tuple[str, str]]:
    yield "reuse entropy", _entropy_in_words(found)
    yield "temporal locality", _locality_in_words(found)
    yield "sizes", _sizes_in_words(found.sizes)
    yield "lives", "no event contradicts another" if found.sound else "; ".join(found.problems)


def _entropy_in_words(found: Validation) -> str:
    if not found.reuses:
        return "nothing is used twice: no policy can do better than another"
    if found.reuse_entropy_normalised < 0.2:
        return "uses come again after few different distances: a loop or a burst, easy to foresee"
    if found.reuse_entropy_normalised < 0.6:
        return "uses come again after varied but recurring distances, as in layered models"
    return "uses come again after ever different distances: hard to foresee from the past"


def _locality_in_words(found: Validation) -> str:
    if not found.reuses:
        return "nothing is used twice"
    near = f"with fewer than {found.near} others in between"
    if found.temporal_locality > 0.9:
        return f"almost every reuse comes {near}: even a tiny memory does, whatever the policy"
    if found.temporal_locality > 0.4:
        return f"many reuses come {near}, others from afar: size and policy both count"
    return f"few reuses come {near}: only a large memory or foresight helps"


def _sizes_in_words(sizes: SizeComparison | None) -> str:
    if sizes is None:
        return "there are no buffers"
    near = f"nearest to {sizes.nearest} ({sizes.nearest_statistic:.2f})"
    if sizes.statistic < 0.15:
        return f"like those of captured models together, {near}"
    if min(sizes.statistic, sizes.nearest_statistic) < 0.4:
        return f"in the range of captured models but otherwise shared out, {near}"
    return f"unlike any captured model, {near}"
