"""Programs of captured functions: their capture, their replay, and gradients through them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from accelera.errors import StateError
from accelera.tensora.core import native
from accelera.tensora.python_calls import current, unobserved
from accelera.tensora.state_guard import StateGuard
from accelera.tensora.tensor_tree import flatten, rebuild, structure_of


class FunctionTrace:
    """Capture of one call of a function, while the call runs."""

    def __init__(self, arguments: list[Any]) -> None:
        self.calls: list[tuple[str, Callable[[], Any]]] = []
        self.generators: list[Any] = []
        self.unguarded: list[str] = []
        """What the function does that a replay cannot repeat."""
        self._capture = native.Capture(arguments)

    def host_call(self, call: Callable[[], Any], name: str) -> Any:
        """End the current part of the program, and run a Python call now and at this point of each replay."""
        self._capture.end_part()
        self._capture.pause()
        try:
            result = unobserved(call)
        finally:
            self._capture.resume()
        self.calls.append((name, call))
        return result

    def draw(self, generator: Any, seed: int, number: int) -> None:
        """Record a draw of random numbers; a replay draws again from the same generator."""
        self.generators.append(generator)
        self._capture.draw(seed, number)

    def note_unguarded(self, name: str) -> None:
        """Note that the function does something that a replay cannot repeat."""
        self.unguarded.append(name)

    def forward(self, function: Callable[[], list[Any]]) -> Any:
        """Run the function and return the captured program, without a backward pass."""
        before, current.trace = current.trace, self
        try:
            return self._capture.finish(function())
        finally:
            current.trace = before
            self._capture.abandon()

    def run(
        self, function: Callable[[], Any], uses: Iterable[tuple[int, ...]]
    ) -> tuple[Any, Any, Gradients | None]:
        """Run the function; return the captured program, the function's result, and its backward passes.

        `uses` are subsets of the results that get gradients in later calls, if known.
        """
        current.trace = self
        try:
            returned = function()
            results, _ = unique_tensors(returned)
            gradients = Gradients.of(results, uses)
            if gradients is None:
                return self._capture.finish(results), returned, None
            if native.has_hooks(gradients.outputs):
                # A capture of the backward pass would call them with gradients that are not the caller's.
                self.unguarded.append("a hook of a gradient inside of the function")
                return self._capture.finish(results), returned, gradients
            self._capture.end_part()
            self._capture.begin_alternatives()
            found = gradients.capture(self._capture)
            return self._capture.finish([*results, *found]), returned, gradients
        finally:
            current.trace = None
            self._capture.abandon()


def captured(function: Callable[[], list[Any]], arguments: list[Any]) -> Any:
    """Run a function of the arguments once, and return the program that computes its tensors."""
    trace = FunctionTrace(arguments)
    return trace.forward(function)


@dataclass
class GradientPart:
    """Backward pass of a captured function for one subset of its results."""

    used: tuple[int, ...]
    """Positions of the outputs that get a gradient."""
    summed: list[int]
    """Positions of the leaves whose gradient has several terms."""
    reached: list[int] = field(default_factory=list)
    """Positions of the leaves that a gradient reaches."""

    @property
    def n_arguments(self) -> int:
        """Number of tensors that a replay passes to the part."""
        return len(self.used) + len(self.summed)


class Gradients:
    """Backward passes of a captured function: from gradients of its results to those of its leaves.

    There is one for all results, and one for each further subset of them that is used; gradients of zero in
    place of missing ones would give other bits.
    """

    def __init__(self, results: list[Any], wanted: list[int], uses: Iterable[tuple[int, ...]]) -> None:
        self.wanted = wanted
        """Indices of the results that have a gradient."""
        self.outputs = [results[i] for i in wanted]
        self.leaves: list[Any] = native.leaves_of(self.outputs)
        self.sources: list[Any] = []
        """For each leaf the index of the argument that it is, or else the leaf itself."""
        positions = {id(each): i for i, each in enumerate(self.leaves)}
        self.leaves_by_output = [
            {positions[id(each)] for each in native.leaves_of([output])} for output in self.outputs
        ]
        everything = tuple(range(len(wanted)))
        subsets = [(0,), (1,)] if len(wanted) == 2 else sorted(set(uses) - {everything})
        self.parts = [self._part(each) for each in (everything, *subsets)]
        self.new_uses: set[tuple[int, ...]] = set()
        """Subsets of the results that were used, but have no part."""

    @classmethod
    def of(cls, results: list[Any], uses: Iterable[tuple[int, ...]]) -> Gradients | None:
        """Return the backward passes of these results, or None if none of them requires a gradient."""
        wanted = [i for i, each in enumerate(results) if each.requires_grad and native.has_graph(each)]
        return cls(results, wanted, uses) if wanted else None

    def _part(self, used: tuple[int, ...]) -> GradientPart:
        # A leaf with several uses gets their gradients one by one, after those from outside of the function.
        uses = native.uses_of([self.outputs[i] for i in used], self.leaves)
        return GradientPart(used, [i for i, n in enumerate(uses) if n > 1])

    def capture(self, capture: Any) -> list[Any]:
        """Capture the backward passes too; return the gradients of the leaves that they reach."""
        results: list[Any] = []
        for number, part in enumerate(self.parts):
            if number > 0:
                capture.end_part()
            results += self._capture_part(capture, part)
        return results

    def _capture_part(self, capture: Any, part: GradientPart) -> list[Any]:
        capture.pause()
        given: list[Any] = [None] * len(self.outputs)
        sums: list[Any] = [None] * len(self.leaves)
        for i in part.used:
            output = self.outputs[i]
            given[i] = native.full(output.shape, 1, output.dtype, output.device)
        for i in part.summed:
            sums[i] = empty_sum(self.leaves[i])
        capture.resume()
        capture.add_arguments([each for each in (*given, *sums) if each is not None])
        totals = self._totals(given, sums)
        part.reached = [i for i, each in enumerate(totals) if each is not None]
        return [totals[i] for i in part.reached]

    def flow(self, given: list[Any], sums: list[Any]) -> tuple[Any, ...]:
        """Run the backward pass of the captured call itself.

        Parameters
        ----------
        given
            Gradients of the outputs, or None.
        sums
            Sums of the gradients that the leaves have so far, or None.

        Returns
        -------
        tuple
            The sums with the gradients of this graph, or None.

        """
        used = tuple(i for i, each in enumerate(given) if each is not None)
        if all(part.used != used for part in self.parts):
            self.new_uses.add(used)
        return self._totals(given, sums)

    def _totals(self, given: list[Any], sums: list[Any]) -> tuple[Any, ...]:
        starts = [*zip(self.outputs, given, strict=True), *zip(self.leaves, sums, strict=True)]
        tensors = [tensor for tensor, grad in starts if grad is not None]
        grads = [grad.detach() for _, grad in starts if grad is not None]
        return tuple(native.gradients_of(tensors, grads, self.leaves))


class ReplayedProgram:
    """Captured program of one signature, ready to run again."""

    def __init__(
        self,
        captured: Any,
        trace: FunctionTrace,
        returned: Any,
        gradients: Gradients | None,
        guard: StateGuard,
    ) -> None:
        self.captured = captured
        self.guard = guard
        self.calls = trace.calls
        self._generators = trace.generators
        self._outside = [tensor for kind, _, _, tensor in captured.buffers() if kind == "outside"]
        self._structure = structure_of(returned)
        unique, self._positions = unique_tensors(returned)
        self._n_results = len(unique)
        self._wanted = gradients.wanted if gradients else []
        self.leaves: list[Any] = gradients.sources if gradients else []
        """Leaves that receive gradients; an argument is given by its index."""
        self._parts = gradients.parts if gradients else []
        self._leaves_by_output = gradients.leaves_by_output if gradients else []
        self.new_uses: set[tuple[int, ...]] = gradients.new_uses if gradients else set()
        """Subsets of the results that were used, but have no backward pass of their own."""
        self.operations = 0

    def prepare(self, *, graphs: bool) -> None:
        """Prepare the replays, after the passes over the captured program."""
        self.first = native.Replay(self.captured, graphs)
        """The replay that calls prefer; further ones, for concurrent calls, do without CUDA graphs."""
        self._idle = IdleReplays(self.first)

    def shares_memory(self, arguments: list[Any]) -> bool:
        """Return whether arguments, or memory of another library, may overlap an outside tensor."""
        if native.any_overlap(arguments, [*self.guard.tensors, *self._outside]):
            return True
        others = {native.storage_id(each): each for each in self._outside}
        for number, tensor in list(others.items()):
            if native.is_borrowed(tensor):
                del others[number]
                if native.any_overlap([tensor], list(others.values())):
                    return True
        return False

    def unguarded_tensors(self) -> list[str]:
        """Return names of tensors that no guard knows, or that Python both reads and changes."""
        known = set(map(native.storage_id, self.guard.tensors))
        names = [
            f"a tensor of shape {tensor.shape} that is reached in an unknown way"
            for tensor in self._outside
            if native.storage_id(tensor) not in known and not native.is_borrowed(tensor)
        ]
        return names if self.captured.reads_hold() else [*names, "elements of a tensor that Python reads"]

    def fits(self, arguments: list[Any]) -> bool:
        """Return whether state, outside tensors and gradients are as they were at the capture."""
        return self.guard.changed() is None and bool(self.first.fits(arguments))

    def __call__(self, arguments: list[Any], leaves: list[Any]) -> Any:
        """Replay the program; return the function's results, attached to the autograd graph of the leaves."""
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
            return rebuild(self._structure, (results[i] for i in self._positions))

        def backward(grads: list[Any], sums: list[Any]) -> tuple[Any, ...]:
            return self._backward(call_over, leaves, grads, sums, results)

        made = attached(results, self._wanted, leaves, backward)
        return rebuild(self._structure, (made[i] for i in self._positions))

    def _backward(
        self, call: OpenCall, leaves: list[Any], grads: list[Any], sums: list[Any], results: list[Any]
    ) -> tuple[Any, ...]:
        replay = call.take()
        used = tuple(i for i, each in enumerate(grads) if each is not None)
        number = next((i for i, each in enumerate(self._parts) if each.used == used), 0)
        part = self._parts[number]
        if part.used != used:
            self.new_uses.add(used)
        starts = [
            empty_sum(leaves[i]) if sums[i] is None else native.contiguous(sums[i]) for i in part.summed
        ]
        given = whole([grads[i] for i in part.used], [results[self._wanted[i]] for i in part.used])
        first = self._n_results + sum(len(each.reached) for each in self._parts[:number])
        try:
            for other in self._parts[:number]:
                replay.skip_part(other.n_arguments)
            replay.check_unchanged()
            replay.add_arguments([*given, *starts])
            replay.run_part()
            found = replay.results(first, first + len(part.reached))
        finally:
            call.give_back(replay)
        totals = list(sums)
        reached = set().union(*(self._leaves_by_output[i] for i in used))
        for i, gradient in zip(part.reached, found, strict=True):
            if i in reached:
                is_total = i in part.summed or sums[i] is None
                totals[i] = gradient if is_total else native.add(sums[i], gradient)
        return tuple(totals)


class IdleReplays:
    """Pool of replays that no call uses.

    The others are in use by calls of other threads, or wait for the backward pass of their call.
    """

    def __init__(self, first: Any) -> None:
        self._first = first
        self._idle: list[Any] = [first]

    def take(self) -> Any:
        """Take an idle replay, the first one if it is idle; None if all are in use."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def give_back(self, replay: Any) -> None:
        """Free the memory of a replay, and return it to the pool."""
        replay.end()
        self._idle.insert(len(self._idle) if replay is self._first else 0, replay)


class OpenCall:
    """Replay of a call that keeps its memory for the backward pass.

    The memory is freed after that pass, or once nothing refers to this object.
    """

    def __init__(self, idle: IdleReplays, replay: Any) -> None:
        self._idle = idle
        self._replay = replay

    def take(self) -> Any:
        """Take the replay; RuntimeError if the backward pass took it before."""
        if self._replay is None:
            raise StateError(
                "[jit] the backward pass of this call ran already, and its memory is gone; "
                "call the function again"
            )
        replay, self._replay = self._replay, None
        return replay

    def give_back(self, replay: Any) -> None:
        """Free the memory of the replay, and return it to the pool."""
        self._idle.give_back(replay)

    def __del__(self) -> None:
        if self._replay is not None:
            self.give_back(self._replay)


def unique_tensors(returned: Any) -> tuple[list[Any], list[int]]:
    """Return the tensors of a value, each once, and for each place of a tensor its position among them."""
    tensors: list[Any] = []
    flatten(returned, tensors)
    unique = {id(each): each for each in tensors}
    order = {number: i for i, number in enumerate(unique)}
    return list(unique.values()), [order[id(each)] for each in tensors]


def attached(
    results: list[Any], wanted: list[int], leaves: list[Any], backward: Callable[..., Any]
) -> list[Any]:
    """Return the results, with those at the indices `wanted` attached to the leaves by `backward`."""

    def checked(grads: list[Any], sums: list[Any]) -> Any:
        if native.grad_enabled():
            raise StateError(
                "[jit] create_graph=True, but the backward pass of a captured function has no graph of its "
                "own; call the function without jit, or compute its gradients inside of it"
            )
        return backward(grads, sums)

    made = list(results)
    for i, each in zip(
        wanted, native.attach("jit", checked, leaves, [results[i] for i in wanted], True), strict=True
    ):
        made[i] = each
    return made


def empty_sum(leaf: Any) -> Any:
    """Return negative zeros of the shape of a leaf: what is added to them keeps its bits."""
    return native.full(leaf.shape, -0.0, leaf.dtype, leaf.device)


def whole(grads: Any, outputs: list[Any]) -> list[Any]:
    """Return the gradients of the outputs as contiguous tensors, zeros where a gradient is None."""
    return [
        native.full(each.shape, 0, each.dtype, each.device)
        if grad is None
        else native.contiguous(grad.detach())
        for grad, each in zip(grads, outputs, strict=True)
    ]
