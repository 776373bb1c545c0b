"""A function and what is declared of it."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Sequence

from accelera.execution import ExecutionStrategy, StrategyManager, kernel
from accelera.execution.kernel import LruDict, name_of
from accelera.testing import FakeGpu


@kernel
def halved(task: int) -> float:
    """Return half of it."""
    return task / 2


@halved.gpu_batch
def _(tasks: Sequence[int], device: str) -> list[float]:
    return [task / 2 for task in tasks]


def test_it_is_called_and_read_like_its_function() -> None:
    assert halved(3) == 1.5
    assert (halved.__name__, halved.__doc__) == ("halved", "Return half of it.")
    assert name_of(halved) == f"{__name__}.halved"


def test_a_kernel_may_be_declared_anew() -> None:
    again = kernel(pure=True)(halved)
    assert again.pure
    assert not halved.pure
    assert again.batch is halved.batch
    assert name_of(again) == name_of(halved)
    held = kernel(again, releases_gil=False)
    assert (held.pure, held.releases_gil, held(5)) == (False, False, 2.5)


def test_what_a_function_carries_does_not_declare_anything() -> None:
    def carries(task: int) -> int:
        return task

    carries.pure, carries.batch, carries.function = True, abs, abs  # type: ignore[attr-defined]
    declared = kernel(carries)
    assert (declared.pure, declared.batch, declared.function) == (False, None, carries)


def test_it_travels_to_executors_of_the_users_own() -> None:
    """As the function that a decorator has put it in the place of, in every way that functions travel."""

    class Pickles(FakeGpu):
        def execute_batch(self, tasks, process_fn):  # type: ignore[no-untyped-def]
            return super().execute_batch(tasks, pickle.loads(pickle.dumps(process_fn)))

    assert pickle.loads(pickle.dumps(halved)) is halved
    manager = StrategyManager(None, Pickles(), ExecutionStrategy.GpuOnly, learn=False)
    assert manager.execute(range(4), halved).outputs == [0, 0.5, 1, 1.5]


def test_functions_without_a_name_have_one() -> None:
    assert name_of(functools.partial(functools.partial(pow), 2)) == "builtins.pow"
    assert name_of(kernel(functools.partial(pow, 2))) == "builtins.pow"


def test_functions_of_several_arguments_are_measured_apart() -> None:
    """Each under its own name, though every one of them is called through the same kind of object."""
    names: list[str] = []

    class Gpu(FakeGpu):
        def execute_batch(self, tasks, process_fn):  # type: ignore[no-untyped-def]
            names.append(name_of(process_fn.function))
            return super().execute_batch(tasks, process_fn)

    manager = StrategyManager(None, Gpu(), ExecutionStrategy.GpuOnly, learn=False)
    assert list(manager.starmap(power, [(2, 3)])) == [8]
    assert list(manager.map(product, [2], [3])) == [6]
    assert list(manager.starmap(functools.partial(total, 1), [(2, 3)])) == [6]
    assert set(names) == {f"{__name__}.power", f"{__name__}.product", f"{__name__}.total"}


def power(base: int, exponent: int) -> int:
    return base**exponent


def product(left: int, right: int) -> int:
    return left * right


def total(*terms: int) -> int:
    return sum(terms)


def test_the_entry_used_longest_ago_makes_room() -> None:
    kept: LruDict[str, int] = LruDict(2)
    assert [kept.put("a", 1), kept.put("b", 2), kept.get("a")] == [None, None, 1]
    assert kept.put("c", 3) == "b"
    assert [kept.get(key) for key in "abc"] == [1, None, 3]
    assert kept.put("a", 4) is None, "a key that is there takes nobody's place"
    assert kept.get_or_make("d", lambda: 5) == 5
    assert "c" not in kept
    kept.remove("d")
    assert (kept.get("d"), kept.get_or_make("a", lambda: 6)) == (None, 4)
