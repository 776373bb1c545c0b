"""Programs of captured functions: their capture, their replay, and gradients through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelera.tensora.core import native
from accelera.tensora.python_calls import current
from accelera.tensora.tensor_tree import count, flatten, rebuild, structure_of


class FunctionTrace:
    """Capture of one call of a function, while it goes on."""

    def __init__(self, arguments: list[Any]) -> None:
        self.calls: list[tuple[str, Callable[[], Any]]] = []
        self.generators: list[Any] = []
        self._capture = native.Capture(arguments)

    def host_call(self, call: Callable[[], Any], name: str) -> Any:
        """End a part of the program, and let Python do this between the parts, now and in each replay."""
        self._capture.end_part()
        self._capture.pause()
        current.trace = None
        try:
            result = call()
        finally:
            current.trace = self
            self._capture.resume()
        self.calls.append((name, call))
        return result

    def draw(self, generator: Any, seed: int, number: int) -> None:
        """Note random numbers, which a replay draws again from the same generator."""
        self.generators.append(generator)
        self._capture.draw(seed, number)

    def forward(self, function: Callable[[], list[Any]]) -> Any:
        """The captured program, without a way back."""
        before, current.trace = current.trace, self
        try:
            return self._capture.finish(function())
        finally:
            current.trace = before
            self._capture.abandon()

    def run(self, function: Callable[[], Any]) -> tuple[Any, Any, GradientPart | None]:
        """The captured program, what the function returned, and the way back from it."""
        current.trace = self
        try:
            returned = function()
            results: list[Any] = []
            flatten(returned, results)
            gradients = GradientPart.of(results)
            if gradients is None:
                return self._capture.finish(results), returned, None
            self._capture.end_part()
            found = gradients.capture(self._capture)
            return self._capture.finish([*results, *found]), returned, gradients
        finally:
            current.trace = None
            self._capture.abandon()


def captured(function: Callable[[], list[Any]], arguments: list[Any]) -> Any:
    """Program of the function's tensors, from the arguments; the function runs once."""
    trace = FunctionTrace(arguments)
    return trace.forward(function)


class GradientPart:
    """Gradients of a captured function's leaves, from those of its results."""

    def __init__(self, results: list[Any], wanted: list[int]) -> None:
        self.wanted = wanted
        """Numbers of the results that gradients flow back from."""
        self.outputs = [results[i] for i in wanted]
        self.leaves: list[Any] = native.leaves_of(self.outputs)
        self.reached: list[int] = []
        """Numbers of the leaves that have gradients."""

    @classmethod
    def of(cls, results: list[Any]) -> GradientPart | None:
        """The part of these results, or None where no gradients flow back from them."""
        wanted = [i for i, each in enumerate(results) if each.requires_grad and native.has_graph(each)]
        return cls(results, wanted) if wanted else None

    def capture(self, capture: Any) -> list[Any]:
        """Add the backward pass to the program; gradients of the leaves that are reached."""
        capture.pause()
        given = [native.full(each.shape, 1, each.dtype, each.device) for each in self.outputs]
        capture.resume()
        capture.add_arguments(given)
        found = self.flow(given)
        self.reached = [i for i, each in enumerate(found) if each is not None]
        return [found[i] for i in self.reached]

    def flow(self, given: list[Any]) -> list[Any]:
        """Gradients of the leaves, or None, by the graph that the captured call left."""
        found: list[Any] = native.backward(self.outputs, given, self.leaves, True, False, False, True)
        return found


class ReplayedProgram:
    """Captured program of one signature, ready to run again."""

    def __init__(
        self,
        captured: Any,
        trace: FunctionTrace,
        returned: Any,
        gradients: GradientPart | None,
        *,
        graphs: bool,
    ) -> None:
        self.captured = captured
        self.calls = trace.calls
        self._generators = trace.generators
        self._structure = structure_of(returned)
        self._n_results = count(returned)
        self._wanted = gradients.wanted if gradients else []
        self._reached = gradients.reached if gradients else []
        self._n_leaves = len(gradients.leaves) if gradients else 0
        self.first = native.Replay(captured, graphs)
        """The replay that a call takes where it is idle; the others have no graphs, which keep memory."""
        self._idle = IdleReplays(self.first)
        self.operations = 0
        self.leaves: list[Any] = []
        """Leaves, or numbers of arguments, that gradients flow to."""

    def fits(self, arguments: list[Any]) -> bool:
        """Whether tensors outside, and gradients of leaves, are as the program has them."""
        fits: bool = self.first.fits(arguments)
        return fits

    def __call__(self, arguments: list[Any], leaves: list[Any]) -> Any:
        """Results of the function; gradients flow from them to the leaves."""
        replay = self._idle.take() or native.Replay(self.captured, False)
        try:
            replay.begin(arguments, [generator._next() for generator in self._generators])
            replay.run_part()
            for _, call in self.calls:
                call()
                replay.run_part()
            results = replay.results(0, self._n_results)
        except BaseException:
            self._idle.give_back(replay)
            raise
        call_over = OpenCall(self._idle, replay)
        if not self._wanted:
            del call_over
            return rebuild(self._structure, iter(results))

        def backward(*grads: Any) -> tuple[Any, ...]:
            return self._backward(call_over, grads, results)

        return rebuild(self._structure, iter(attached(results, self._wanted, leaves, backward)))

    def _backward(self, call: OpenCall, grads: Any, results: list[Any]) -> tuple[Any, ...]:
        replay = call.take()
        try:
            replay.check_unchanged()
            replay.add_arguments(whole(grads, [results[i] for i in self._wanted]))
            replay.run_part()
            found = replay.results(self._n_results, self._n_results + len(self._reached))
        finally:
            call.give_back(replay)
        given: list[Any] = [None] * self._n_leaves
        for i, gradient in zip(self._reached, found, strict=True):
            given[i] = gradient
        return tuple(given)


class IdleReplays:
    """Replays that no call uses; others are used by other threads, or until their backward passes."""

    def __init__(self, first: Any) -> None:
        self._first = first
        self._idle: list[Any] = [first]

    def take(self) -> Any:
        """The first if it is here, else another one; None where all are in use."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def give_back(self, replay: Any) -> None:
        """Let its memory go, and other calls use it."""
        replay.end()
        self._idle.insert(len(self._idle) if replay is self._first else 0, replay)


class OpenCall:
    """A replay whose memory is let go when the backward pass has run, or nobody can ask for it any more."""

    def __init__(self, idle: IdleReplays, replay: Any) -> None:
        self._idle = idle
        self._replay = replay

    def take(self) -> Any:
        """The replay, once."""
        if self._replay is None:
            raise RuntimeError(
                "jit: the backward pass of this call ran already, and its memory is gone; "
                "call the function again"
            )
        replay, self._replay = self._replay, None
        return replay

    def give_back(self, replay: Any) -> None:
        """Let the memory go, and the replay serve other calls."""
        self._idle.give_back(replay)

    def __del__(self) -> None:
        if self._replay is not None:
            self.give_back(self._replay)


def attached(
    results: list[Any], wanted: list[int], leaves: list[Any], backward: Callable[..., Any]
) -> list[Any]:
    """The results, of which the wanted ones lead back to the leaves."""
    made = list(results)
    for i, each in zip(
        wanted, native.attach("jit", backward, leaves, [results[i] for i in wanted]), strict=True
    ):
        made[i] = each
    return made


def whole(grads: Any, outputs: list[Any]) -> list[Any]:
    """Contiguous gradients, zeros where none came."""
    return [
        native.full(each.shape, 0, each.dtype, each.device)
        if grad is None
        else native.contiguous(grad.detach())
        for grad, each in zip(grads, outputs, strict=True)
    ]
