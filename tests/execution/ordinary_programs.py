"""Programs whose functions depend on, or change, state of the process.

Each calls ``run(function, tasks)`` and returns its observations, which must be the same for a plain loop and
for the default executor. A task computes for some milliseconds, so that worker processes would be faster.
"""

from __future__ import annotations

import contextlib
import contextvars
import decimal
import functools
import gc
import io
import itertools
import json
import locale
import logging
import os
import random
import signal
import sqlite3
import sys
import tempfile
import threading
import types
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import numpy as np

from accelera.execution import StrategyManager, TaskFailure, kernel

Run = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]
TASKS = range(1, 41)
LOOPS = 60_000
PLACE: contextvars.ContextVar[str] = contextvars.ContextVar("PLACE", default="nowhere")


def spin(task: int) -> int:
    total = 0
    for number in range(LOOPS):
        total += number & task
    return total


def make_module(name: str, source: str) -> types.ModuleType:
    module = types.ModuleType(name)
    exec(source, vars(module))
    sys.modules[name] = module
    return module


SHOP: Any = make_module(
    "shop_of_programs",
    "LIMITS = {'rows': 10}\nPRICES = {}\nclass Tariff:\n    vat = 19\ndef convert(x): return x * 2\n"
    "total = 0\ndef add(x):\n    global total\n    total += x\n    return x\n",
)


def dict_of_a_module(run: Run) -> Any:
    SHOP.LIMITS["rows"] = 500
    return run(lambda task: (spin(task), SHOP.LIMITS["rows"]), TASKS)


def attribute_of_a_class(run: Run) -> Any:
    SHOP.Tariff.vat = 7
    return run(lambda task: (spin(task), task * SHOP.Tariff.vat), TASKS)


def counter_of_a_module(run: Run) -> Any:
    SHOP.total = 0
    run(lambda task: (spin(task), SHOP.add(task)), TASKS)
    return SHOP.total


def replaced_function(run: Run) -> Any:
    with mock.patch("shop_of_programs.convert", return_value="patched"):
        return run(lambda task: (spin(task), SHOP.convert(task)), TASKS)


def redefined_module(run: Run) -> Any:
    labels = make_module("labels_of_programs", "def label(task): return 'first'")
    run(labels.label, TASKS)
    exec("def label(task): return 'second'", vars(labels))
    return run(labels.label, TASKS)


def decimal_precision(run: Run) -> Any:
    with decimal.localcontext() as context:
        context.prec, context.rounding = 34, decimal.ROUND_UP
        return run(lambda task: (spin(task), decimal.Decimal(task + 1) / 7), TASKS)


def context_variable(run: Run) -> Any:
    token = PLACE.set("here")
    try:
        return run(lambda task: (spin(task), PLACE.get()), TASKS)
    finally:
        PLACE.reset(token)


def registry(run: Run) -> Any:
    names: list[str] = []
    run(lambda task: (spin(task), names.append(f"n{task}")), TASKS)
    return sorted(names)


def changed_tasks(run: Run) -> Any:
    rows: list[Any] = [{"id": task, "tags": []} for task in TASKS]
    run(lambda row: (spin(row["id"]), row["tags"].append(1)), rows)
    return [len(row["tags"]) for row in rows]


def changed_arrays(run: Run) -> Any:
    arrays = [np.zeros(100) for _ in TASKS]
    run(lambda array: (spin(1), array.__setitem__(slice(None), 3.0)), arrays)
    return [float(array.sum()) for array in arrays]


def closure_variable(run: Run) -> Any:
    count, lock = 0, threading.Lock()

    def function(task: int) -> int:
        nonlocal count
        spin(task)
        with lock:
            count += task
        return task

    run(function, TASKS)
    return count


def counted_words(run: Run) -> Any:
    words: Counter[str] = Counter()
    lock = threading.Lock()

    def function(task: int) -> None:
        spin(task)
        with lock:
            words.update("ab" * (task % 3))

    run(function, TASKS)
    return dict(words)


def grouped(run: Run) -> Any:
    groups: defaultdict[int, list[int]] = defaultdict(list)
    run(lambda task: (spin(task), groups[task % 4].append(task)), TASKS)
    return {key: sorted(groups[key]) for key in sorted(groups)}


def cached_function(run: Run) -> Any:
    @functools.cache
    def slow(key: int) -> int:
        return spin(key)

    run(lambda task: slow(task % 5), TASKS)
    return slow.cache_info().currsize


def recursion_limit(run: Run) -> Any:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(5000)

    def nest(depth: int) -> int:
        return 0 if depth == 0 else 1 + nest(depth - 1)

    try:
        return run(lambda task: (spin(task), nest(2500 + task % 7)), TASKS)
    finally:
        sys.setrecursionlimit(before)


def logged_lines(run: Run) -> Any:
    box = io.StringIO()
    logger = logging.getLogger("program")
    handler = logging.StreamHandler(box)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    run(lambda task: (spin(task), logger.info("row %d", task)), TASKS)
    logger.removeHandler(handler)
    return sorted(box.getvalue().splitlines())


def printed_lines(run: Run) -> Any:
    box = io.StringIO()
    with contextlib.redirect_stdout(box):
        run(lambda task: (spin(task), sys.stdout.write(f"row {task}\n")), TASKS)
    return sorted(box.getvalue().splitlines())


def warning_that_is_an_error(run: Run) -> Any:
    def function(task: int) -> str:
        spin(task)
        if task % 10 == 9:
            warnings.warn("old field", DeprecationWarning, stacklevel=1)
        return "done"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return run(function, TASKS)


def recorded_warnings(run: Run) -> Any:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run(lambda task: (spin(task), warnings.warn(f"w{task}", UserWarning, stacklevel=1)), TASKS)
    return sorted(str(each.message) for each in found)


def floating_point_errors(run: Run) -> Any:
    with np.errstate(invalid="raise"):
        return run(lambda task: (spin(task), float(np.sqrt(np.float64(10 - task % 20)))), TASKS)


def print_options(run: Run) -> Any:
    with np.printoptions(precision=4, suppress=True):
        return run(lambda task: (spin(task), str(np.array([task / 7, 1e-9]))), TASKS)


def hash_buckets(run: Run) -> Any:
    return run(lambda task: (spin(task), hash(("page", str(task))) % 8), TASKS)


def seeded_numpy(run: Run) -> Any:
    np.random.seed(20)
    return sorted(each[1] for each in run(lambda task: (spin(task), float(np.random.rand())), TASKS))


def seeded_random(run: Run) -> Any:
    random.seed(5)
    return sorted(each[1] for each in run(lambda task: (spin(task), random.random()), TASKS))


def drawn_numbers(run: Run) -> Any:
    numbers = itertools.count()
    return sorted(each[1] for each in run(lambda task: (spin(task), next(numbers)), TASKS))


def environment(run: Run) -> Any:
    os.environ["PROGRAM_PLACE"] = "caller"
    run(lambda task: (spin(task), os.environ.__setitem__("PROGRAM_PLACE", "task")), TASKS)
    return os.environ["PROGRAM_PLACE"]


def working_directory(run: Run) -> Any:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return run(lambda task: (spin(task), os.path.samefile(os.getcwd(), folder)), TASKS)
        finally:
            os.chdir(before)


def open_file(run: Run) -> Any:
    with tempfile.TemporaryFile("w+") as file:
        run(lambda task: (spin(task), file.write(f"{task}\n")), TASKS)
        file.seek(0)
        return sorted(file.read().split())


def database(run: Run) -> Any:
    connection, lock = sqlite3.connect(":memory:", check_same_thread=False), threading.Lock()
    connection.execute("create table rows (id integer)")

    def function(task: int) -> None:
        spin(task)
        with lock:
            connection.execute("insert into rows values (?)", (task,))

    run(function, TASKS)
    return connection.execute("select count(*), sum(id) from rows").fetchone()


def process_id(run: Run) -> Any:
    return {each[1] == os.getpid() for each in run(lambda task: (spin(task), os.getpid()), TASKS)}


def identity_of_outputs(run: Run) -> Any:
    values = [object() for _ in TASKS]
    outputs = run(lambda task: (spin(task), values[task - 1])[1], TASKS)
    return [output is value for output, value in zip(outputs, values, strict=True)]


def class_made_in_a_function(run: Run) -> Any:
    class Local:
        count = 0

    def function(task: int) -> Local:
        spin(task)
        Local.count += 1
        return Local()

    return all(isinstance(each, Local) for each in run(function, TASKS)), Local.count


def own_exception(run: Run) -> Any:
    class Refused(Exception):
        pass

    def function(task: int) -> int:
        spin(task)
        if task % 7 == 0:
            raise Refused(task)
        return task

    return run(function, TASKS)


def garbage_collection(run: Run) -> Any:
    gc.disable()
    try:
        return run(lambda task: (spin(task), gc.isenabled()), TASKS)
    finally:
        gc.enable()


def signal_handler(run: Run) -> Any:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        return run(lambda task: (spin(task), signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN), TASKS)
    finally:
        signal.signal(signal.SIGUSR1, before)


def locale_of_numbers(run: Run) -> Any:
    before = locale.setlocale(locale.LC_NUMERIC)
    try:
        locale.setlocale(locale.LC_NUMERIC, "C")
        return run(lambda task: (spin(task), locale.str(task / 7)), TASKS)
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)


def pure_kernel(run: Run) -> Any:
    SHOP.PRICES.update({task: 3 * task for task in TASKS})

    @kernel(pure=True)
    def function(task: int) -> Any:
        spin(task)
        return SHOP.PRICES.get(task)

    return run(function, TASKS)


PROGRAMS = [
    value
    for name, value in list(globals().items())
    if isinstance(value, types.FunctionType) and value.__code__.co_varnames[:1] == ("run",)
]


def plainly(function: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
    outputs: list[Any] = []
    for task in tasks:
        try:
            outputs.append(function(task))
        except Exception as error:
            outputs.append(type(error).__name__)
    return outputs


def by_default(function: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
    outputs = StrategyManager.cpu_only().execute(list(tasks), function, on_error="collect").outputs
    return [type(each.error).__name__ if isinstance(each, TaskFailure) else each for each in outputs]


def main() -> None:
    global LOOPS
    report = {}
    for program in PROGRAMS:
        LOOPS = 10
        expected = program(plainly)
        LOOPS = 60_000
        report[program.__name__] = repr(_without_sums(expected)) == repr(_without_sums(program(by_default)))
    print(json.dumps(report))


def _without_sums(observed: Any) -> Any:
    """Leave out what ``spin`` returned, which differs with its length."""
    if isinstance(observed, list):
        return [each[1] if isinstance(each, tuple) and len(each) == 2 else each for each in observed]
    return observed


if __name__ == "__main__":
    main()
