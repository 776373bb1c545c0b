"""Runner of a user's program as Python runs it: file, folder, module, line of code, or standard input."""

from __future__ import annotations

import builtins
import gc
import io
import runpy
import sys
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from accelera.errors import ArgumentError

_RUNNER_FILES = (__file__, runpy.__file__)
_INTERNAL_THREAD_PREFIX = "accelera-"
_POOLS = {
    "concurrent.futures.thread": "ThreadPoolExecutor",
    "concurrent.futures.process": "ProcessPoolExecutor",
}
"""Pools whose workers end when Python does, and wait until then; by the module that has each."""


class UserProgram(NamedTuple):
    """Program as named on a command line of ``python``."""

    kind: str
    """``file``, ``-m``, ``-c`` or ``-``."""
    what: str
    """The path, the module's name, or the code."""
    arguments: tuple[str, ...]
    """Its ``sys.argv[1:]``."""

    @classmethod
    def of(cls, words: Sequence[str]) -> UserProgram:
        """Return the program that words of a command line name, as ``python`` takes them.

        Raises ValueError when they name none.
        """
        if not words:
            raise ArgumentError("[program] name a script, or -m MODULE, or -c CODE")
        first, *rest = words
        if first[:2] not in ("-m", "-c"):
            return cls("-" if first == "-" else "file", first, tuple(rest))
        if len(first) > 2:
            first, rest = first[:2], [first[2:], *rest]
        if not rest:
            raise ArgumentError(f"[program] {first} needs a {'module' if first == '-m' else 'text'}")
        return cls(first, rest[0], tuple(rest[1:]))

    @property
    def name(self) -> str:
        """Name of the program in a report."""
        return (
            f"{self.kind} {self.what}" if self.kind == "-m" else {"file": self.what}.get(self.kind, self.kind)
        )

    def run(self) -> BaseException | None:
        """Run it as ``__main__`` until its last thread has ended; return what it raised, or None.

        Threads and pools of the process that were there before are left alone.
        """
        before = set(threading.enumerate())
        with _as_main(self):
            try:
                _RUN[self.kind](self)
            except BaseException as error:
                return error
            finally:
                _join_threads(before)
        return None


def is_own(file: str) -> bool:
    """Return whether a frame of the source ``file`` belongs to the program, and not to its runner."""
    return file not in _RUNNER_FILES and not file.startswith("<frozen ")


def _run_file(program: UserProgram) -> None:
    path = Path(program.what)
    if path.is_dir() or path.suffix not in ("", ".py", ".pyw"):
        runpy.run_path(program.what, run_name="__main__")
        return
    file = str(path.absolute())
    with io.open_code(file) as opened:
        source = opened.read()
    main = sys.modules["__main__"]
    main.__file__, main.__loader__ = file, SourceFileLoader("__main__", file)
    exec(compile(source, file, "exec", dont_inherit=True), vars(main))


def _run_module(program: UserProgram) -> None:
    runpy.run_module(program.what, run_name="__main__", alter_sys=True)


def _run_text(program: UserProgram) -> None:
    source, name = (program.what, "<string>") if program.kind == "-c" else (sys.stdin.read(), "<stdin>")
    exec(compile(source, name, "exec", dont_inherit=True), vars(sys.modules["__main__"]))


_RUN: dict[str, Callable[[UserProgram], None]] = {
    "file": _run_file,
    "-m": _run_module,
    "-c": _run_text,
    "-": _run_text,
}


@contextmanager
def _as_main(program: UserProgram) -> Iterator[None]:
    """Give the program its ``__main__``, its arguments and its place to import from, as Python does."""
    argv, search, main = sys.argv, sys.path, sys.modules["__main__"]
    sys.argv = [program.what if program.kind == "file" else program.kind, *program.arguments]
    sys.path = [*_import_path_entry(program), *_without_command_entry(search, argv[0])]
    sys.modules["__main__"] = _main_module()
    try:
        yield
    finally:
        sys.argv, sys.path, sys.modules["__main__"] = argv, search, main


def _main_module() -> ModuleType:
    module = ModuleType("__main__")
    own: dict[str, Any] = {"__builtins__": builtins, "__annotations__": {}}
    vars(module).update(own)
    return module


def _import_path_entry(program: UserProgram) -> list[str]:
    if getattr(sys.flags, "safe_path", False):
        return []
    if program.kind == "file":
        path = Path(program.what).resolve()
        return [str(path if path.is_dir() else path.parent)]
    return [str(Path.cwd()) if program.kind == "-m" else ""]


def _without_command_entry(search: list[str], command: str) -> list[str]:
    """Return the import path without the entry that Python added for the command itself."""
    own = {"", str(Path.cwd()), str(Path(command).resolve().parent), str(Path(command).parent)}
    return search[1:] if search and search[0] in own else list(search)


def _join_threads(before: Set[threading.Thread]) -> None:
    """Wait for threads that keep the process alive and for those that they start, except ``before``."""
    while alive := {thread for thread in threading.enumerate() if _keeps_alive(thread)} - before:
        _end_pools(alive)
        for thread in alive:
            thread.join()


def _keeps_alive(thread: threading.Thread) -> bool:
    """Return whether Python waits for ``thread`` at exit; False for the calling thread and our own ones."""
    return not (
        thread is threading.current_thread()
        or thread.daemon
        or thread.name.startswith(_INTERNAL_THREAD_PREFIX)
    )


def _end_pools(alive: Set[threading.Thread]) -> None:
    """Shut down the pools of these threads after their submitted work, as Python does at exit."""
    pools = tuple(
        getattr(sys.modules[module], name) for module, name in _POOLS.items() if module in sys.modules
    )
    for each in gc.get_objects():
        if issubclass(type(each), pools) and not alive.isdisjoint(_threads_of(each)):
            each.shutdown()


def _threads_of(pool: Any) -> Iterator[threading.Thread]:
    yield from getattr(pool, "_threads", ())
    manager = getattr(pool, "_executor_manager_thread", None)
    if manager is not None:
        yield manager
