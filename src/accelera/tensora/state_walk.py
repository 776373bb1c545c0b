"""Collection of the state that a captured function can read, from its globals, closure and arguments."""

from __future__ import annotations

import array
import collections
import contextvars
import datetime
import decimal
import enum
import fractions
import functools
import gc
import io
import operator
import pickle
import random
import re
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any

import numpy as np

from accelera.tensora.core import Tensor
from accelera.tensora.dtypes import float32
from accelera.tensora.nn.module import Module
from accelera.tensora.optim.optimizer import Optimizer
from accelera.tensora.random import Generator
from accelera.tensora.state_guard import ABSENT, StateGuard

MAX_ARRAY_BYTES = 1 << 24
"""Maximum size of the arrays whose elements each call compares; functions that read more are not captured."""
MAX_VALUES = 100_000
"""Maximum number of objects that each call compares."""

_IMMUTABLE = (
    bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), range, slice,
    fractions.Fraction, decimal.Decimal, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo,
    re.Pattern, enum.Enum, np.generic, np.dtype, np.ufunc, types.CodeType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType,
    type(float32), Generator,
)  # fmt: skip
_BASES = (bool, int, float, complex, str, bytes, enum.Enum)
"""Of these, classes of the user derive."""
_NUMPY_GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_HEAP_TYPE = 1 << 9
_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


class StateWalk:
    """State reachable from the roots of a function through containers and through attributes that code names.

    Code that is about to run adds its names first, so that the state is recorded before the code changes it.
    An attribute that no code names is not recorded.
    """

    def __init__(self) -> None:
        self.guard = StateGuard()
        self.codes: set[types.CodeType] = set()
        """Code of the functions that were reached."""
        self.unguarded: list[str] = []
        """Names of values that a replay cannot follow."""
        self._names: set[str] = set()
        self._has_all_names = False
        self._array_bytes = 0
        self._visited: dict[int, Any] = {}
        self._scanned: set[Any] = set()
        self._layers: set[int] = set()
        """Identities of the namespaces of layers."""
        """Classes, and (module, name), that were recorded."""
        self._queue: list[tuple[Any, str]] = []
        self._namespaces: list[tuple[dict[str, Any], str, set[str]]] = []
        self._optimizers: list[tuple[Optimizer, str]] = []
        self._random_states: list[tuple[str, Callable[[], Any], Any]] = []
        self._add_random_state("random", random.getstate)
        self._add_random_state("numpy.random", lambda: repr(np.random.get_state(legacy=False)))
        torch: Any = sys.modules.get("torch")
        if hasattr(torch, "get_rng_state"):
            self._add_random_state("torch", lambda: bytes(torch.get_rng_state().numpy()))

    # --- interface of the observer

    def visit(self, value: Any, path: str) -> None:
        """Record a value and everything that it leads to."""
        self._queue.append((value, path))
        self._visit_queued()

    def _visit_queued(self) -> None:
        while self._queue:
            value, path = self._queue.pop()
            if has_no_state(value) or id(value) in self._visited:
                continue
            self._visited[id(value)] = value
            if len(self._visited) > MAX_VALUES:
                self.unguarded.append(f"more than {MAX_VALUES} values, among them {path}")
                self._queue.clear()
                return
            self._record(value, path)

    def add_names(self, names: Iterable[str]) -> None:
        """Record the attributes of these names, of all objects that were visited or will be."""
        new = set(names) - self._names
        self._names |= new
        if new and not self._has_all_names:
            for namespace in list(self._namespaces):
                self._scan(*namespace, new)
        if "param_groups" in new:
            self._record_groups()
        if "defaults" in new:
            self._record_defaults()
        self._visit_queued()

    def add_all_names(self) -> None:
        """Record all attributes: code reads or writes attributes by names that it computes."""
        if self._has_all_names:
            return
        self._has_all_names = True
        for namespace in list(self._namespaces):
            self._scan(*namespace, namespace[0])
        self._record_groups()
        self._visit_queued()

    def visit_item(self, owner: Any, key: Any, path: str) -> None:
        """Record the item of a namespace that code reads or writes."""
        value = owner.get(key, ABSENT)
        self.guard.add_item(owner, key, value, path)
        if value is not ABSENT and not isinstance(value, types.ModuleType):
            self.visit(value, path)

    def visit_module(self, module: types.ModuleType, names: Iterable[str], path: str) -> None:
        """Record the variables of a Python module that code names, also those of modules inside it."""
        if module.__name__.split(".")[0] == "accelera":
            return
        for name in set(names).intersection(vars(module)):
            if (id(module), name) in self._scanned:
                continue
            self._scanned.add((id(module), name))
            self.visit_item(vars(module), name, f"{path}.{name}")
            if isinstance(vars(module)[name], types.ModuleType):
                self.visit_module(vars(module)[name], names, f"{path}.{name}")

    def changed(self) -> list[str]:
        """Return names of values that have changed since they were recorded."""
        changed = [name for name, current, before in self._random_states if current() != before]
        path = self.guard.changed()
        return [f"random numbers of {name}" for name in changed] + ([path] if path else [])

    # --- recording by type

    def _record(self, value: Any, path: str) -> None:
        for kinds, record in _RECORDERS:
            if isinstance(value, kinds):
                record(self, value, path)
                return
        kind = type(value)
        if hasattr(kind, "_record_state"):
            value._record_state(self, path)
        elif hasattr(kind, "__next__"):
            self.unguarded.append(f"the iterator {path}")
        elif hasattr(kind, "__array__"):
            self._record_array_of(value, path)
        elif not kind.__flags__ & _HEAP_TYPE and not hasattr(value, "__dict__"):
            self._record_opaque(value, path)
        else:
            self._record_object(value, path)

    def _record_tensor(self, tensor: Any, path: str) -> None:
        self.guard.add_tensor(tensor, path)
        attributes = getattr(tensor, "__dict__", None)
        if attributes:
            self._add_namespace(attributes, path)

    def _record_list(self, items: Any, path: str) -> None:
        self.guard.add_length(items, path)
        for i, item in enumerate(items):
            self.guard.add_item(items, i, item, f"{path}[{i}]")
            self._queue.append((item, f"{path}[{i}]"))
        self._record_subclass(items, path)

    def _record_tuple(self, items: Any, path: str) -> None:
        self._queue += [(item, f"{path}[{i}]") for i, item in enumerate(items)]
        self._record_subclass(items, path)

    def _record_dict(self, items: Any, path: str) -> None:
        self.guard.add_length(items, path)
        for key, item in dict.items(items):
            self.guard.add_item(items, key, item, f"{path}[{key!r:.40}]")
            self._queue.append((item, f"{path}[{key!r:.40}]"))
        order = list(items)
        if len(order) > 1:
            self.guard.add_check(
                path, lambda: len(items) == len(order) and all(map(operator.is_, items, order))
            )
        self._record_subclass(items, path)

    def _record_view(self, view: Any, path: str) -> None:
        self._queue += [(items, path) for items in gc.get_referents(view)]

    def _record_set(self, items: Any, path: str) -> None:
        before = list(items)  # kept, so that no other object has the identity of one of them
        identities = set(map(_identity_of, before))
        self.guard.add_check(path, lambda: set(map(_identity_of, items)) == identities)
        self._queue += [(item, path) for item in items]

    def _record_deque(self, items: Any, path: str) -> None:
        before = list(items)
        self.guard.add_check(
            path,
            lambda: len(items) == len(before) and all(a is b for a, b in zip(items, before, strict=True)),
        )
        self._queue += [(item, path) for item in before]

    def _record_array(self, array: Any, path: str) -> None:
        if not self._has_capacity(array.nbytes, path):
            return
        if array.dtype.hasobject:
            self._queue += [(item, path) for item in array.ravel().tolist()]
        layout, data = (array.shape, array.dtype), array.tobytes()
        self.guard.add_check(
            path, lambda: (array.shape, array.dtype) == layout and bool(array.tobytes() == data)
        )
        self._record_subclass(array, path)

    def _has_capacity(self, nbytes: int, path: str) -> bool:
        """Return whether elements of this size can be compared in each call."""
        self._array_bytes += nbytes
        if self._array_bytes > MAX_ARRAY_BYTES:
            self.unguarded.append(f"arrays of more than {MAX_ARRAY_BYTES} bytes, among them {path}")
            return False
        return True

    def _record_array_of(self, value: Any, path: str) -> None:
        try:
            data = _elements_of(value)
        except Exception:  # any error of any type's own methods
            self.unguarded.append(f"the {type(value).__name__} {path}")
            return
        if self._has_capacity(len(data), path):
            self.guard.add_check(path, lambda: _elements_of(value) == data)
        self._record_subclass(value, path)

    def _record_opaque(self, value: Any, path: str) -> None:
        """Record an object of C by its pickle; one that has none, as a lock, is taken to have no state."""
        try:
            before = pickle.dumps(value)
        except Exception:  # any error of any type's own methods
            return
        self.guard.add_check(path, lambda: pickle.dumps(value) == before)

    def _record_python_module(self, module: types.ModuleType, path: str) -> None:
        if is_user_module(module.__name__):
            self._add_namespace(vars(module), path)

    def _record_reference(self, reference: Any, path: str) -> None:
        target = reference()
        self.guard.add_check(path, lambda: reference() is target)
        self._queue.append((target, path))

    def _record_stream(self, stream: Any, path: str) -> None:
        if stream not in (sys.stdout, sys.stderr):
            self.unguarded.append(f"the file {path}")

    def _record_bytes(self, data: Any, path: str) -> None:
        before = bytes(data)
        self.guard.add_check(path, lambda: bytes(data) == before)

    def _record_function(self, function: Any, path: str) -> None:
        self.codes.add(function.__code__)
        self.guard.add_item(function, "__code__", function.__code__, path)
        for name in ("__defaults__", "__kwdefaults__"):
            value = getattr(function, name)
            if value is not None:
                self.guard.add_item(function, name, value, f"{path}.{name}")
                self._queue.append((value, f"{path}.{name}"))
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            value = _cell_contents(cell)
            self.guard.add_item(cell, "cell_contents", value, name)
            if value is not ABSENT:
                self._queue.append((value, name))
        self._add_namespace(vars(function), path)

    def _record_method(self, method: Any, path: str) -> None:
        self._queue += [(method.__self__, path.rpartition(".")[0] or "self"), (method.__func__, path)]

    def _record_builtin(self, function: Any, path: str) -> None:
        owner = function.__self__
        if owner is not None and not isinstance(owner, types.ModuleType):
            self._queue.append((owner, f"{path}.__self__"))

    def _record_partial(self, value: Any, path: str) -> None:
        self._queue += [(value.func, f"{path}.func"), (value.args, f"{path}.args")]
        self._queue.append((value.keywords, f"{path}.keywords"))
        self._add_namespace(vars(value), path)

    def _record_descriptor(self, value: Any, path: str) -> None:
        for name in ("__func__", "__wrapped__", "fget", "fset", "func"):
            function = getattr(value, name, None)
            if function is not None:
                self._queue.append((function, path))

    def _record_class(self, kind: Any, path: str) -> None:
        for base in kind.__mro__:
            is_library = base.__module__.split(".")[0] in ("accelera", "builtins")
            if is_library or not base.__flags__ & _HEAP_TYPE or base in self._scanned:
                continue
            self._scanned.add(base)
            # The dict behind the read-only view of it; lookups in the view are several times slower.
            self._add_namespace(gc.get_referents(vars(base))[0], f"{base.__qualname__}")

    def _record_module(self, module: Module, path: str) -> None:
        own = vars(module)
        self._layers.add(id(own))
        for name in ("_parameters", "_buffers", "_modules"):
            for key, value in own[name].items():
                self.guard.add_item(own[name], key, value, f"{path}.{key}")
                self._queue.append((value, f"{path}.{key}"))
            self.guard.add_length(own[name], f"{path}.{name}")
            self._visited[id(own[name])] = own[name]
        for name, hooks in own.items():
            if name.endswith("_hooks") and isinstance(hooks, dict):
                self._queue.append((hooks, f"{path}.{name}"))
        if type(module).__mro__[type(module).__mro__.index(Module) - 1].__module__.startswith("accelera."):
            # Layers of the library read some of their options by names in a table.
            self._scan(own, path, set(), own)
        self._record_object(module, path)

    def _record_optimizer(self, optimizer: Optimizer, path: str) -> None:
        # Steps are taken by Python in each call, so that options and states may change.
        self.guard.add_length(optimizer.param_groups, f"{path}.param_groups")
        for i, group in enumerate(optimizer.param_groups):
            self.guard.add_item(optimizer.param_groups, i, group, f"{path}.param_groups[{i}]")
            self._queue.append((group["params"], f"{path}.param_groups[{i}]['params']"))
        self._optimizers.append((optimizer, path))
        if self._has_all_names or "param_groups" in self._names:
            self._record_groups()
        if self._has_all_names or "defaults" in self._names:
            self._record_defaults()

    def _record_groups(self) -> None:
        """Record all options of the optimizers, which code of the user may read."""
        self._queue += [(each.param_groups, f"{path}.param_groups") for each, path in self._optimizers]

    def _record_defaults(self) -> None:
        self._queue += [(each.defaults, f"{path}.defaults") for each, path in self._optimizers]

    def _record_random(self, generator: random.Random, path: str) -> None:
        self._add_random_state(path, generator.getstate)

    def _record_numpy_random(self, generator: Any, path: str) -> None:
        if isinstance(generator, np.random.RandomState):
            self._add_random_state(path, lambda: repr(generator.get_state(legacy=False)))
            return
        source = getattr(generator, "bit_generator", generator)
        self._add_random_state(path, lambda: repr(source.state))

    def _add_random_state(self, path: str, current: Callable[[], Any]) -> None:
        self._random_states.append((path, current, current()))

    def _record_subclass(self, value: Any, path: str) -> None:
        if type(value).__flags__ & _HEAP_TYPE:
            self._record_object(value, path)

    def _record_object(self, value: Any, path: str) -> None:
        self.guard.add_item(value, "__class__", type(value), f"{path}.__class__")
        self._record_class(type(value), path)
        for name in _slots_of(type(value)):
            slot = getattr(value, name, ABSENT)
            self.guard.add_item(value, name, slot, f"{path}.{name}")
            if slot is not ABSENT:
                self._queue.append((slot, f"{path}.{name}"))
        namespace = getattr(value, "__dict__", None)
        if isinstance(namespace, dict):
            self._add_namespace(namespace, path)

    # --- attributes by name

    def _add_namespace(self, namespace: dict[str, Any], path: str) -> None:
        recorded: set[str] = set()
        self._namespaces.append((namespace, path, recorded))
        self._scan(namespace, path, recorded, namespace if self._has_all_names else self._names)
        # Attributes that code does not name may come and go.
        self.guard.add_length(
            namespace,
            path,
            lambda: self._has_all_names is False and self._names.intersection(namespace) == recorded,
        )

    def _scan(self, namespace: dict[str, Any], path: str, recorded: set[str], names: Iterable[str]) -> None:
        named = names if isinstance(names, set) else set(names)
        new = named.intersection(namespace) - recorded
        for name in [name for name in namespace if name in new] if new else ():
            recorded.add(name)
            value = namespace[name]
            if id(namespace) in self._layers and _is_recorded_with_layer(name, value):
                continue
            self.guard.add_item(namespace, name, value, f"{path}.{name}")
            self._queue.append((value, f"{path}.{name}"))


def has_no_state(value: Any) -> bool:
    """Return whether a value cannot change; those of classes that derive from such types have attributes."""
    if not isinstance(value, _IMMUTABLE):
        return False
    return not isinstance(value, _BASES) or not type(value).__flags__ & _HEAP_TYPE


def _elements_of(value: Any) -> bytes:
    """Return the elements of an array of another library; one that requires gradients is detached."""
    return np.asarray(value.detach() if hasattr(value, "detach") else value).tobytes()


def _identity_of(value: Any) -> Any:
    """Return a key that differs between members of a set that compare equal."""
    return (type(value), repr(value)) if type(value) in _BASES else id(value)


def _is_recorded_with_layer(name: str, value: Any) -> bool:
    is_dict = isinstance(value, dict)
    return is_dict and (name.endswith("_hooks") or name in ("_parameters", "_buffers", "_modules"))


def is_user_module(name: str) -> bool:
    """Return whether a module belongs neither to Accelera, nor to Python, nor to an installed package."""
    package = name.partition(".")[0]
    if package in sys.stdlib_module_names and package != "__main__":
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return package not in ("accelera", "numpy") and not file.startswith(_INSTALLED)


def _refuse(walk: StateWalk, value: Any, path: str) -> None:
    walk.unguarded.append(f"the {type(value).__name__} {path}")


def _cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def _slots_of(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                is_private = name.startswith("__") and not name.endswith("__")
                yield f"_{base.__name__.lstrip('_')}{name}" if is_private else name


_RECORDERS: tuple[tuple[Any, Callable[[StateWalk, Any, str], None]], ...] = (
    (Tensor, StateWalk._record_tensor),
    (Module, StateWalk._record_module),
    (Optimizer, StateWalk._record_optimizer),
    (list, StateWalk._record_list),
    (tuple, StateWalk._record_tuple),
    (dict, StateWalk._record_dict),
    ((set, frozenset), StateWalk._record_set),
    (collections.deque, StateWalk._record_deque),
    (np.ndarray, StateWalk._record_array),
    ((bytearray, array.array, memoryview), StateWalk._record_bytes),
    (types.FunctionType, StateWalk._record_function),
    (types.MethodType, StateWalk._record_method),
    (types.BuiltinFunctionType, StateWalk._record_builtin),
    ((types.MappingProxyType, KeysView, ValuesView, ItemsView), StateWalk._record_view),
    (functools.partial, StateWalk._record_partial),
    (
        (staticmethod, classmethod, property, functools.cached_property, functools.partialmethod),
        StateWalk._record_descriptor,
    ),
    (functools._lru_cache_wrapper, StateWalk._record_descriptor),
    (type, StateWalk._record_class),
    (types.ModuleType, StateWalk._record_python_module),
    (random.Random, StateWalk._record_random),
    (_NUMPY_GENERATORS, StateWalk._record_numpy_random),
    (weakref.ref, StateWalk._record_reference),
    (io.IOBase, StateWalk._record_stream),
    ((threading.local, contextvars.ContextVar), _refuse),
)
