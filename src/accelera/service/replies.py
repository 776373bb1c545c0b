"""Cache of replies as JSON, for further requests that are equal."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import orjson
from fastapi import Response

MEDIA_TYPE = "application/json"


def json_bytes(content: Any) -> bytes:
    """Return ``content`` as JSON; NaN and infinities become null."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def finite(value: float) -> float | None:
    """Return ``value``, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None


class ReplyCache:
    """LRU cache of replies, whose keys are endpoint and request; bounded in number and in bytes."""

    def __init__(self, most: int, most_bytes: int = 128 << 20) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._replies: OrderedDict[Hashable, bytes] = OrderedDict()
        self.hits = 0
        """Number of replies that came from the cache."""

    def holds(self, key: Hashable) -> bool:
        """Return whether the reply for ``key`` is in the cache."""
        return key in self._replies

    def reply(self, key: Hashable, make: Callable[[], Any]) -> Response:
        """Return the reply for ``key``; on a miss, ``make`` returns its content."""
        body = self._replies.get(key)
        if body is None:
            return self.keep(key, json_bytes(make()))
        self._replies.move_to_end(key)
        self.hits += 1
        return Response(body, media_type=MEDIA_TYPE)

    def keep(self, key: Hashable, body: bytes) -> Response:
        """Return ``body`` as the reply, and cache it unless it is over an eighth of the cache's bytes."""
        if len(body) <= self._most_bytes // 8:
            self._bytes += len(body) - len(self._replies.pop(key, b""))
            self._replies[key] = body
            while len(self._replies) > self._most or self._bytes > self._most_bytes:
                self._bytes -= len(self._replies.popitem(last=False)[1])
        return Response(body, media_type=MEDIA_TYPE)
