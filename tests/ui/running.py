"""A service and its UI, as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.ports import reserved_port

PATIENCE_S = 600
"""Seconds after which what neither starts nor ends is taken to hang."""


@contextmanager
def running_service(token: str = "") -> Iterator[str]:
    """Yield the address of a service with an empty database."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "accelera", "serve", "--db", f"sqlite:///{folder}/copilot.db"]
        if token:
            file = Path(folder) / "token"
            file.write_text(token)
            command += ["--token-file", str(file)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "http://" in line, f"the service said {line!r}"
            yield line.split()[-1]
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            process.stdout.close()


@contextmanager
def running_ui(service_url: str, token: str = "") -> Iterator[str]:
    """Yield the address of a UI in front of a service."""
    from accelera.ui import start

    with reserved_port() as port:
        process = start(service_url, token, port=port)
        try:
            url = f"http://127.0.0.1:{port}"
            until = time.monotonic() + PATIENCE_S
            while not _answers(url):
                assert process.poll() is None, "the UI has ended"
                assert time.monotonic() < until, "the UI does not answer"
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            assert process.stdin is not None
            process.stdin.close()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/_stcore/health", trust_env=False).is_success
    except httpx.TransportError:
        return False
