"""Redis for state: one atomic script and one round trip. Every failure is a RetryError: the cause is outside.

Scripts vanish when Redis restarts; NOSCRIPT is answered by loading the script again. Keys that one script touches must
share a hash tag, as Redis Cluster demands; keeping to that is the caller's part.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.asyncio.connection import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from libs.errors import RetryError, StopError

# What a server says while it starts, fails over or is out of memory: it may pass. The client makes most codes classes
# and takes them off the text; older servers quote what a command within a script was told.
_PASSING = (BusyLoadingError, ReadOnlyError, ClusterDownError, TryAgainError, OutOfMemoryError)
_PASSING_TEXT = re.compile(
    r"(^|: -)(LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|BUSY|OOM|MISCONF|NOREPLICAS|max number of clients)\b"
)


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and its SHA-1, by which Redis knows it."""

    source: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest())


Call = tuple[Script, Sequence[str], Sequence[str | bytes | int | float]]  # script, keys, arguments


class Scripts(Protocol):
    """What a service needs of its state: run one script atomically."""

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int | float]) -> Any: ...


class ScriptStore:
    """A pool of Redis connections. Replies are bytes, ints and lists of them."""

    def __init__(self, url: str, *, max_connections: int = 32, timeout_seconds: float = 5.0) -> None:
        self._timeout_seconds = timeout_seconds
        options: dict[str, Any] = {
            "timeout": timeout_seconds,
            "socket_connect_timeout": timeout_seconds,
            "health_check_interval": 30,
            # After a restart every pooled connection fails once; scripts are idempotent, so they may run again.
            "retry": Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        }
        self._pool = BlockingConnectionPool.from_url(
            url, max_connections=max_connections, socket_timeout=timeout_seconds, **options
        )
        self.redis: Redis = Redis(connection_pool=self._pool)
        # The client would set a timer for each reply of a pipeline; `run_all` sets one for all.
        self._untimed = BlockingConnectionPool.from_url(url, max_connections=2, socket_timeout=None, **options)

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int | float]) -> Any:
        """EVALSHA, loading the script when the server does not have it. Raises RetryError, StopError (script fault)."""
        try:
            try:
                return await self.redis.evalsha(script.sha, len(keys), *keys, *args)
            except NoScriptError:
                return await self.redis.eval(script.source, len(keys), *keys, *args)
        except RedisError as error:
            raise as_ours(error) from error

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Several scripts in one round trip, each atomic by itself: their replies, in order.

        What one call raises, as in `run`, stands in its reply's place. Raises RetryError when none came through.
        """
        pipeline = Redis(connection_pool=self._untimed).pipeline(transaction=False)
        for script, keys, args in calls:
            pipeline.evalsha(script.sha, len(keys), *keys, *args)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                replies = await pipeline.execute(raise_on_error=False)
        except TimeoutError:
            raise RetryError("redis: no reply in time", reason="redis_connection") from None
        except RedisError as error:
            raise as_ours(error) from error
        return [await self._settled(call, reply) for call, reply in zip(calls, replies, strict=True)]

    async def _settled(self, call: Call, reply: Any) -> Any:
        if not isinstance(reply, RedisError):
            return reply
        if not isinstance(reply, NoScriptError):
            return as_ours(reply)
        try:
            return await self.run(*call)  # a restarted server: the first of these loads the script again
        except (RetryError, StopError) as error:
            return error

    @asynccontextmanager
    async def errors(self) -> AsyncIterator[None]:
        """Around plain commands on `redis`: turns Redis' errors into RetryError and StopError."""
        try:
            yield
        except RedisError as error:
            raise as_ours(error) from error

    async def ping(self) -> None:
        """Raise RetryError when Redis does not answer."""
        async with self.errors():
            await self.redis.ping()

    async def close(self) -> None:
        await self.redis.aclose()
        await self._pool.disconnect()
        await self._untimed.disconnect()


def as_ours(error: RedisError) -> RetryError | StopError:
    """Connection trouble and a busy server pass; a wrong script or command does not."""
    text = str(error)
    if isinstance(error, RedisConnectionError) and isinstance(error.__context__, ssl.SSLError):
        return RetryError(f"redis: {_tls_fault(error.__context__)}", reason="redis_connection")
    if text.startswith("Timeout connecting") or isinstance(error.__context__, FileNotFoundError):
        # A plain server may wait for the rest of a TLS handshake; a missing CA file is known only here.
        return RetryError(
            f"redis: {text}; is CLAWBACK_REDIS_URL right? rediss:// needs a TLS port, ssl_ca_certs a file",
            reason="redis_connection",
        )
    if isinstance(error, RedisConnectionError | RedisTimeoutError):
        return RetryError(f"redis: {text or type(error).__name__}", reason="redis_connection")
    if isinstance(error, ResponseError) and not isinstance(error, _PASSING) and not _PASSING_TEXT.search(text):
        return StopError(f"redis: {text}", reason="redis_response")
    return RetryError(f"redis: {text}", reason="redis_busy")


def _tls_fault(error: ssl.SSLError) -> str:
    """Which part of the URL to look at."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the server's certificate is refused ({error.verify_message}); CLAWBACK_REDIS_URL must name the CA that "
            "signed it (rediss://...?ssl_ca_certs=FILE) and use a host that the certificate has"
        )
    return f"no TLS there ({error.reason}); CLAWBACK_REDIS_URL with rediss:// needs a TLS port"
