"""Functions of one task: ``Kernel``, with a batched form for GPUs; identities and caches by function."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from types import CodeType, FunctionType
from typing import Any, Final, Generic, TypeVar, final, overload

from accelera.execution.arguments import WorkloadProfile, check_function

Task = TypeVar("Task")
Output = TypeVar("Output")

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@final
class LruDict(Generic[Key, Value]):
    """Dictionary of at most ``size`` entries: a new one takes the place of the one used longest ago.

    May be used by several threads, which at worst lose an entry to each other. It has no lock that a fork
    could leave taken.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[Key, Value] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def get(self, key: Key) -> Value | None:
        """Return the value of ``key``, which counts as used now; None where there is none."""
        try:
            self._kept.move_to_end(key)
            return self._kept[key]
        except KeyError:
            return None

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of ``key``, made and kept where there is none."""
        found = self.get(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found

    def put(self, key: Key, value: Value) -> Key | None:
        """Keep ``value``; return the key that was dropped for it, if there is one."""
        self._kept.pop(key, None)
        self._kept[key] = value
        return self._kept.popitem(last=False)[0] if len(self._kept) > self._size else None

    def remove(self, key: Key) -> None:
        """Drop ``key``, if it is there."""
        self._kept.pop(key, None)


FUNCTIONS_KEPT: Final = 1024
"""Functions of which an executor keeps what it has measured."""

GpuBatch = Callable[[Any, Any], Any]
"""Takes a list of tasks and a device's name, returns one output per task, as a sequence or tensor."""
BatchFunction = TypeVar("BatchFunction", bound=GpuBatch)


@final
class Kernel(Generic[Task, Output]):
    """A function of one task, and how it may be run.

    Parameters
    ----------
    function
        Returns the output of one task, on the CPU; a ``Kernel`` keeps its batched form and is declared
        again.
    pure
        Whether running a task twice does no harm, so that another device may take over one that is late.
    releases_gil
        Whether it lets other Python threads run; None: found out.
    processes
        Whether the CPU runs it in worker processes: all tasks of a batch, which must be possible to pickle.

    Raises
    ------
    TypeError
        When ``function`` cannot be called.
    """

    __name__: str

    def __init__(
        self,
        function: Callable[[Task], Output],
        *,
        pure: bool = False,
        releases_gil: bool | None = None,
        processes: bool = False,
    ) -> None:
        check_function("kernel", function)
        inner = function.function if isinstance(function, Kernel) else function
        functools.update_wrapper(self, inner)
        self.function: Callable[[Task], Output] = inner
        self.pure = pure
        self.releases_gil = releases_gil
        self.processes = processes
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

    def gpu_batch(self, function: BatchFunction) -> BatchFunction:
        """Declare ``function(tasks, device)`` as the form for many tasks at once; usable as a decorator."""
        check_function("gpu_batch", function)
        self.batch = function
        return function


@overload
def kernel(
    function: Callable[[Task], Output],
    *,
    pure: bool = ...,
    releases_gil: bool | None = ...,
    processes: bool = ...,
) -> Kernel[Task, Output]: ...


@overload
def kernel(
    *, pure: bool = ..., releases_gil: bool | None = ..., processes: bool = ...
) -> Callable[[Callable[[Task], Output]], Kernel[Task, Output]]: ...


def kernel(
    function: Callable[[Any], Any] | None = None,
    *,
    pure: bool = False,
    releases_gil: bool | None = None,
    processes: bool = False,
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
    processes
        Whether the CPU runs it in worker processes: all tasks of a batch, which must be possible to pickle.
    """
    if function is None:
        return functools.partial(Kernel, pure=pure, releases_gil=releases_gil, processes=processes)
    return Kernel(function, pure=pure, releases_gil=releases_gil, processes=processes)


def name_of(function: Callable[..., Any]) -> str:
    """Return a name by which measurements of ``function`` are found again: its module and qualified name."""
    inner = _unwrap(function)
    module = getattr(inner, "__module__", None) or type(inner).__module__
    return f"{module}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"


_NO_PROFILE: Final = " 0/0.5"
_IDENTITIES: dict[tuple[int, str], tuple[CodeType, str, str]] = {}
"""Identity and key without a profile, by the address of the code, which is kept with them, and the name."""


def key_of(function: Callable[..., Any], profile: WorkloadProfile | None) -> str:
    """Return under which name measurements of such tasks are kept: other code or size, other measurements."""
    if profile is None:
        return _identity_and_key(function)[1]
    size_bits, complexity = _size_of(profile)
    return f"{identity_of(function)} {size_bits}/{complexity}"


def identity_of(function: Callable[..., Any]) -> str:
    """Return module, qualified name and a hash of the code.

    What a function closes over, and arguments that ``functools.partial`` holds, are not looked at.
    """
    return _identity_and_key(function)[0]


def _identity_and_key(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the identity, and the key of tasks of which nothing else is known."""
    inner = function if type(function) is FunctionType else _unwrap(function)
    code = getattr(inner, "__code__", None)
    if not isinstance(code, CodeType):
        name = name_of(inner)
        return name, name + _NO_PROFILE
    short = (id(code), inner.__qualname__)
    known = _IDENTITIES.get(short)
    if known is None:
        if len(_IDENTITIES) >= FUNCTIONS_KEPT:
            _IDENTITIES.clear()
        identity = f"{name_of(inner)}#{_hash_of(code)}"
        known = _IDENTITIES[short] = (code, identity, identity + _NO_PROFILE)
    return known[1:]


def _size_of(profile: WorkloadProfile) -> tuple[int, float]:
    """Return the class of tasks: bytes to the power of two, complexity to the quarter."""
    return profile.memory_per_task.bit_length(), round(4 * profile.complexity) / 4


def _unwrap(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the user's own function inside kernels, partial calls, and a method or ``ArgumentUnpacker``."""
    function = _without_partials(function)
    return _without_partials(getattr(function, "__func__", function))


def _without_partials(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, (Kernel, functools.partial)):
        function = function.function if isinstance(function, Kernel) else function.func
    return function


def _hash_of(code: CodeType) -> str:
    digest = hashlib.blake2b(digest_size=6)
    _update_digest(digest.update, code)
    return digest.hexdigest()


def _update_digest(update: Callable[[bytes], None], code: CodeType) -> None:
    update(code.co_code)
    update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _update_digest(update, constant)
        elif isinstance(constant, frozenset):
            update(repr(sorted(map(repr, constant))).encode())
        else:
            update(repr(constant).encode())
