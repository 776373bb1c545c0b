"""Report of an offloaded model: bytes moved and held, and seconds waited, so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace


@dataclass(frozen=True)
class OffloadReport:
    """Counters since the model was offloaded; bytes are bytes of blocks."""

    uses: int
    """Operations that used a block."""
    hits: int
    misses: int
    evictions: int
    fetched_bytes: int
    """Bytes of misses that were read, as the books count them."""
    saved_bytes: int
    """Bytes written back, as the books count them."""
    bytes_read: int
    """Bytes that came from backing stores."""
    bytes_written: int
    """Bytes that went to backing stores."""
    peak_bytes: int
    """Most bytes that were resident."""
    capacity_bytes: int
    stall_s: float
    """Seconds that operations waited for their blocks."""
    compute_s: float
    """Seconds between getting the blocks and giving them back."""
    peak_tensor_bytes: int = 0
    """Most bytes of tensors beside blocks, such as activations, that counted against the budget at once."""
    activation_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of what the latest forward pass saved for its backward pass, by what was chosen: ``keep``,
    ``pack``, ``recompute`` or ``offload``; empty before there was a plan."""
    activation_added_s: float = 0.0
    """Seconds that this choice is predicted to add to a step in which everything is kept."""
    home_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes that lie beside the accelerators, in ``ram`` and in ``files``, where a budget for the CPU bounds
    those in RAM; else empty."""
    device: str = "cpu"
    """Name of the device that computes."""
    by_device: Sequence[OffloadReport] = ()
    """Of a model over several devices, the report of each."""
    crossed_bytes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Bytes of activations and gradients that went from one device, or the ``"host"``, to another."""


def total_of(reports: Sequence[OffloadReport]) -> OffloadReport:
    """Return the sum of reports of several devices, whose backing stores are the same; one report as it is.

    Peaks are sums as well: no more was there at once.
    """
    if len(reports) == 1:
        return reports[0]
    counted = [each.name for each in fields(OffloadReport) if each.type in ("int", "float")]
    sums = {name: sum(getattr(each, name) for each in reports) for name in counted}
    device = ", ".join(each.device for each in reports)
    return replace(reports[0], **sums, device=device, by_device=tuple(reports))
