"""The UI as a child process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from accelera._extras import require
from accelera.settings import child_environment

SCRIPT = Path(__file__).with_name("main.py")


def start(
    service_url: str, token: str = "", host: str = "127.0.0.1", port: int = 8501
) -> subprocess.Popen[bytes]:
    """Start the UI and return its process, which the caller ends; it answers after about three seconds.

    It also ends by itself when this process does, however that ends, or when its ``stdin`` is closed.

    Parameters
    ----------
    service_url
        The Copilot's service, such as ``http://127.0.0.1:8000``.
    token
        Of the service; it goes to the child through its environment, which others cannot read.
    host, port
        Where the UI listens. Where there is a token, it asks each session for it.

    Raises
    ------
    BackendMissingError
        Streamlit or httpx is not installed.
    """
    require("ui", "streamlit", "httpx")
    options = {
        "server.address": host,
        "server.port": str(port),
        "server.headless": "true",
        "browser.gatherUsageStats": "false",
        "browser.serverAddress": host,
        "logger.level": "warning",
    }
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    return subprocess.Popen(
        [sys.executable, "-m", "accelera.ui.pages_process", "run", str(SCRIPT), *given],
        env=child_environment(copilot_url=service_url, copilot_token=token or None),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
