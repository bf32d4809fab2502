"""When a client that stops sending is given up: the clock is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

from services.gateway.connections import ClientConnection, rejection, where
from services.gateway.errors import ReceiveTimeoutError

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
LIMIT = 30.0


class Clock:
    """The running loop with a clock that moves when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.now = loop, 1000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        self.timers.append((self.now + delay, callback))
        return asyncio.Handle(callback, (), self._loop)

    def forward(self, seconds: float) -> None:
        """Move on, running what falls due on the way, in its order."""
        end = self.now + seconds
        while due := sorted(t for t in self.timers if t[0] <= end):
            self.timers.remove(due[0])
            self.now = due[0][0]
            due[0][1]()
        self.now = end


class Transport(asyncio.Transport):
    """Takes what is written to a connection that the test feeds by hand."""

    def close(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def handler(request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError("nothing is handled here")


@pytest.fixture
async def clock() -> Clock:
    return Clock(asyncio.get_running_loop())


@pytest.fixture
async def connection(clock: Clock) -> ClientConnection:
    """Idle: its handler waits for the next request."""
    made = ClientConnection(web.Server(handler), receive_seconds=LIMIT, loop=clock)
    made.transport = Transport()
    idle(made)
    return made


def idle(connection: ClientConnection) -> None:
    """What came was served; the handler waits for more."""
    connection._messages.clear()
    connection._waiter = asyncio.get_running_loop().create_future()


def refused(connection: ClientConnection) -> bool:
    return any(getattr(message, "status", None) == 408 for message, _ in connection._messages)


async def test_a_head_that_stops_coming_is_refused(connection: ClientConnection, clock: Clock) -> None:
    connection.data_received(b"POST /v1/ch")
    clock.forward(LIMIT - 1)
    assert not refused(connection)
    clock.forward(1)
    assert refused(connection)


async def test_a_head_that_comes_in_drops_has_no_more_time(connection: ClientConnection, clock: Clock) -> None:
    for byte in HEAD[:29]:
        connection.data_received(bytes([byte]))
        clock.forward(1)
    assert not refused(connection)
    connection.data_received(HEAD[29:30])
    clock.forward(1)
    assert refused(connection)


async def test_an_idle_connection_is_not_refused(connection: ClientConnection, clock: Clock) -> None:
    connection.data_received(HEAD + b"x" * 10)
    idle(connection)
    clock.forward(10 * LIMIT)
    assert not refused(connection) and not clock.timers


async def test_a_second_head_has_its_own_time(connection: ClientConnection, clock: Clock) -> None:
    connection.data_received(HEAD[:20])
    clock.forward(20)
    connection.data_received(HEAD[20:] + b"x" * 10)
    idle(connection)
    clock.forward(5)
    connection.data_received(HEAD[:20])
    clock.forward(LIMIT - 1)
    assert not refused(connection)
    clock.forward(1)
    assert refused(connection)


async def test_a_head_behind_a_request_that_is_served_waits(connection: ClientConnection, clock: Clock) -> None:
    waiter, connection._waiter = connection._waiter, None
    connection.data_received(b"POST /v1/ch")
    clock.forward(10 * LIMIT)
    assert not refused(connection)
    connection._waiter = waiter
    clock.forward(LIMIT)
    assert refused(connection)


async def test_a_body_may_be_slow_but_not_silent(connection: ClientConnection, clock: Clock) -> None:
    connection.data_received(HEAD)
    _, body = connection._messages[-1]
    for _ in range(9):
        clock.forward(LIMIT - 1)
        connection.data_received(b"x")
    assert body.exception() is None
    clock.forward(LIMIT)
    assert isinstance(body.exception(), ReceiveTimeoutError)
    with pytest.raises(ReceiveTimeoutError):
        await body.readany()


async def test_silence_that_we_asked_for_does_not_count(connection: ClientConnection, clock: Clock) -> None:
    connection.data_received(HEAD)
    _, body = connection._messages[-1]
    connection._reading_paused = True
    clock.forward(10 * LIMIT)
    assert body.exception() is None
    connection._reading_paused = False
    clock.forward(LIMIT)
    assert isinstance(body.exception(), ReceiveTimeoutError)


async def test_a_lost_connection_leaves_no_timer_behind(connection: ClientConnection, clock: Clock) -> None:
    connection.data_received(b"POST /v1/ch")
    timer = connection._timer
    connection.connection_lost(None)
    assert timer is not None and timer.cancelled()


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (400, LineTooLong(b"Authorization: Bearer sk-secret", 8190), (431, "header_too_large")),
        (400, BadHttpMessage("Too many headers received"), (431, "header_too_large")),
        (400, BadHttpMessage("Invalid header value char:\n\n  b'x: sk-secret'"), (400, "malformed_request")),
        (400, BadHttpMessage("sk-secret"), (400, "malformed_request")),
        (408, ReceiveTimeoutError(), (408, "request_timeout")),
        (504, None, (504, "timeout")),
        (500, KeyError("sk-secret"), (500, "internal_error")),
    ],
)
def test_what_the_client_is_told(status: int, error: Exception | None, expected: tuple[int, str]) -> None:
    told = rejection(status, error)
    assert (told.status, told.reason) == expected
    assert "sk-secret" not in told.message


def test_where_names_places_and_no_values() -> None:
    try:
        raise KeyError("sk-secret")
    except KeyError as error:
        place = where(error)
    assert place is not None and place.startswith("test_connections.py:") and "sk-secret" not in place
    assert where(None) is None
