"""L-BFGS: steps along an estimate of the inverse Hessian, from the last changes of the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelera.errors import ArgumentError
from accelera.tensora.autograd import enable_grad, no_grad
from accelera.tensora.core import Tensor, native
from accelera.tensora.optim.optimizer import Optimizer, Params

Point = tuple[float, float, Any, float]
"""A place on a line: step length, loss, gradient, slope along the line."""


class LBFGS(Optimizer):
    """Limited-memory BFGS (J. Nocedal 1980); computes the loss several times in each step.

    Parameters
    ----------
    params
        Tensors; one group.
    lr
        Length of the first step of each line search.
    max_iter
        Most iterations in a step.
    max_eval
        Most computations of the loss in a step; five quarters of `max_iter` if None.
    tolerance_grad
        It ends when no element of the gradient exceeds this.
    tolerance_change
        It ends when loss and parameters change by less.
    history_size
        Changes that are remembered.
    line_search_fn
        ``"strong_wolfe"``, or None for steps of length `lr`.

    Raises
    ------
    ValueError
        If there is more than one group, or the line search is not known.
    TypeError
        If `step` gets no closure, which lets go of the gradients, computes the loss, calls its ``backward``
        and returns it.

    """

    separable = False

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "max_iter": max_iter, "history_size": history_size}
        options["max_eval"] = max_iter * 5 // 4 if max_eval is None else max_eval
        options |= {"tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change}
        super().__init__(params, {**options, "line_search_fn": line_search_fn})
        if line_search_fn not in (None, "strong_wolfe"):
            raise ArgumentError(f"[LBFGS] line_search_fn={line_search_fn!r}; give 'strong_wolfe' or None")
        self._params: list[Any] = self.param_groups[0]["params"]

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add the one group of parameters; a second one is a ValueError."""
        if self.param_groups:
            raise ArgumentError("[LBFGS] 2 groups; give one list of parameters")
        super().add_param_group(group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over copies of the state and options that `state_dict` returned."""
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        for state in state_dict["state"].values():
            self.state[self._params[0]] = {name: _copied(value) for name, value in state.items()}

    def update(self, group: dict[str, Any], params: list[Any], grads: list[Any]) -> None:
        """Raise TypeError: a step takes all parameters together, and a closure."""
        raise ArgumentError("[LBFGS] parameters cannot be changed one at a time; call step(closure)")

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is None:
            raise ArgumentError("[LBFGS] step() without a closure; give a function that computes the loss")
        with no_grad():
            return _ClosureStep(self, closure).run()

    def gathered(self) -> Any:
        """Return the gradient of all parameters as one vector; zeros where there is none."""
        parts = [
            native.full((each.size,), 0, each.dtype, each.device)
            if each.grad is None
            else native.reshape(each.grad, (-1,))
            for each in self._params
        ]
        return native.concat(parts, 0)

    def copies(self) -> list[Any]:
        """Return copies of all parameters."""
        return [native.copy(each.detach()) for each in self._params]

    def place(self, values: list[Any]) -> None:
        """Write values into all parameters."""
        for each, value in zip(self._params, values, strict=True):
            each.detach()[...] = value

    def move(self, length: float, direction: Tensor) -> None:
        """Add a multiple of a direction to all parameters."""
        begin = 0
        for each in self._params:
            part = native.reshape(direction[begin : begin + each.size], tuple(each.shape))
            values = each.detach()
            values += length * part
            begin += each.size


class _ClosureStep:
    """One call of `LBFGS.step`."""

    def __init__(self, optimizer: LBFGS, closure: Callable[[], Any]) -> None:
        self.optimizer = optimizer
        self.options = optimizer.param_groups[0]
        self.state = optimizer.state.setdefault(optimizer._params[0], {"func_evals": 0, "n_iter": 0})
        self._closure = closure
        self.evaluations = 0

    def evaluate(self) -> tuple[float, Any]:
        """Loss and gradient where the parameters are."""
        with enable_grad():
            self.first = self._closure()
        self.evaluations += 1
        self.state["func_evals"] += 1
        return float(self.first), self.optimizer.gathered()

    def run(self) -> Any:
        loss, gradient = self.evaluate()
        original = self.first
        if _largest(gradient) <= self.options["tolerance_grad"]:
            return original
        for iteration in range(1, self.options["max_iter"] + 1):
            self.state["n_iter"] += 1
            direction = self.direction(gradient)
            self.state["prev_flat_grad"], self.state["prev_loss"] = native.copy(gradient), loss
            length = self.options["lr"]
            if self.state["n_iter"] == 1:
                length *= min(1.0, 1.0 / float(native.sum(native.abs(gradient))))
            slope = float(native.sum(gradient * direction))
            if slope > -self.options["tolerance_change"]:
                break
            before = loss
            loss, gradient, length = self.advance(iteration, (loss, gradient), direction, length, slope)
            self.state["d"], self.state["t"] = direction, length
            if self.ended(iteration, loss - before, gradient, direction * length):
                break
        return original

    def advance(
        self, iteration: int, here: tuple[float, Any], direction: Any, length: float, slope: float
    ) -> tuple[float, Any, float]:
        """Move along a direction; loss and gradient there, and how far it went."""
        if self.options["line_search_fn"] is None:
            self.optimizer.move(length, direction)
            if iteration == self.options["max_iter"]:
                return (*here, length)
            return (*self.evaluate(), length)
        start = self.optimizer.copies()

        def at(t: float) -> Point:
            self.optimizer.move(t, direction)
            loss, gradient = self.evaluate()
            self.optimizer.place(start)
            return t, loss, gradient, float(native.sum(gradient * direction))

        found = _strong_wolfe(at, (0.0, here[0], here[1], slope), length, _largest(direction))
        self.optimizer.move(found[0], direction)
        return found[1], found[2], found[0]

    def ended(self, iteration: int, change: float, gradient: Any, moved: Any) -> bool:
        options = self.options
        return (
            iteration == options["max_iter"]
            or self.evaluations >= options["max_eval"]
            or _largest(gradient) <= options["tolerance_grad"]
            or _largest(moved) <= options["tolerance_change"]
            or abs(change) < options["tolerance_change"]
        )

    def direction(self, gradient: Any) -> Any:
        """Return the gradient times the estimated inverse Hessian, by the two-loop recursion."""
        state = self.state
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], H_diag=1.0)
            return -gradient
        change = gradient - state["prev_flat_grad"]
        moved = state["d"] * state["t"]
        curvature = float(native.sum(change * moved))
        if curvature > 1e-10:
            if len(state["old_dirs"]) == self.options["history_size"]:
                del state["old_dirs"][0], state["old_stps"][0]
            state["old_dirs"].append(change)
            state["old_stps"].append(moved)
            state["H_diag"] = curvature / float(native.sum(change * change))
        pairs = list(zip(state["old_dirs"], state["old_stps"], strict=True))
        result, factors = -gradient, []
        for y, s in reversed(pairs):
            factor = float(native.sum(s * result)) / float(native.sum(y * s))
            factors.append(factor)
            result = result - factor * y
        result = result * state["H_diag"]
        for (y, s), factor in zip(pairs, reversed(factors), strict=True):
            result = result + s * (factor - float(native.sum(y * result)) / float(native.sum(y * s)))
        return result


def _copied(value: Any) -> Any:
    """Copy of a part of the state: vectors over all parameters, or lists of them."""
    if isinstance(value, list):
        return [_copied(each) for each in value]
    return native.copy(value) if isinstance(value, Tensor) else value


def _largest(x: Any) -> float:
    return float(native.max(native.abs(x)))


def _cubic(a: Point, b: Point, bounds: tuple[float, float] | None = None) -> float:
    """Least place of the cubic through two points and their slopes (J. Nocedal and S. Wright, eq. 3.59)."""
    low, high = bounds or (min(a[0], b[0]), max(a[0], b[0]))
    first = a[3] + b[3] - 3 * (a[1] - b[1]) / (a[0] - b[0])
    square = first * first - a[3] * b[3]
    if square < 0:
        return (low + high) / 2.0
    second = square**0.5
    if a[0] <= b[0]:
        least = b[0] - (b[0] - a[0]) * ((b[3] + second - first) / (b[3] - a[3] + 2 * second))
    else:
        least = a[0] - (a[0] - b[0]) * ((a[3] + second - first) / (a[3] - b[3] + 2 * second))
    return min(max(least, low), high)


def _strong_wolfe(at: Callable[[float], Point], start: Point, length: float, largest: float) -> Point:
    """Point where loss and slope have fallen enough (strong Wolfe conditions)."""
    least_slope, least_fall, most = 0.9, 1e-4, 25

    def falls(point: Point) -> bool:
        return point[1] <= start[1] + least_fall * point[0] * start[3]

    def is_flat(point: Point) -> bool:
        return abs(point[3]) <= -least_slope * start[3]

    last, point = start, at(length)
    for tries in range(most):
        if not falls(point) or (tries > 1 and point[1] >= last[1]):
            return _zoom(at, [last, point], falls, is_flat, most - tries, largest)
        if is_flat(point):
            return point
        if point[3] >= 0:
            return _zoom(at, [last, point], falls, is_flat, most - tries, largest)
        bounds = (point[0] + 0.01 * (point[0] - last[0]), point[0] * 10)
        last, point = point, at(_cubic(last, point, bounds))
    return min(start, point, key=lambda each: each[1])


def _zoom(
    at: Callable[[float], Point],
    bracket: list[Point],
    falls: Callable[[Point], bool],
    is_flat: Callable[[Point], bool],
    most: int,
    largest: float,
) -> Point:
    """Point between two that satisfies the conditions, or the lower one of the last two."""
    low, high = (0, 1) if bracket[0][1] <= bracket[1][1] else (1, 0)
    stuck = False
    for _ in range(most):
        width = abs(bracket[1][0] - bracket[0][0])
        if width * largest < 1e-9:
            break
        t = _cubic(bracket[0], bracket[1])
        left, right = min(bracket[0][0], bracket[1][0]), max(bracket[0][0], bracket[1][0])
        if min(right - t, t - left) / (right - left) < 0.1:
            if stuck or t >= right or t <= left:
                t = right - 0.1 * width if abs(t - right) < abs(t - left) else left + 0.1 * width
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        point = at(t)
        if not falls(point) or point[1] >= bracket[low][1]:
            bracket[high] = point
            low, high = (0, 1) if bracket[0][1] <= bracket[1][1] else (1, 0)
            continue
        if is_flat(point):
            return point
        if point[3] * (bracket[high][0] - bracket[low][0]) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = point
    return bracket[low]
