"""The service's socket: connections send small replies at once."""

from __future__ import annotations

import asyncio
import socket

import pytest

from accelera.errors import ArgumentError
from accelera.service.server import listening


def test_replies_are_not_held_back_for_an_acknowledgement() -> None:
    """Without TCP_NODELAY a reply in two writes waits some 40 ms for the client's delayed ACK."""

    async def option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = listening("127.0.0.1", 0)
        async with await asyncio.start_server(accepted, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            try:
                return await asyncio.wait_for(found, 120)
            finally:
                writer.close()
                await writer.wait_closed()

    assert asyncio.run(option())


def test_an_address_that_is_taken_is_refused() -> None:
    with listening("127.0.0.1", 0) as first, pytest.raises(ArgumentError, match="--port 0"):
        listening("127.0.0.1", first.getsockname()[1])
