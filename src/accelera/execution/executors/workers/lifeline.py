"""How a worker process ends with the process that drives it, whatever that dies of and whatever it is at."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket


def end_with_last_writer(pipe: int) -> None:
    """Have the kernel kill this process, and what it has started, when nobody can write to ``pipe`` any more.

    This needs no Python: it ends a task too that never lets another thread run. Where the kernel is not
    Linux's it does nothing.
    """
    if not hasattr(fcntl, "F_SETSIG"):
        return
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:
        _end()


def end_with(end: socket.socket, driver: int) -> None:
    """End this process, and what it has started, when the process ``driver`` or the other end is gone.

    The other end alone would not do: processes that were forked from the driver have it as well.
    """
    gone = select.poll()
    gone.register(end, getattr(select, "POLLRDHUP", 0) | select.POLLHUP)
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            gone.register(os.pidfd_open(driver), select.POLLIN)
    if os.getppid() == driver:
        gone.poll()
    _end()


def _end() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)
