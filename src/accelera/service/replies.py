"""Replies that are JSON already, kept for the next who asks the same."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import orjson
from fastapi import Response

MEDIA_TYPE = "application/json"


def json_bytes(content: Any) -> bytes:
    """Return ``content`` as JSON; numbers that are none become null."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def finite(value: float) -> float | None:
    """Return ``value``, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None


class ReplyCache:
    """The latest replies by what was asked, the least recently asked given up first."""

    def __init__(self, most: int, most_bytes: int = 128 << 20) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self.hits = 0
        """Replies that were kept already."""

    def holds(self, key: Hashable) -> bool:
        """Return whether the reply for ``key`` is kept."""
        return key in self._kept

    def reply(self, key: Hashable, make: Callable[[], Any]) -> Response:
        """Return the reply for ``key``; what ``make`` returns is its content if it is not kept."""
        body = self._kept.get(key)
        if body is None:
            return self.keep(key, json_bytes(make()))
        self._kept.move_to_end(key)
        self.hits += 1
        return Response(body, media_type=MEDIA_TYPE)

    def keep(self, key: Hashable, body: bytes) -> Response:
        """Keep ``body``, unless it is an eighth of all that may be kept, and return it as the reply."""
        if len(body) <= self._most_bytes // 8:
            self._bytes += len(body) - len(self._kept.pop(key, b""))
            self._kept[key] = body
            while len(self._kept) > self._most or self._bytes > self._most_bytes:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return Response(body, media_type=MEDIA_TYPE)
