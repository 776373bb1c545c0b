"""The backward pass and the optimizer, derived from the forward steps as autograd derives them."""

from __future__ import annotations

from accelera.simulator.workloads.tape import Step, Tape

_LEARNS = frozenset({"weight", "activation"})
_PRODUCTS = frozenset(
    {"Q", "K", "V", "scores", "context", "output", "up", "down", "router", "expert_up", "expert_down"}
    | {"conv", "logits"}
)
"""Steps whose backward is two products of the forward's size."""


class Optimizer:
    """AdamW: two moments per weight, in float32, updated in place."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._moments: dict[int, tuple[int, int]] = {}

    def step(self, gradients: dict[int, int]) -> None:
        """Add one update per weight that has a gradient."""
        for weight in sorted(each for each in gradients if self._tape.roles[each] == "weight"):
            if weight not in self._moments:
                self._moments[weight] = self._made(weight)
            elements = self._tape.sizes[weight] // self._tape.item_bytes
            updated = (weight, *self._moments[weight])
            self._tape.step("adamw", (gradients[weight], *updated), updated, 12.0 * elements)

    def _made(self, weight: int) -> tuple[int, int]:
        elements = self._tape.sizes[weight] // self._tape.item_bytes
        name = self._tape.names[weight]
        first, second = (
            self._tape.lasting(f"{moment}_{name}", elements, "optimizer_state", "float32")
            for moment in ("mean", "variance")
        )
        return first, second


def add_backward(tape: Tape, forward: list[Step], logits: int) -> dict[int, int]:
    """Add the loss and the backward steps of ``forward``; return the gradient's buffer by buffer."""
    gradients = {logits: _loss(tape, logits)}
    for step in reversed(forward):
        if step.writes and step.writes[0] in gradients:
            _add_step(tape, step, gradients)
    return gradients


def _loss(tape: Tape, logits: int) -> int:
    elements = tape.sizes[logits] // tape.item_bytes
    targets = tape.fresh("targets", max(1, elements // 1000), "input", "int64")
    loss = tape.fresh("loss", 1)
    tape.step("cross_entropy", (logits, targets), (loss,), 5.0 * elements)
    gradient = tape.fresh("d_logits", elements, "gradient")
    tape.step("cross_entropy_backward", (loss, logits, targets), (gradient,), 3.0 * elements)
    return gradient


def _add_step(tape: Tape, step: Step, gradients: dict[int, int]) -> None:
    """Add the backward step of one forward step, and the sums where a gradient has two sources."""
    arriving = gradients[step.writes[0]]
    learning = [each for each in dict.fromkeys(step.reads) if tape.roles[each] in _LEARNS]
    if step.op == "add":
        parts = dict.fromkeys(learning, arriving)
    else:
        parts = {each: _gradient(tape, each) for each in learning}
        saved = step.reads if step.saved == "inputs" else step.writes if step.saved == "outputs" else ()
        flops = step.flops * (2 if step.op in _PRODUCTS else 1)
        tape.step(f"{step.op}_backward", (arriving, *saved), tuple(parts.values()), flops)
    for buffer, part in parts.items():
        earlier = gradients.get(buffer)
        gradients[buffer] = part if earlier is None else _sum(tape, buffer, earlier, part)


def _gradient(tape: Tape, buffer: int) -> int:
    elements = tape.sizes[buffer] // tape.item_bytes
    return tape.fresh(f"d{len(tape.steps)}_{tape.names[buffer].split('@')[0]}", elements, "gradient")


def _sum(tape: Tape, buffer: int, earlier: int, part: int) -> int:
    made = _gradient(tape, buffer)
    tape.step("accumulate", (earlier, part), (made,), float(tape.sizes[buffer] // tape.item_bytes))
    return made
