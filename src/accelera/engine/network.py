"""Whether a network feeds the nodes of a cluster: arithmetic per byte, against what would be needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from accelera.units import format_bytes

TEN_GIGABIT_BYTES_PER_S: Final = 1.25e9
"""What 10 Gb/s Ethernet carries to each node; assumed where nobody says."""


@final
@dataclass(frozen=True)
class Network:
    """A product spread over nodes that read its operands through a network.

    A node that makes square blocks of edge b does b / itemsize flop for each byte that it reads: b / 4 in
    f32. It computes at its full rate only where b is at least itemsize x (flop/s) / (bytes/s).
    """

    flops: float
    """Arithmetic of the whole product."""
    moved_bytes: int
    """Bytes that all nodes read and write together."""
    itemsize: int
    """Bytes of an element."""
    node_flops_per_s: float
    """Rate of one node with this product."""
    bytes_per_s: float
    """Rate of the network to each node."""
    nodes: int

    @property
    def edge(self) -> float:
        """Edge of the square blocks that do as much for each byte as this product's blocks do."""
        return self.itemsize * self.flops / max(self.moved_bytes, 1)

    @property
    def needed_edge(self) -> float:
        """Edge from which on the network feeds a node's full rate."""
        return self.itemsize * self.node_flops_per_s / self.bytes_per_s

    @property
    def fed_fraction(self) -> float:
        """Share of a node's rate that the network feeds, at most 1."""
        return min(1.0, self.edge / self.needed_edge)

    @property
    def speed_up(self) -> float | None:
        """How many times faster than one node they are at most; None: none is promised."""
        return float(self.nodes) if self.fed_fraction == 1.0 else None

    def lines(self) -> tuple[str, ...]:
        """Return it in words and numbers, for people."""
        per_byte = self.flops / max(self.moved_bytes, 1)
        head = (
            f"  network      {format_bytes(self.moved_bytes)} to and from {self.nodes} nodes: {per_byte:.0f} "
            f"flop for each byte, as square blocks of b = {self.edge:.0f} do (b / {self.itemsize})"
        )
        need = (
            f"    {self.node_flops_per_s:.2g} flop/s a node and {self.bytes_per_s:.3g} bytes/s to it need "
            f"b >= {self.needed_edge:.0f}: "
        )
        return head, need + self._verdict()

    def _verdict(self) -> str:
        if self.speed_up is not None:
            return f"the network keeps up, up to {self.speed_up:.0f} x one node"
        return (
            f"no speed-up is promised, as the network feeds {100 * self.fed_fraction:.0f} % of a node; take "
            f"larger operands, a larger node_budget, a faster network, or one machine"
        )
