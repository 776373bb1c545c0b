"""Parameters of modules."""

from __future__ import annotations

from typing import Any

from accelera.tensora.core import Tensor, native


class Parameter(Tensor):
    """Tensor that a module trains: assigned to an attribute of a module, it is one of its parameters.

    Parameters
    ----------
    data
        Tensor of real or complex floating-point numbers, whose memory it shares.
    requires_grad
        Whether it collects gradients.

    """

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        super().__init__(data)  # type: ignore[call-arg]
        if requires_grad:
            self.requires_grad = True
        native.set_role(self, "parameter")

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        """Return a parameter with memory of its own; gradients are not copied."""
        made = Parameter(native.copy(self.detach()), self.requires_grad)
        memo[id(self)] = made
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Parameter, (self.detach(), self.requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"
