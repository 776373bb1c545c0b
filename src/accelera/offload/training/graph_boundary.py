"""Boundary of a forward pass in the autograd graph, at which a backward pass enters and leaves a model."""

from __future__ import annotations

from typing import Any, final

import torch
from torch.utils._pytree import tree_leaves

from accelera.offload.allocation_scope import AllocationScope


@final
class GraphOfForward:
    """The nodes that one forward pass adds to the autograd graph, between its inputs and its outputs."""

    def __init__(self, scope: AllocationScope, inputs: Any) -> None:
        self._scope = scope
        self._first_number = _next_number()
        self._input_nodes = _nodes_of(inputs)

    def end(self, outputs: Any) -> None:
        """Register hooks that charge a backward pass to the model from ``outputs`` to the inputs."""
        # An output that is an input, or was computed before, has a node of the program.
        nodes = [node for node in _nodes_of(outputs) if node._sequence_nr() >= self._first_number]
        for node in nodes:
            node.register_prehook(self._enter)
        for node in self._input_nodes if nodes else ():
            node.register_prehook(self._leave)

    def _enter(self, _: Any) -> None:
        self._scope.open_for_backward()

    def _leave(self, _: Any) -> None:
        self._scope.close_for_backward()


def _nodes_of(values: Any) -> list[Any]:
    """Return the nodes of the tensors among ``values`` that operations made, each once."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return list(dict.fromkeys(tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None))


def _next_number() -> int:
    """Return the number of the next node that this thread creates; later nodes have larger numbers."""
    return int(torch._C._autograd._get_sequence_nr())
