"""Copilot's service: simulations, advice and plans over HTTP."""

from typing import TYPE_CHECKING

from accelera._lazily import opened
from accelera.service.settings import ServiceLimits, ServiceSettings

if TYPE_CHECKING:
    from accelera.service.app import create_app
    from accelera.service.client import CopilotClient

__all__ = ["CopilotClient", "ServiceLimits", "ServiceSettings", "create_app"]

__getattr__, __dir__ = opened(__name__, {"create_app": "app", "CopilotClient": "client"})
