"""Tasks in worker processes have the state of their caller, and their output reaches the caller."""

from __future__ import annotations

import contextlib
import contextvars
import decimal
import io
import json
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accelera.execution import ProcessesExecutor, StrategyManager
from accelera.execution.hardware.cpu_share import usable_cores
from tests.architecture.repository import run_python

HERE: contextvars.ContextVar[str] = contextvars.ContextVar("HERE", default="unset")
UNSET: contextvars.ContextVar[int] = contextvars.ContextVar("UNSET")


class OddWarning(UserWarning):
    """A category of the program."""


@pytest.fixture(scope="module")
def executor() -> Iterator[ProcessesExecutor]:
    with ProcessesExecutor(2) as executor:
        yield executor


@pytest.fixture
def manager(executor: ProcessesExecutor) -> StrategyManager:
    return StrategyManager.cpu_only(executor)


@contextlib.contextmanager
def variable(value: str) -> Iterator[None]:
    token = HERE.set(value)
    try:
        yield
    finally:
        HERE.reset(token)


@contextlib.contextmanager
def process_setting(set_value: Callable[[Any], object], before: Any, value: Any) -> Iterator[None]:
    set_value(value)
    try:
        yield
    finally:
        set_value(before)


def recursion_limit(limit: int) -> contextlib.AbstractContextManager[None]:
    return process_setting(sys.setrecursionlimit, sys.getrecursionlimit(), limit)


def int_digits(limit: int) -> contextlib.AbstractContextManager[None]:
    return process_setting(sys.set_int_max_str_digits, sys.get_int_max_str_digits(), limit)


@contextlib.contextmanager
def warning_filter(action: Any, category: type[Warning]) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter(action, category)
        yield


def number_as_text(task: int) -> str:
    try:
        return str(len(str(10 ** (5000 + task))))
    except ValueError:
        return "too long"


def warned(task: int) -> str:
    try:
        warnings.warn("odd", OddWarning, stacklevel=1)
    except OddWarning:
        return "raised"
    return "warned"


def divided(task: int) -> str:
    try:
        return str(np.float64(task + 1) / np.float64(0))
    except FloatingPointError:
        return "raised"


def torch_state(task: int) -> tuple[Any, ...]:
    product = torch.ones(2, 2, requires_grad=True) @ torch.ones(2, 2)
    return product.requires_grad, product.is_inference(), str(product.dtype)


def torch_settings(task: int) -> tuple[Any, ...]:
    created = torch.zeros(task + 1)
    return (
        str(created.dtype),
        created.device.type,
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    )


def default_dtype(dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
    return process_setting(torch.set_default_dtype, torch.get_default_dtype(), dtype)


def default_device(device: str | None) -> contextlib.AbstractContextManager[None]:
    return process_setting(torch.set_default_device, None, device)


@contextlib.contextmanager
def deterministic(warn_only: bool) -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def matmul_precision(precision: str) -> contextlib.AbstractContextManager[None]:
    return process_setting(
        torch.set_float32_matmul_precision, torch.get_float32_matmul_precision(), precision
    )


def unset(task: int) -> str:
    try:
        return str(UNSET.get())
    except LookupError:
        return "unset"


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[int], Any]]] = {
    "context variable": (lambda: variable("caller"), lambda task: HERE.get()),
    "context variable that is not set": (contextlib.nullcontext, unset),
    "decimal precision": (
        lambda: decimal.localcontext(decimal.Context(prec=50)),
        lambda task: str(decimal.Decimal(task + 1) / 7),
    ),
    "decimal rounding": (
        lambda: decimal.localcontext(decimal.Context(prec=3, rounding=decimal.ROUND_UP)),
        lambda task: str(decimal.Decimal(task + 1) / 7),
    ),
    "recursion limit": (lambda: recursion_limit(4321), lambda task: sys.getrecursionlimit()),
    "digits of integers": (lambda: int_digits(20_000), number_as_text),
    "fewer digits of integers": (lambda: int_digits(1000), number_as_text),
    "floating-point errors": (lambda: np.errstate(divide="raise"), divided),
    "ignored floating-point errors": (lambda: np.errstate(all="ignore"), divided),
    "print options": (lambda: np.printoptions(precision=2), lambda task: str(np.array([1 / 3]))),
    "warning that is an error": (lambda: warning_filter("error", OddWarning), warned),
    "warning that is ignored": (lambda: warning_filter("ignore", UserWarning), warned),
    "no gradients": (torch.no_grad, torch_state),
    "inference": (torch.inference_mode, torch_state),
    "gradients turned off for good": (
        lambda: process_setting(torch.set_grad_enabled, True, False),
        torch_settings,
    ),
    "default type": (lambda: default_dtype(torch.float64), torch_settings),
    "half as default type": (lambda: default_dtype(torch.bfloat16), torch_settings),
    "default device": (lambda: default_device("meta"), torch_settings),
    "device of a block": (lambda: torch.device("meta"), torch_settings),
    "deterministic algorithms": (lambda: deterministic(False), torch_settings),
    "deterministic algorithms that warn": (lambda: deterministic(True), torch_settings),
    "matmul precision": (lambda: matmul_precision("medium"), torch_settings),
    "higher matmul precision": (lambda: matmul_precision("high"), torch_settings),
    "anomaly detection": (lambda: torch.autograd.set_detect_anomaly(True), torch_settings),
    "cuDNN": (
        lambda: torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=True),
        torch_settings,
    ),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), torch_state),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("run", ["batch", "stream", "late"])
def test_tasks_have_the_state_of_their_caller(manager: StrategyManager, setting: str, run: str) -> None:
    """And no more of it in the batch that follows."""
    make, function = SETTINGS[setting]

    def outputs() -> list[Any]:
        if run == "stream":
            return [output for _, output in manager.stream(range(6), function)]
        return manager.execute(range(6), function, timeout=600 if run == "late" else None).outputs

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.simplefilter("ignore", OddWarning)
        for context in (contextlib.nullcontext, make, contextlib.nullcontext):
            with context():
                assert outputs() == [function(task) for task in range(6)]


@pytest.mark.parametrize("count", [1, 2, 64])
def test_torch_uses_the_threads_of_the_caller_and_of_its_share(count: int) -> None:
    with process_setting(torch.set_num_threads, torch.get_num_threads(), count), ProcessesExecutor(1) as one:
        seen = one.execute_batch(range(3), lambda task: (torch.get_num_threads(), usable_cores()))
    assert seen == [(min(count, cores), cores) for _, cores in seen]


def test_a_variable_without_a_module_keeps_its_identity(manager: StrategyManager) -> None:
    local: contextvars.ContextVar[int] = contextvars.ContextVar("local", default=3)
    assert manager.execute(range(3), lambda task: local.get() + task).outputs == [3, 4, 5]
    token = local.set(10)
    assert manager.execute(range(3), lambda task: local.get() + task).outputs == [10, 11, 12]
    assert manager.execute(range(2), lambda task: local).outputs == [local, local]
    local.reset(token)


def test_a_variable_that_cannot_be_sent_keeps_its_default(manager: StrategyManager) -> None:
    token = HERE.set(threading.Lock())  # type: ignore[arg-type]
    assert manager.execute(range(2), lambda task: HERE.get()).outputs == ["unset", "unset"]
    HERE.reset(token)


def test_many_context_variables_of_no_module(manager: StrategyManager) -> None:
    """Their modules are searched for once, not once for each of them: that took minutes."""
    variables = [contextvars.ContextVar[int](f"number {i}") for i in range(300)]
    context = contextvars.copy_context()
    for i, variable_of_call in enumerate(variables):
        context.run(variable_of_call.set, i)

    def total(task: int) -> int:
        return task + sum(each.get() for each in variables)

    outputs = context.run(manager.execute, range(3), total).outputs
    assert outputs == [sum(range(300)) + task for task in range(3)]


def test_print_reaches_the_streams_of_the_caller(manager: StrategyManager) -> None:
    def talks(task: int) -> int:
        print("line", task)
        print("error", task, file=sys.stderr)
        sys.stdout.write("x" * task * 1000 + "\n")
        return task

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        manager.execute(range(200), talks)
    assert sorted(out.getvalue().split("\n")) == sorted(
        [text for task in range(200) for text in (f"line {task}", "x" * task * 1000)] + [""]
    )
    assert sorted(err.getvalue().splitlines()) == sorted(f"error {task}" for task in range(200))


def test_output_comes_while_a_task_runs_and_survives_its_worker(manager: StrategyManager) -> None:
    def speaks_and_dies(task: int) -> int:
        if task == 1:
            print("last words")
            time.sleep(0.05)
            os._exit(3)
        return task

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        result = manager.execute(range(3), speaks_and_dies, on_error="collect")
    assert result.failed_indices == (1,)
    assert out.getvalue() == "last words\n" * 2


def test_large_output_and_large_results_do_not_mix(manager: StrategyManager) -> None:
    def talks(task: int) -> Any:
        print(f"{task}" * 300_000)
        return np.full(200_000, task)

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        outputs = manager.execute(range(8), talks).outputs
    assert all((output == task).all() for task, output in enumerate(outputs))
    assert sorted(out.getvalue().split()) == [f"{task}" * 300_000 for task in range(8)]


def test_log_records_reach_the_handlers_of_the_caller(
    manager: StrategyManager, caplog: pytest.LogCaptureFixture
) -> None:
    def logs(task: int) -> int:
        logger = logging.getLogger("program.part")
        logger.debug("below the level")
        logger.info("task %d", task, extra={"task": task, "lock": threading.Lock()})
        try:
            raise ValueError(task)
        except ValueError:
            logger.exception("failed")
        return task

    with caplog.at_level(logging.INFO, logger="program"):
        manager.execute(range(10), logs)
    records = [record for record in caplog.records if record.name == "program.part"]
    infos = [record for record in records if record.levelno == logging.INFO]
    failed = [record for record in records if record.levelno == logging.ERROR]
    assert sorted(record.getMessage() for record in infos) == sorted(f"task {task}" for task in range(10))
    assert sorted(vars(record)["task"] for record in infos) == list(range(10))
    assert len(failed) == 10
    assert all("ValueError: " in (record.exc_text or "") for record in failed)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING, logging.CRITICAL])
@pytest.mark.parametrize("disabled", [False, True])
def test_levels_of_loggers_are_those_of_the_caller(
    manager: StrategyManager, level: int, disabled: bool
) -> None:
    logger = logging.getLogger("program.levels")
    before = logger.level, logger.disabled
    logger.setLevel(level)
    logger.disabled = disabled
    try:
        seen = manager.execute([10, 30, 50], lambda each: logger.isEnabledFor(each)).outputs
        assert seen == [logger.isEnabledFor(each) for each in (10, 30, 50)]
    finally:
        logger.setLevel(before[0])
        logger.disabled = before[1]


def test_warnings_are_shown_where_the_caller_records_them(manager: StrategyManager) -> None:
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        manager.execute(range(4), warned)
    assert [(str(each.message), each.category.__name__) for each in records] == [("odd", "OddWarning")] * 4


class Holder:
    inside: contextvars.ContextVar[int] = contextvars.ContextVar("inside", default=1)


TABLE = {"table": contextvars.ContextVar[int]("table", default=1)}


def test_variables_in_classes_and_dictionaries_are_found(manager: StrategyManager) -> None:
    tokens = Holder.inside.set(2), TABLE["table"].set(3)
    try:
        assert manager.execute([0], lambda task: (Holder.inside.get(), TABLE["table"].get())).outputs == [
            (2, 3)
        ]
    finally:
        Holder.inside.reset(tokens[0])
        TABLE["table"].reset(tokens[1])


class Slow(UserWarning):
    """Its arguments are not those of its initializer, so that it cannot be unpickled."""

    def __init__(self, what: str, seconds: int) -> None:
        super().__init__(f"{what} took {seconds} s")


def test_a_warning_that_cannot_be_sent_is_shown_as_text(manager: StrategyManager) -> None:
    def function(task: int) -> int:
        warnings.warn(Slow("step", task), stacklevel=1)
        return task

    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        assert manager.execute(range(3), function).outputs == [0, 1, 2]
    assert sorted(str(each.message) for each in records) == [f"step took {task} s" for task in range(3)]


@pytest.mark.parametrize("action", ["once", "default", "always"])
def test_filters_hold_for_the_warnings_of_all_workers_together(manager: StrategyManager, action: Any) -> None:
    def function(task: int) -> None:
        time.sleep(0.02)
        warnings.warn("old name", OddWarning, stacklevel=1)

    for _ in range(2):
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter(action)
            manager.execute(range(6), function)
        assert len(records) == (6 if action == "always" else 1)


def test_a_process_that_a_task_forks_leaves_the_connection_alone(manager: StrategyManager) -> None:
    def forks(task: int) -> Any:
        child = os.fork()
        if child == 0:
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                print("child")
                logging.getLogger("program").error("child")
            os._exit(0)
        time.sleep(0.05)
        return np.zeros(1_000_000)

    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        outputs = manager.execute(range(4), forks).outputs
    assert all(not output.view(np.uint8).any() for output in outputs)


SETTING_MODULE = """
import logging, warnings
warnings.simplefilter("ignore")
log = logging.getLogger(__name__)
log.setLevel(logging.DEBUG)
log.addHandler(logging.FileHandler({path!r}))
def function(task):
    log.info("below the level")
    log.warning("line")
    warnings.warn("shown")
"""


def test_modules_that_workers_import_do_not_undo_the_callers_settings(
    manager: StrategyManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines.log"
    (tmp_path / "setting_module.py").write_text(SETTING_MODULE.format(path=str(path)))
    monkeypatch.syspath_prepend(str(tmp_path))
    with warnings.catch_warnings(record=True) as records:
        import setting_module  # type: ignore[import-not-found]

        setting_module.log.setLevel(logging.WARNING)
        warnings.resetwarnings()
        warnings.simplefilter("always")
        manager.execute([1], setting_module.function)
    setting_module.log.handlers[0].close()
    setting_module.log.removeHandler(setting_module.log.handlers[0])
    assert [str(each.message) for each in records] == ["shown"]
    assert path.read_text().split() == ["line"]


PROGRAM = """
import functools, importlib, json, sys
sys.dont_write_bytecode = True
from pathlib import Path
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))

def write(name, text):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    importlib.invalidate_caches()

RATES = '''
import functools, threading
LIMITS = {{"rows": {value}}}
LOCK = threading.Lock()
class Row:
    kind = {value}
    @functools.cached_property
    def cached(self): return {value}
    def scaled(self): return {value}, self.kind, self.cached
def scale(task):
    with LOCK:
        return task * {value}
@functools.lru_cache
def cached(task): return {value}
@functools.singledispatch
def dispatched(task): return {value}
def named(task): return globals()["LIMITS"]["rows"]
'''
write("rates.py", RATES.format(value=2))
write("shop.py", "import rates\\nfrom rates import Row\\n"
      "def price(task): return rates.scale(task) + 1\\n"
      "def limit(task): return rates.LIMITS['rows']\\n"
      "def made(task): return Row()\\n")
write("pack/__init__.py", "")
write("pack/core.py", "from . import deep\\n"
      "def run(task):\\n  from .deep import value\\n  return deep.value(), value()\\n")
write("pack/deep.py", "def value(): return 2\\n")
import pack.core, pack.deep, rates, shop
from accelera.execution import ProcessesExecutor, StrategyManager

TABLE = {}

def helper(task):
    return rates.scale(task)

def imports(task):
    import rates
    return rates.scale(task)

def functions():
    TABLE["scale"] = rates.scale
    return {
        "function": rates.scale, "other module": shop.price, "settings": shop.limit, "package": pack.core.run,
        "lambda": lambda task: shop.price(task), "helper": lambda task: helper(task), "import": imports,
        "table": lambda task: TABLE["scale"](task), "cache": rates.cached, "dispatch": rates.dispatched,
        "globals": rates.named, "partial": functools.partial(rates.scale),
    }

def same(manager):
    is_same = {name: manager.execute(range(4), each).outputs == list(map(each, range(4)))
             for name, each in functions().items()}
    rows = [rates.Row() for _ in range(4)]
    scaled = manager.execute(rows, lambda row: row.scaled()).outputs
    is_same["method"] = scaled == [row.scaled() for row in rows]
    is_same["class"] = all(type(row) is rates.Row for row in manager.execute(range(4), shop.made).outputs)
    return [name for name, same_outputs in is_same.items() if not same_outputs]

with ProcessesExecutor(2) as executor:
    manager = StrategyManager.cpu_only(executor)
    report = {"before": same(manager)}
    first = executor.process_ids
    same(manager)
    report["restarts without a reload"] = [each for each in executor.process_ids if each not in first]
    for value in (3, 4):
        write("rates.py", RATES.format(value=value) + "# longer" * value)
        write("pack/deep.py", f"def value(): return {value}\\n" + "# longer" * value)
        for module in (rates, shop, pack.deep):
            importlib.reload(module)
        report[f"reload {value}"] = same(manager)
    write("rates.py", RATES.format(value=50) + "# longest" * 10)
    del sys.modules["rates"], sys.modules["shop"]
    import rates, shop
    report["import"] = same(manager)
print(json.dumps(report))
"""


def test_workers_import_reloaded_modules_again(tmp_path: Path) -> None:
    ran = run_python("-c", PROGRAM, str(tmp_path), cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert len(report) == 5
    assert not any(report.values()), report
