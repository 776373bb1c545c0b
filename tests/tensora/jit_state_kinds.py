"""Kinds of state that captured functions read: how to make a function, and how to change its state."""

from __future__ import annotations

import collections
import contextvars
import copy
import dataclasses
import decimal
import enum
import functools
import itertools
import operator
import os
import random
import sys
import threading
import types
import weakref
from typing import Any

import numpy as np

import accelera.tensora as ts
from accelera.tensora import nn, optim

ROWS, COLUMNS = 5, 3


def values(*shape, seed=0):
    return ts.tensor(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


class Holder(nn.Module):
    """Module whose forward pass is a function of it and of the input."""

    scale = 2.0

    def __init__(self, body, **attributes):
        super().__init__()
        self.body = body
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.body(self, x)


class Slotted:
    """Object without a dictionary of attributes."""

    __slots__ = ("_hidden", "k")

    def __init__(self, k):
        self.k = self._hidden = k

    @property
    def hidden(self):
        return self._hidden


@dataclasses.dataclass
class Options:
    """Options in a data class."""

    k: float = 1.0
    inner: list = dataclasses.field(default_factory=lambda: [1.0])


HELD = Options()


class Mode(enum.Enum):
    """Two ways to compute."""

    ADD = 1
    MULTIPLY = 2


class Computed:
    """Object whose attributes are computed by Python."""

    def __init__(self):
        self.table = {"k": 1.0}

    def __getattr__(self, name):
        return self.table[name]


SETTINGS: Any = types.ModuleType("jit_test_settings")
SETTINGS.k = 1.0
SETTINGS.inner = types.ModuleType("jit_test_settings.inner")
SETTINGS.inner.k = 1.0
sys.modules["jit_test_settings"] = SETTINGS
FACTOR = 1.0
SHARED = {"a": 1.0}
TABLE: Any = {"a": [1.0, {"b": 2.0}]}
VARIABLE = contextvars.ContextVar("factor", default=1.0)
LOCAL = threading.local()
EXTRA = types.SimpleNamespace()


def helper(x):
    return x * FACTOR


def with_global(m, x):
    return helper(x) + 1


def with_nested_global(m, x):
    return x * TABLE["a"][1]["b"]


def with_default(x, k=[1.0]):  # noqa: B006
    return x * k[0]


def with_keyword_default(x, *, k=None):
    return x * (1 if k is None else k)


@functools.lru_cache
def cached_scale():
    return 3.0


def set_global(m, k):
    globals()["FACTOR"] = float(k)


def attribute_of_function(m, x):
    attribute_of_function.calls = getattr(attribute_of_function, "calls", 0) + 1  # type: ignore[attr-defined]
    return x * attribute_of_function.calls  # type: ignore[attr-defined]


def closure():
    k = 1.0

    def body(m, x):
        return x * k

    def change(m, n):
        nonlocal k
        k = float(n)

    return Holder(body), change


def counter_in_closure():
    n = 0

    def body(m, x):
        nonlocal n
        n += 1
        return x * n

    return Holder(body), nothing


def iterator_in_closure():
    numbers = itertools.count()
    return Holder(lambda m, x: x * next(numbers)), nothing


def generator_in_closure():
    numbers = (k * 1.5 for k in range(100))
    return Holder(lambda m, x: x * next(numbers)), nothing


def random_in_closure():
    numbers = np.random.default_rng(3)
    return Holder(lambda m, x: x * float(numbers.normal())), restart(numbers)


def python_random_in_closure():
    numbers = random.Random(3)
    return Holder(lambda m, x: x * numbers.gauss(0, 1)), lambda m, k: numbers.seed(k)


def restart(numbers):
    state = copy.deepcopy(numbers.bit_generator.state)

    def change(m, k):
        numbers.bit_generator.state = state
        numbers.normal(size=k + 1)

    return change


def two_parameters():
    p, q = nn.Parameter(values(ROWS, COLUMNS)), nn.Parameter(values(ROWS, COLUMNS, seed=1))

    def body(m, x):
        m.optimizer.zero_grad()
        (x * m.p * m.q).square().sum().backward()
        m.optimizer.step()
        return m.p + m.q

    return Holder(body, p=p, q=q, optimizer=optim.SGD([p], lr=0.01))


def gradient_of(m, x):
    m.p.grad = None
    (x * m.p).square().sum().backward()
    return m.p.grad * 1


def with_gradient(m, x):
    return x if m.p.grad is None else x * m.p.grad


def hook_with_closure():
    k = 1.0

    def hook(module, given, result):
        return result * k

    def change(m, n):
        nonlocal k
        k = float(n)

    module = nn.Tanh()
    module.register_forward_hook(hook)
    return module, change


def gradient_hook_with_closure():
    k = 1.0

    def change(m, n):
        nonlocal k
        k = float(n)

    module = Holder(gradient_of, p=parameter())
    module.p.register_hook(lambda gradient: gradient * k)
    return module, change


def setting_of(owner):
    return lambda m, k: setattr(owner, "k", float(k))


def cached(function):
    made = functools.cached_property(function)
    owner: Any = None
    made.__set_name__(owner, "k")
    return made


def with_pattern(m, x):
    match m.options:
        case Options(k=k):
            return x * k


def rebound(m, x):
    m.state = m.state * 0.9 + ts.sum(x, axis=0)
    return m.state * 2


def lazy(m, x):
    if m.table is None:
        m.table = ts.ones((COLUMNS,)) * 3
    return x * m.table


def deleted(m, x):
    if hasattr(m, "extra"):
        return x * m.extra
    return x


def with_environment(m, x):
    return x * float(os.environ.get("ACCELERA_TEST_JIT", "1"))


def with_import(m, x):
    import jit_test_settings

    return x * jit_test_settings.k


def with_named_attribute(m, x):
    return x * getattr(m, "".join(["k"]))


def with_local_copy(m, x):
    own = m.options
    inner = own.inner
    return x * own.k + inner[0]


def with_appended(m, x):
    m.parts.append(1.0)
    return x * len(m.parts)


def with_popped(m, x):
    return x * m.parts.pop()


def with_item_set(m, x):
    m.table["n"] = m.table.get("n", 0) + 1
    return x * m.table["n"]


def with_written_array(m, x):
    m.array += 1
    return x * float(m.array[0])


def with_read_tensor(m, x):
    return x * float(m.state[0])


def with_written_numpy(m, x):
    np.asarray(m.state)[:] += 1
    return x + m.state


def with_branch(m, x):
    return x + 1 if m.mode is Mode.ADD else x * 3


def parameter():
    return nn.Parameter(values(ROWS, COLUMNS))


def nothing(m, k):
    pass


def setting(name, value):
    def change(m, k):
        owner = functools.reduce(getattr, name.split(".")[:-1], m)
        setattr(owner, name.split(".")[-1], value(k))

    return change


def second_time(change):
    """Change the state before the third call only."""

    def changed(m, k):
        if k == 2:
            change(m)

    return changed


def times(name):
    return lambda m, x: x * getattr(m, name)


class Doubled(Holder):
    """Holder with a method of its own."""

    def forward(self, x):
        return super().forward(x) * self.factor()

    def factor(self):
        return 2.0


class Shade(enum.Enum):
    """Members of an enumeration can hold objects that change."""

    LIGHT = 1

    def __init__(self, _):
        self.k = 1.0


class Measure(float):
    """A number with attributes."""

    def __init__(self, _):
        self.k = 1.0


class Labelled(np.ndarray):
    """An array with attributes."""


@dataclasses.dataclass
class Rule:
    """Equal to another one of the same name."""

    name: str
    k: float = dataclasses.field(compare=False)

    def __hash__(self):
        return hash(self.name)


class Doubling(Options):
    """Options of another class."""

    @property
    def double(self):
        return 2.0


def with_class(m, x):
    return x * getattr(m.options, "double", 1.0)


def with_parameter(attributes):
    parameter = nn.Parameter(ts.ones((1,)))
    for name, value in attributes.items():
        setattr(parameter, name, value)
    return parameter


def torch_layer():
    import torch

    return torch.nn.Linear(1, 1)


def fill_torch(m, k):
    import torch

    torch.nn.init.constant_(m.layer.weight, float(k))


def labelled():
    array: Any = np.ones(1).view(Labelled)
    array.k = 1.0
    return array


KINDS = {
    "list named hooks": (
        lambda: Holder(lambda m, x: functools.reduce(lambda y, f: f(y), m.own_hooks, x), own_hooks=[]),
        lambda m, k: m.own_hooks.append(lambda x: x + k),
    ),
    "list of an object named modules": (
        lambda: Holder(
            lambda m, x: x * sum(m.options._modules), options=types.SimpleNamespace(_modules=[1.0])
        ),
        lambda m, k: m.options._modules.append(float(k)),
    ),
    "parameter of a torch module": (
        lambda: Holder(lambda m, x: x * m.layer.weight.item(), layer=torch_layer()),
        fill_torch,
    ),
    "class of an object": (
        lambda: Holder(with_class, options=Options()),
        lambda m, k: setattr(m.options, "__class__", [Options, Doubling][k % 2]),
    ),
    "attribute of a parameter": (
        lambda: Holder(lambda m, x: x * m.weight * m.weight.k, weight=with_parameter({"k": 1.0})),
        setting("weight.k", float),
    ),
    "defaults of an optimizer": (
        lambda: Holder(
            lambda m, x: x * m.o.defaults["lr"], o=optim.SGD([nn.Parameter(ts.ones((1,)))], lr=0.1)
        ),
        lambda m, k: m.o.defaults.update(lr=float(k)),
    ),
    "equal member of a set": (
        lambda: Holder(lambda m, x: x * sum(rule.k for rule in m.rules), rules={Rule("a", 1.0)}),
        lambda m, k: (m.rules.clear(), m.rules.add(Rule("a", float(k)))),
    ),
    "zero of another sign in a set": (
        lambda: Holder(lambda m, x: ts.atan2(x * 0 + min(m.zeros), x * 0 - 1), zeros={0.0}),
        lambda m, k: (m.zeros.clear(), m.zeros.add(-0.0 if k % 2 else 0.0)),
    ),
    "attribute of a member of an enumeration": (
        lambda: Holder(lambda m, x: x * m.shade.k, shade=Shade.LIGHT),
        setting("shade.k", float),
    ),
    "attribute of a number": (
        lambda: Holder(lambda m, x: x * m.measure.k, measure=Measure(2)),
        setting("measure.k", float),
    ),
    "attribute of an array": (
        lambda: Holder(lambda m, x: x * m.array.k, array=labelled()),
        setting("array.k", float),
    ),
    "values of a dictionary": (
        lambda: (lambda table: Holder(lambda m, x: x * sum(m.view), table=table, view=table.values()))(
            {"a": 1.0}
        ),
        lambda m, k: m.table.update({f"k{k}": float(k)}),
    ),
    # attributes
    "number": (lambda: Holder(lambda m, x: x + m.k, k=0.5), setting("k", float)),
    "negative zero": (
        lambda: Holder(lambda m, x: ts.atan2(x * 0 + m.k, x * 0 - 1), k=0.0),
        setting("k", lambda k: -0.0 if k % 2 else 0.0),
    ),
    "type of a number": (
        lambda: Holder(lambda m, x: (x * 4).astype(ts.int32) * m.k, k=1),
        setting("k", lambda k: 1 if k % 2 else 1.0),
    ),
    "string": (
        lambda: Holder(lambda m, x: getattr(ts, m.name)(x), name="sin"),
        setting("name", lambda k: ["sin", "cos"][k % 2]),
    ),
    "tuple": (
        lambda: Holder(lambda m, x: x * m.pair[1], pair=(0, 1.0)),
        setting("pair", lambda k: (0, float(k))),
    ),
    "flag": (
        lambda: Holder(lambda m, x: x * 2 if m.flag else x, flag=True),
        setting("flag", lambda k: bool(k % 2)),
    ),
    "enumeration": (
        lambda: Holder(with_branch, mode=Mode.ADD),
        setting("mode", lambda k: list(Mode)[k % 2]),
    ),
    "attribute of a submodule": (
        lambda: Holder(lambda m, x: m.inner(x), inner=Holder(lambda m, x: x * m.k, k=1.0)),
        setting("inner.k", float),
    ),
    "attribute of an object": (
        lambda: Holder(with_local_copy, options=Options()),
        setting("options.k", float),
    ),
    "list in an object": (
        lambda: Holder(with_local_copy, options=Options()),
        lambda m, k: m.options.inner.__setitem__(0, float(k)),
    ),
    "object": (
        lambda: Holder(with_local_copy, options=Options()),
        setting("options", lambda k: Options(float(k))),
    ),
    "slot": (lambda: Holder(lambda m, x: x * m.slotted.k, slotted=Slotted(1.0)), setting("slotted.k", float)),
    "slot behind a property": (
        lambda: Holder(lambda m, x: x * m.slotted.hidden, slotted=Slotted(1.0)),
        setting("slotted._hidden", float),
    ),
    "attribute by name": (lambda: Holder(with_named_attribute, k=1.0), setting("k", float)),
    "attribute by __dict__": (
        lambda: Holder(lambda m, x: x * m.__dict__["k"], k=1.0),
        setting("k", float),
    ),
    "attribute by __getattr__": (
        lambda: Holder(lambda m, x: x * m.computed.k, computed=Computed()),
        lambda m, k: m.computed.table.update(k=float(k)),
    ),
    "attribute that appears": (lambda: Holder(deleted), setting("extra", float)),
    "attribute that disappears": (
        lambda: Holder(deleted, extra=4.0),
        second_time(lambda m: delattr(m, "extra")),
    ),
    "attribute of the class": (
        lambda: type("Own", (Holder,), {"scale": 2.0})(lambda m, x: x * m.scale),
        lambda m, k: setattr(type(m), "scale", float(k)),
    ),
    "attribute over that of the class": (
        lambda: Holder(lambda m, x: x * m.scale),
        second_time(lambda m: setattr(m, "scale", 7.0)),
    ),
    "method of the class": (
        lambda: type("Own", (Doubled,), {"factor": lambda self: 2.0})(lambda m, x: x),
        second_time(lambda m: setattr(type(m), "factor", lambda self: 5.0)),
    ),
    "method of the instance": (
        lambda: Doubled(lambda m, x: x),
        second_time(lambda m: setattr(m, "factor", lambda: 5.0)),
    ),
    "function as an attribute": (
        lambda: Holder(lambda m, x: m.function(x), function=ts.sin),
        setting("function", lambda k: [ts.sin, ts.cos][k % 2]),
    ),
    "partial function": (
        lambda: Holder(lambda m, x: m.function(x), function=functools.partial(with_keyword_default, k=2.0)),
        setting("function", lambda k: functools.partial(with_keyword_default, k=float(k))),
    ),
    # containers
    "number in a dictionary": (
        lambda: Holder(lambda m, x: x * m.table["a"], table={"a": 1.0}),
        lambda m, k: m.table.update(a=float(k)),
    ),
    "key of a dictionary": (
        lambda: Holder(lambda m, x: x * len(m.table), table={}),
        lambda m, k: m.table.update({k: 1}),
    ),
    "order of a dictionary": (
        lambda: Holder(lambda m, x: x * next(iter(m.table)), table={1.0: 0, 2.0: 0}),
        lambda m, k: m.table.update({next(iter(m.table)): m.table.pop(next(iter(m.table)))}),
    ),
    "tensor in a dictionary": (
        lambda: Holder(lambda m, x: x * m.table["a"], table={"a": ts.ones((COLUMNS,))}),
        lambda m, k: m.table.update(a=ts.full((COLUMNS,), k + 1.0)),
    ),
    "number in a list": (
        lambda: Holder(lambda m, x: x * m.parts[0], parts=[1.0]),
        lambda m, k: m.parts.__setitem__(0, float(k)),
    ),
    "list of tensors that grows": (
        lambda: Holder(lambda m, x: sum(m.parts, x * 1.0), parts=[]),
        lambda m, k: m.parts.append(values(ROWS, COLUMNS, seed=k)),
    ),
    "order of a list": (
        lambda: Holder(lambda m, x: x * m.parts[0] + m.parts[1], parts=[1.0, 2.0]),
        lambda m, k: m.parts.reverse(),
    ),
    "set": (lambda: Holder(lambda m, x: x * sum(m.parts), parts={1}), lambda m, k: m.parts.add(k + 2)),
    "deque": (
        lambda: Holder(lambda m, x: x * m.parts[-1], parts=collections.deque([1.0], maxlen=2)),
        lambda m, k: m.parts.append(float(k)),
    ),
    "array": (
        lambda: Holder(lambda m, x: x + ts.tensor(m.array), array=np.zeros(COLUMNS, np.float32)),
        lambda m, k: m.array.fill(k),
    ),
    "number in an array": (
        lambda: Holder(lambda m, x: x * float(m.array[1]), array=np.zeros(3)),
        lambda m, k: m.array.__setitem__(1, k),
    ),
    "bytes": (
        lambda: Holder(lambda m, x: x * m.data[0], data=bytearray(b"a")),
        lambda m, k: m.data.__setitem__(0, k),
    ),
    # tensors
    "tensor that is bound anew": (
        lambda: Holder(lambda m, x: x - m.mean, mean=ts.zeros((COLUMNS,))),
        setting("mean", lambda k: ts.full((COLUMNS,), k * 1.0)),
    ),
    "tensor of another shape": (
        lambda: Holder(lambda m, x: x * m.mean, mean=ts.ones(())),
        setting("mean", lambda k: ts.full((k % 2 * (COLUMNS - 1) + 1,), k * 1.0)),
    ),
    "tensor that is written": (
        lambda: Holder(lambda m, x: x - m.mean, mean=ts.zeros((COLUMNS,))),
        lambda m, k: m.mean.__setitem__(slice(None), k * 1.0),
    ),
    "tensor that Python reads": (
        lambda: Holder(with_read_tensor, state=ts.zeros((COLUMNS,))),
        lambda m, k: m.state.__setitem__(0, k * 1.0),
    ),
    "gradient that is present or not": (
        lambda: Holder(with_gradient, p=parameter()),
        lambda m, k: setattr(m.p, "grad", values(ROWS, COLUMNS, seed=k) if k % 2 else None),
    ),
    "buffer": (
        lambda: Holder(lambda m, x: x - m.mean, mean=ts.zeros((COLUMNS,))),
        lambda m, k: m.register_buffer("other", ts.ones((1,))) or setattr(m, "mean", ts.ones((COLUMNS,)) * k),
    ),
    "parameter that is frozen": (
        two_parameters,
        lambda m, k: m.p.requires_grad_(k % 2 == 0) if hasattr(m.p, "requires_grad_") else None,
    ),
    # layers of the library
    "p of Dropout": (lambda: nn.Dropout1d(0.0), setting("p", lambda k: k % 2.0)),
    "slope of LeakyReLU": (lambda: nn.LeakyReLU(0.1), setting("negative_slope", lambda k: 0.1 * k)),
    "momentum of BatchNorm": (
        lambda: Holder(lambda m, x: m.norm(x) * 0 + m.norm.running_var, norm=nn.BatchNorm1d(COLUMNS)),
        setting("norm.momentum", lambda k: 0.2 + 0.2 * k),
    ),
    "eps of LayerNorm": (lambda: nn.LayerNorm(COLUMNS), setting("eps", lambda k: 0.1 * (k + 1))),
    "training": (lambda: nn.Sequential(nn.Dropout(0.5)), lambda m, k: m.train(k % 2 == 0)),
    "layers that are appended": (lambda: nn.Sequential(nn.Tanh()), lambda m, k: m.append(nn.Sigmoid())),
    "layer that is replaced": (
        lambda: nn.Sequential(nn.Tanh()),
        lambda m, k: m.__setitem__(0, [nn.Sigmoid(), nn.Tanh()][k % 2]),
    ),
    "forward hook": (
        lambda: nn.Softplus(),
        second_time(lambda m: m.register_forward_hook(lambda module, given, result: result + 1)),
    ),
    "forward hook before": (
        lambda: Holder(lambda m, x: m.inner(x), inner=nn.Softplus()),
        second_time(lambda m: m.inner.register_forward_pre_hook(lambda module, given: (given[0] * 2,))),
    ),
    "gradient hook": (
        lambda: Holder(gradient_of, p=parameter()),
        second_time(lambda m: m.p.register_hook(lambda g: -g)),
    ),
    "group of parameters": (
        two_parameters,
        second_time(lambda m: m.optimizer.add_param_group({"params": [m.q]})),
    ),
    "learning rate": (
        two_parameters,
        lambda m, k: m.optimizer.param_groups[0].update(lr=0.01 * (k + 1)),
    ),
    "learning rate that is read": (
        lambda: Holder(
            lambda m, x: x * m.optimizer.param_groups[0]["lr"],
            optimizer=optim.SGD([parameter()], lr=1.0),
        ),
        lambda m, k: m.optimizer.param_groups[0].update(lr=float(k)),
    ),
    "optimizer": (two_parameters, lambda m, k: setattr(m, "optimizer", optim.SGD([m.q], lr=0.1))),
    # variables
    "global": (lambda: Holder(with_global), set_global),
    "nested global": (
        lambda: Holder(with_nested_global),
        lambda m, k: TABLE["a"][1].update(b=float(k)),
    ),
    "function as a global": (
        lambda: Holder(with_global),
        lambda m, k: globals().update(helper=[lambda x: x * 5, lambda x: x - 1][k % 2]),
    ),
    "variable of a module": (
        lambda: Holder(lambda m, x: x * SETTINGS.k + SETTINGS.inner.k),
        lambda m, k: setattr(SETTINGS.inner, "k", float(k)),
    ),
    "variable of an imported module": (
        lambda: Holder(with_import),
        lambda m, k: setattr(SETTINGS, "k", float(k)),
    ),
    "variable that appears": (
        lambda: Holder(lambda m, x: x * vars(EXTRA).get("k", 1.0)),
        lambda m, k: setattr(EXTRA, "k", float(k)),
    ),
    "environment": (
        lambda: Holder(with_environment),
        lambda m, k: os.environ.update(ACCELERA_TEST_JIT=str(k)),
    ),
    "default": (
        lambda: Holder(lambda m, x: with_default(x)),
        lambda m, k: with_default.__defaults__[0].__setitem__(0, float(k)),
    ),
    "keyword default": (
        lambda: Holder(lambda m, x: with_keyword_default(x)),
        lambda m, k: with_keyword_default.__kwdefaults__.update(k=float(k)),
    ),
    "closure": closure,
    "attribute by attrgetter": (
        lambda: Holder(lambda m, x: x * operator.attrgetter("options.k")(m), options=Options()),
        setting("options.k", float),
    ),
    "attribute by a pattern": (lambda: Holder(with_pattern, options=Options()), setting("options.k", float)),
    "attribute by a format": (
        lambda: Holder(lambda m, x: x * float("{0.k}".format(m.options)), options=Options()),  # noqa: UP030, UP032
        setting("options.k", float),
    ),
    "view of a dictionary": (
        lambda: Holder(lambda m, x: x * m.view["a"], view=types.MappingProxyType(SHARED)),
        lambda m, k: SHARED.update(a=float(k)),
    ),
    "chain of dictionaries": (
        lambda: Holder(lambda m, x: x * m.chain["a"], chain=collections.ChainMap({}, SHARED)),
        lambda m, k: SHARED.update(a=float(k)),
    ),
    "array of objects": (
        lambda: Holder(lambda m, x: x * m.objects[0].k, objects=np.array([Options()], dtype=object)),
        lambda m, k: setattr(m.objects[0], "k", float(k)),
    ),
    "weak reference": (
        lambda: Holder(lambda m, x: x * m.reference().k, reference=weakref.ref(HELD)),
        setting_of(HELD),
    ),
    "descriptor of the class": (
        lambda: type("Own", (Holder,), {"k": property(lambda self: SHARED["a"])})(lambda m, x: x * m.k),
        lambda m, k: SHARED.update(a=float(k)),
    ),
    "static method": (
        lambda: type("Own", (Holder,), {"k": staticmethod(lambda: SHARED["a"])})(lambda m, x: x * m.k()),
        lambda m, k: SHARED.update(a=float(k)),
    ),
    "cached property": (
        lambda: type("Own", (Holder,), {"k": cached(lambda self: self.a)})(lambda m, x: x * m.k, a=2.0),
        lambda m, k: m.__dict__.pop("k", None) and setattr(m, "a", float(k)),
    ),
    "captured function inside": (
        lambda: Holder(lambda m, x: m.function(x), function=ts.jit(lambda x: x * SHARED["a"])),
        lambda m, k: SHARED.update(a=float(k)),
    ),
    "key of a sort": (
        lambda: Holder(lambda m, x: x * sorted([3.0, 1.0, 2.0], key=lambda n: n * m.sign)[0], sign=1),
        setting("sign", lambda k: [1, -1][k % 2]),
    ),
    "code of a function": (
        lambda: Holder(lambda m, x: with_default(x)),
        second_time(lambda m: setattr(with_default, "__code__", (lambda x, k=0: x - 7).__code__)),
    ),
    "decimal precision": (
        lambda: Holder(lambda m, x: x * float(decimal.getcontext().prec)),
        lambda m, k: setattr(decimal.getcontext(), "prec", 20 + k),
    ),
    "hook with a closure": hook_with_closure,
    "gradient hook with a closure": gradient_hook_with_closure,
    "context variable": (
        lambda: Holder(lambda m, x: x * VARIABLE.get()),
        lambda m, k: VARIABLE.set(float(k)) and None,
    ),
    "variable of the thread": (
        lambda: Holder(lambda m, x: x * LOCAL.k),
        lambda m, k: setattr(LOCAL, "k", float(k)),
    ),
    "default type": (
        lambda: Holder(lambda m, x: x + ts.ones((COLUMNS,)) / 3),
        lambda m, k: ts.set_default_dtype([ts.float32, ts.float64][k % 2]),
    ),
    # effects of the function
    "counter": (lambda: Holder(lambda m, x: counted(m, x), calls=0), nothing),
    "counter in a closure": counter_in_closure,
    "attribute of a function": (lambda: Holder(attribute_of_function), nothing),
    "tensor that is bound anew inside": (lambda: Holder(rebound, state=ts.zeros((COLUMNS,))), nothing),
    "table that is made once": (lambda: Holder(lazy, table=None), nothing),
    "table that is dropped": (
        lambda: Holder(lazy, table=None),
        second_time(lambda m: setattr(m, "table", None)),
    ),
    "list that is appended to": (lambda: Holder(with_appended, parts=[]), nothing),
    "list that is popped": (lambda: Holder(with_popped, parts=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), nothing),
    "item that is set": (lambda: Holder(with_item_set, table={}), nothing),
    "array that is written": (lambda: Holder(with_written_array, array=np.zeros(2)), nothing),
    "tensor that NumPy writes": (lambda: Holder(with_written_numpy, state=ts.zeros((COLUMNS,))), nothing),
    # values from elsewhere
    "Python's random": (lambda: Holder(lambda m, x: x * random.uniform(1, 2)), lambda m, k: random.seed(k)),
    "Python's shuffle": (
        lambda: Holder(lambda m, x: x * random.sample([1.0, 2.0, 3.0, 4.0], 1)[0]),
        lambda m, k: random.seed(k),
    ),
    "NumPy's random": (
        lambda: Holder(lambda m, x: x * float(np.random.uniform())),
        lambda m, k: np.random.seed(k),
    ),
    "NumPy's generator": random_in_closure,
    "Python's generator": python_random_in_closure,
    "iterator": iterator_in_closure,
    "generator": generator_in_closure,
    "seed of a generator": (lambda: Holder(lambda m, x: reseeded(x)), nothing),
    "new generator": (lambda: Holder(lambda m, x: x * ts.random.Generator(3).normal((COLUMNS,))), nothing),
    "thread": (lambda: Holder(in_thread, k=1.0), setting("k", float)),
    "iterator as an attribute": (
        lambda: Holder(lambda m, x: x * next(m.numbers), numbers=iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
        nothing,
    ),
}  # fmt: skip


def counted(m, x):
    m.calls += 1
    return x / m.calls


def reseeded(x):
    ts.random.manual_seed(5)
    return x * ts.random.rand(COLUMNS)


def in_thread(m, x):
    results = []
    thread = threading.Thread(target=lambda: results.append(ts.full((COLUMNS,), m.k) * 2))
    thread.start()
    thread.join()
    return x * results[0]


REFUSED = {
    "cached property", "decimal precision", "context variable", "variable of the thread", "counter",
    "counter in a closure", "attribute of a function", "tensor that is bound anew inside",
    "list that is appended to", "list that is popped", "item that is set", "array that is written",
    "tensor that NumPy writes", "Python's random", "Python's shuffle", "NumPy's random", "NumPy's generator",
    "Python's generator", "iterator", "generator", "seed of a generator", "new generator", "thread",
    "iterator as an attribute",
}  # fmt: skip
"""Kinds of state that no guard can follow."""
