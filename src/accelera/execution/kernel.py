"""A function of one task, with a form for many tasks at once on a GPU beside it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, final, overload

from accelera.execution.checking import check_function

Task = TypeVar("Task")
Output = TypeVar("Output")

GpuBatch = Callable[[Sequence[Any], str], Sequence[Any]]
"""Takes tasks and a device's name, returns as many outputs in the same order."""


@final
class Kernel(Generic[Task, Output]):
    """A function of one task, and how it may be run.

    Parameters
    ----------
    function
        Returns the output of one task, on the CPU; a ``Kernel`` keeps its form for many tasks and is declared
        anew.
    pure
        Whether running a task twice does no harm, so that another device may take over one that is late.
    releases_gil
        Whether it lets other Python threads run; None: found out.

    Raises
    ------
    TypeError
        When ``function`` cannot be called.
    """

    def __init__(
        self, function: Callable[[Task], Output], *, pure: bool = False, releases_gil: bool | None = None
    ) -> None:
        check_function("kernel", function)
        inner = function.function if isinstance(function, Kernel) else function
        functools.update_wrapper(self, inner)
        self.function: Callable[[Task], Output] = inner
        self.pure = pure
        self.releases_gil = releases_gil
        self.batch: GpuBatch | None = function.batch if isinstance(function, Kernel) else None
        """Returns the outputs of many tasks at once on a GPU; None: tasks go there one by one."""

    def __call__(self, task: Task) -> Output:
        """Return the output of one task."""
        return self.function(task)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Travel by name where it is found under its function's, as a decorator leaves it; else as it is."""
        module, name = getattr(self, "__module__", None), getattr(self, "__qualname__", "")
        found: Any = None if module in (None, "__main__") else sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else super().__reduce_ex__(protocol)

    def gpu_batch(self, function: GpuBatch) -> GpuBatch:
        """Declare ``function(tasks, device)`` as the form for many tasks at once; usable as a decorator."""
        check_function("gpu_batch", function)
        self.batch = function
        return function


@overload
def kernel(function: Callable[[Task], Output]) -> Kernel[Task, Output]: ...


@overload
def kernel(
    *, pure: bool = ..., releases_gil: bool | None = ...
) -> Callable[[Callable[[Task], Output]], Kernel[Task, Output]]: ...


def kernel(
    function: Callable[[Any], Any] | None = None, *, pure: bool = False, releases_gil: bool | None = None
) -> Any:
    """Make a function a ``Kernel``; usable as a decorator with and without arguments.

    Parameters
    ----------
    function
        The function of one task; left out where options are given to a decorator.
    pure
        Whether the function may be carried out twice for a task without harm.
    releases_gil
        Whether it lets other Python threads run; None: it is measured.
    """
    if function is None:
        return functools.partial(Kernel, pure=pure, releases_gil=releases_gil)
    return Kernel(function, pure=pure, releases_gil=releases_gil)


def name_of(function: Callable[..., Any]) -> str:
    """Return a name by which measurements of ``function`` are found again: its module and qualified name."""
    inner = function.function if isinstance(function, Kernel) else function
    while isinstance(inner, functools.partial):
        inner = inner.func
    module = getattr(inner, "__module__", None) or type(inner).__module__
    return f"{module}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
