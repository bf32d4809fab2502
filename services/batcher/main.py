"""Entry of the batcher: settings, what the handler needs, the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.errors import RetryError
from libs.streams.config import load, load_or_exit
from services.batcher.config import BatcherSettings


def main() -> int:
    """Run until SIGTERM. Returns the exit status."""
    settings = load_or_exit("batcher", lambda: load(BatcherSettings))

    from libs.streams.follow import Follower
    from libs.streams.service import run_consumer
    from libs.streams.sessions import ScriptStore
    from services.batcher.handler import BatchHandler
    from services.batcher.releases import Serving
    from services.batcher.seen import RedisSeen

    @asynccontextmanager
    async def open_handler() -> AsyncIterator[BatchHandler]:
        store = ScriptStore(settings.redis_url)
        serving = Serving()
        releases = Follower(settings, [settings.input_topic("policy.releases")], serving.apply)

        async def ready() -> None:
            await store.ping()
            if not releases.caught_up.is_set():
                raise RetryError("policy.releases has not been read yet", reason="releases")

        try:
            await releases.start()
            yield BatchHandler(settings, RedisSeen(store, settings.batcher_remember_seconds), serving, ready=ready)
        finally:
            await releases.stop()
            await store.close()

    return run_consumer("batcher", settings, ["turns.judged"], open_handler)
