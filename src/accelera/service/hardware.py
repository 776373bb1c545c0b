"""Hardware of the machine that the service runs on, as ``accelera info`` shows it, without paths.

A process of its own collects it: finding accelerators may load torch, which the service never does.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from http import HTTPStatus
from typing import final

from fastapi import APIRouter, Request, Response

from accelera.service.problems import Problem, documented
from accelera.service.replies import MEDIA_TYPE

router = APIRouter(tags=["service"], responses=documented(401, 422, 500))

KEPT_S = 10.0
"""Seconds for which an inventory is cached; free memory changes."""
_TIMEOUT_S = 120.0


@final
class Inventory:
    """Cache of the latest inventory; one process at a time collects a new one."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._content = b""
        self._expires_s = 0.0

    async def content(self) -> bytes:
        """Return the inventory as JSON; raises Problem (503) when it cannot be collected."""
        async with self._lock:
            if time.monotonic() >= self._expires_s:
                self._content = await asyncio.to_thread(_read_inventory)
                self._expires_s = time.monotonic() + KEPT_S
            return self._content


@router.get("/hardware", summary="Describe the machine", responses=documented(503))
async def hardware(request: Request) -> Response:
    """Return processors, memory and its limits, accelerators, tiers, packages and settings; sizes in bytes.

    Paths of the machine are left out. Jobs that run on a cluster may find other machines there.
    """
    inventory: Inventory = request.app.state.inventory
    return Response(await inventory.content(), media_type=MEDIA_TYPE)


def _read_inventory() -> bytes:
    command = [sys.executable, "-m", "accelera._inventory"]
    try:
        process = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE, "the machine could not be described; `accelera info` says more"
        ) from error
    return process.stdout
