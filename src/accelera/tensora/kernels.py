"""Elementwise operations that a program defines by a Python function: entries of the op table."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, overload

from accelera.errors import ArgumentError
from accelera.tensora.autograd import enable_grad
from accelera.tensora.captured_program import captured
from accelera.tensora.core import Tensor, native
from accelera.tensora.dtypes import as_dtype, isdtype

__all__ = ["TileKernel", "kernel"]

MOST_INPUTS = 6


class TileKernel:
    """Python function as one operation on tensors: it broadcasts and has gradients."""

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], *, tile: bool = False) -> None:
        functools.update_wrapper(self, function)
        self._name: str = function.__name__
        self._inputs = _number_of_inputs(function)
        self._builder = _EntryBuilder(self._name, tile)
        self._entry = self._builder.entry(self._name, function, self._inputs)

    def __call__(self, *inputs: Any) -> Tensor:
        """Value for each element, or row, of the inputs, which are broadcast.

        Parameters
        ----------
        *inputs
            Tensors, as many as the function has parameters; numbers become tensors of the first one's type.

        Raises
        ------
        TypeError
            If they are not as many, or the function does more than compute with elements.
        ValueError
            If their shapes do not fit.

        """
        if len(inputs) != self._inputs:
            raise ArgumentError(f"[kernel {self._name}] {len(inputs)} inputs given, {self._inputs} needed")
        return self._entry.run(_tensors(self._name, inputs))

    @property
    def name(self) -> str:
        """Name of the entry in the op table: the function's, with a number behind it where that was taken."""
        return str(self._entry.name)

    def bytecode(self, *dtypes: Any, length: int = 32) -> str:
        """The operations for elements of these types, float32 if none are given: a line for each.

        Of a tile `length` is the number of elements of a row.
        """
        return str(self._entry.words(self._types(dtypes), length))

    def cuda_source(self, *dtypes: Any, length: int = 32) -> str:
        """Text of the CUDA kernel for tensors of these types that lie alike, float32 if none are given.

        Of a tile `length` is the number of elements of a row.
        """
        return str(self._entry.cuda_source(self._types(dtypes), length))

    def gradient_source(self, *dtypes: Any, length: int = 32) -> str:
        """Text of the CUDA kernel of the gradients: of all inputs, or of the first where they are many."""
        types = self._types(dtypes)
        slopes = self._entry.results(types, length)
        return str(self._entry.gradient().cuda_source([*types, *slopes], length))

    def _types(self, dtypes: Sequence[Any]) -> list[Any]:
        return [as_dtype(each) for each in dtypes or [native.dtype.float32] * self._inputs]

    def __repr__(self) -> str:
        """Name, and the number of inputs."""
        return f"TileKernel({self.name}, inputs={self._inputs})"


@overload
def kernel(function: Callable[..., Tensor], *, tile: bool = False) -> TileKernel: ...


@overload
def kernel(function: None = None, *, tile: bool = False) -> Callable[[Callable[..., Tensor]], TileKernel]: ...


def kernel(function: Callable[..., Any] | None = None, *, tile: bool = False) -> Any:
    """Make an operation of a Python function of single elements, or of rows.

    The function is called once for each combination of element types (and length of rows), with tensors that
    stand for its inputs; what it computes with operators and elementwise functions becomes one entry of the
    op table: bytecode for the CPU, the source of a kernel for CUDA, and gradients that follow from those of
    the operations.

    Parameters
    ----------
    function
        Of at least one and at most six tensors; returns a tensor. It may use operators, elementwise functions
        and ``where``, numbers from outside, and Python that does not depend on elements.
    tile
        Whether its inputs are rows: tensors with one axis, the last of the operation's inputs. It may then
        use ``sum``, ``prod``, ``max``, ``min``, ``mean``, ``any`` and ``all`` of a row too, and returns a row
        or one element.

    Returns
    -------
    TileKernel
        Called with tensors.

    Raises
    ------
    TypeError
        If the parameters are not positional, none or too many; at the first call, if the function does more
        than compute with elements.

    """
    if function is None:
        return functools.partial(kernel, tile=tile)
    return TileKernel(function, tile=tile)


def _number_of_inputs(function: Callable[..., Any]) -> int:
    parameters = inspect.signature(function).parameters.values()
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not 1 <= len(parameters) <= MOST_INPUTS or any(each.kind not in plain for each in parameters):
        raise ArgumentError(
            f"[kernel {function.__name__}] parameters {inspect.signature(function)}; give one to "
            f"{MOST_INPUTS} positional ones, each for a tensor"
        )
    return len(parameters)


def _tensors(name: str, inputs: Sequence[Any]) -> list[Any]:
    first = next((each for each in inputs if isinstance(each, Tensor)), None)
    if first is None:
        raise ArgumentError(f"[kernel {name}] no input is a Tensor; give at least one")
    made = []
    for each in inputs:
        if not isinstance(each, (Tensor, bool, int, float)):
            raise ArgumentError(
                f"[kernel {name}] an input of type {type(each).__name__}; give tensors or numbers"
            )
        made.append(each if isinstance(each, Tensor) else native.full((), each, first.dtype))
    return made


class _EntryBuilder:
    """Builder of the op table's entries of one kernel: the function, and its gradients of any order."""

    def __init__(self, name: str, tile: bool) -> None:
        self._name = name
        self._tile = tile

    def entry(self, name: str, function: Callable[..., Any], inputs: int, outputs: int = 1) -> Any:
        """Entry of a function that returns one tensor, or a list of several."""

        def program(dtypes: Sequence[Any], length: int) -> Any:
            return self._program(function, dtypes, length)

        def gradient(group: int) -> Any:
            return self._gradient(name, function, (inputs, outputs), group)

        return native.new_kernel(name, self._tile, inputs, outputs, program, gradient)

    def _program(self, function: Callable[..., Any], dtypes: Sequence[Any], length: int) -> Any:
        """The function's operations on inputs of these types."""
        inputs = [native.full((length if self._tile else 2,), 1, each) for each in dtypes]
        try:
            program = captured(lambda: self._results(function(*inputs)), inputs)
        except RuntimeError as error:
            if not str(error).startswith("[jit] "):
                raise
            reason = str(error).removeprefix("[jit] ").partition(";")[0]
            raise ArgumentError(
                f"[kernel {self._name}] {reason}; a kernel is called once, not for each element: use ts.where"
            ) from error
        program.simplify()
        return program

    def _results(self, result: Any) -> list[Any]:
        results = result if isinstance(result, list) else [result]
        for each in results:
            if not isinstance(each, Tensor):
                raise ArgumentError(
                    f"[kernel {self._name}] the function returned {type(each).__name__}; return a tensor "
                    "that is computed from its inputs"
                )
            if not self._tile and tuple(each.shape) != (2,):
                raise ArgumentError(
                    f"[kernel {self._name}] the function made {each.size} elements of two; use elementwise "
                    "functions only, or tile=True"
                )
        return results

    def _gradient(self, name: str, function: Callable[..., Any], arity: tuple[int, int], group: int) -> Any:
        """Gradients of some inputs, as a function of the inputs and of the outputs' gradients."""
        inputs, outputs = arity
        together = inputs <= native.gradients_together
        chosen = range(inputs) if together else range(group, group + 1)

        def gradients(*given: Any) -> list[Any]:
            return _input_gradients(function, list(given[:inputs]), list(given[inputs:]), chosen)

        suffix = "" if together else str(group)
        return self.entry(f"{name}.gradient{suffix}", gradients, inputs + outputs, len(chosen))


def _input_gradients(
    function: Callable[..., Any], elements: list[Any], slopes: list[Any], chosen: Sequence[int]
) -> list[Any]:
    """Return the gradients of the chosen inputs, computed in a separate autograd graph."""
    with enable_grad():
        leaves = [_as_leaf(each) for each in elements]
        made = function(*leaves)
        results = made if isinstance(made, list) else [made]
        pairs = [
            (each, _first_element(slope) if each.ndim == 0 else slope)
            for each, slope in zip(results, slopes, strict=True)
            if each.requires_grad
        ]
        wanted = [leaves[i] for i in chosen if leaves[i].requires_grad]
        found: list[Any] = [None] * len(wanted)
        if pairs and wanted:
            outputs, given = map(list, zip(*pairs, strict=True))
            found = native.backward(outputs, given, wanted, True, True, False, True)
    by_leaf = {id(leaf): each for leaf, each in zip(wanted, found, strict=True)}
    return [_zeros_if_none(by_leaf.get(id(leaves[i])), leaves[i]) for i in chosen]


def _first_element(row: Any) -> Tensor:
    """Return the first element of a row, using only operations that a tile supports."""
    place = native.asarray([i == 0 for i in range(row.shape[0])])
    return native.sum(native.where(place, row, native.full((), 0, row.dtype)))


def _as_leaf(element: Any) -> Tensor:
    """Return an element that requires gradients; a type without gradients is returned as it is."""
    if element.requires_grad or not isdtype(element.dtype, ("real floating", "complex floating")):
        return element
    leaf = element.detach()
    leaf.requires_grad = True
    return leaf


def _zeros_if_none(gradient: Any, element: Any) -> Tensor:
    if gradient is None:
        return native.multiply(element, native.full((), 0, element.dtype))
    return gradient
