"""Modules that hold others: sequences, lists and dictionaries of modules and parameters."""

from __future__ import annotations

import operator
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from accelera.errors import IndexingError
from accelera.tensora.core import Tensor
from accelera.tensora.nn.module import Module
from accelera.tensora.nn.parameter import Parameter


def _normalized_index(index: Any, length: int, name: str) -> int:
    """Return an index counted from the front; IndexError if it is out of range."""
    place = operator.index(index)
    if not -length <= place < length:
        raise IndexingError(f"[{name}] index {place} of {length} entries")
    return place % length


class _Indexed(Module):
    """Modules under the names "0", "1" and so on."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __contains__(self, module: object) -> bool:
        return any(module is each for each in self._modules.values())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)._from_modules(list(self._modules.values())[index])
        return list(self._modules.values())[_normalized_index(index, len(self), type(self).__name__)]

    def __setitem__(self, index: Any, module: Module) -> None:
        names = list(self._modules)
        setattr(self, names[_normalized_index(index, len(self), type(self).__name__)], module)

    def __delitem__(self, index: Any) -> None:
        kept = list(self._modules.values())
        del kept[index]
        self._set_modules(kept)

    @classmethod
    def _from_modules(cls, modules: list[Any]) -> Any:
        made = cls()
        made._set_modules(modules)
        return made

    def _set_modules(self, modules: Iterable[Any]) -> None:
        self._modules.clear()
        for i, module in enumerate(modules):
            self.add_module(str(i), module)

    def append(self, module: Module) -> Any:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Any:
        """Add a module before the one at `index`."""
        all_modules = list(self._modules.values())
        all_modules.insert(index, module)
        self._set_modules(all_modules)
        return self

    def pop(self, index: int = -1) -> Any:
        """Remove a module and return it."""
        all_modules = list(self._modules.values())
        found = all_modules.pop(index)
        self._set_modules(all_modules)
        return found


class Sequential(_Indexed):
    """Modules one after the other, each on the output of the one before.

    Parameters
    ----------
    *modules
        Modules, or one dictionary of them by name.

    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            self._set_modules(modules)

    def forward(self, input: Tensor) -> Tensor:
        """Pass the input through all modules."""
        for module in self:
            input = module(input)
        return input


class ModuleList(_Indexed):
    """Modules in a list; it has no forward of its own."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self._set_modules(modules or ())

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, other: Iterable[Module]) -> ModuleList:
        self.extend(other)
        return self


class ModuleDict(Module):
    """Modules by name; it has no forward of its own."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add modules, in place of those of the same names."""
        for name, module in modules.items() if isinstance(modules, Mapping) else modules:
            self[name] = module

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, name: str) -> bool:
        return name in self._modules

    def __getitem__(self, name: str) -> Module:
        return self._modules[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __delitem__(self, name: str) -> None:
        del self._modules[name]

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self._modules.keys()

    def values(self) -> ValuesView[Module]:
        """Return the modules."""
        return self._modules.values()

    def items(self) -> ItemsView[str, Module]:
        """Return pairs of name and module."""
        return self._modules.items()

    def pop(self, name: str) -> Module:
        """Remove a module and return it."""
        return self._modules.pop(name)

    def clear(self) -> None:
        """Remove all modules."""
        self._modules.clear()


def _as_parameter(value: Tensor) -> Parameter:
    return value if isinstance(value, Parameter) else Parameter(value)


class ParameterList(Module):
    """Parameters in a list; tensors become parameters."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.extend(values or ())

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parameters.values())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ParameterList(list(self)[index])
        return list(self)[_normalized_index(index, len(self), "ParameterList")]

    def __setitem__(self, index: int, value: Any) -> None:
        self._parameters[str(_normalized_index(index, len(self), "ParameterList"))] = _as_parameter(value)

    def append(self, value: Tensor) -> ParameterList:
        """Add a parameter at the end."""
        self._parameters[str(len(self))] = _as_parameter(value)
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add parameters at the end."""
        for value in values:
            self.append(value)
        return self


class ParameterDict(Module):
    """Parameters by name; tensors become parameters."""

    def __init__(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None) -> None:
        super().__init__()
        self.update(parameters or {})

    def update(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add parameters, in place of those of the same names."""
        for name, value in parameters.items() if isinstance(parameters, Mapping) else parameters:
            self[name] = value

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def __getitem__(self, name: str) -> Parameter:
        return self._parameters[name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.register_parameter(name, _as_parameter(value))

    def __delitem__(self, name: str) -> None:
        del self._parameters[name]

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self._parameters.keys()

    def values(self) -> ValuesView[Parameter]:
        """Return the parameters."""
        return self._parameters.values()

    def items(self) -> ItemsView[str, Parameter]:
        """Return pairs of name and parameter."""
        return self._parameters.items()

    def pop(self, name: str) -> Parameter:
        """Remove a parameter and return it."""
        return self._parameters.pop(name)
