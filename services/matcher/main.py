"""Entry of the matcher: settings, Redis, the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.streams.config import load, load_or_exit
from services.matcher.config import MatcherSettings


def main() -> int:
    """Run until SIGTERM. Returns the exit status."""
    settings = load_or_exit("matcher", lambda: load(MatcherSettings))

    from libs.matching.matcher import Matcher
    from libs.streams.service import collect_rarely, run_consumer
    from libs.streams.sessions import ScriptStore
    from services.matcher.handler import MatchHandler
    from services.matcher.state import RedisState

    collect_rarely()

    @asynccontextmanager
    async def open_handler() -> AsyncIterator[MatchHandler]:
        store = ScriptStore(settings.redis_url)
        try:
            yield MatchHandler(Matcher(RedisState(store), settings.limits()), ready=store.ping)
        finally:
            await store.close()

    return run_consumer("matcher", settings, ["traffic.raw"], open_handler)
