"""Configurations that readers upload, and that links carry."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from typing import Any

import streamlit as st

MOST_BYTES = 100_000
"""Of the JSON of a configuration in a link."""
MOST_LETTERS = 6_000
"""Of a configuration in a link: browsers and proxies take addresses of about 8,000."""


def config_of(file: Any) -> dict[str, Any] | None:
    """Return the configuration in an uploaded file; None, after saying why, where it holds none."""
    if file is None:
        return None
    found = _parsed(file.getvalue())
    if found is None:
        st.error("The file is no JSON object: choose the model's config.json.")
    return found


def packed(config: Mapping[str, Any]) -> str | None:
    """Return a configuration as letters of a link; None where it is too long for one."""
    content = json.dumps(config, separators=(",", ":")).encode()
    letters = base64.urlsafe_b64encode(zlib.compress(content, 9)).decode().rstrip("=")
    return letters if len(letters) <= MOST_LETTERS and len(content) <= MOST_BYTES else None


def unpacked(letters: str) -> dict[str, Any] | None:
    """Return the configuration of a link; None where it holds none."""
    if len(letters) > MOST_LETTERS:
        return None
    try:
        content = zlib.decompressobj().decompress(
            base64.urlsafe_b64decode(letters + "=" * (-len(letters) % 4)), MOST_BYTES
        )
    except (zlib.error, binascii.Error, ValueError):
        return None
    return _parsed(content)


def _parsed(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
