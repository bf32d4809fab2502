"""The matching state behind a Redis connection: one script call per exchange."""

from __future__ import annotations

from libs.matching import state
from libs.matching.plan import Limits, Plan, Result
from libs.streams.sessions import Script, Scripts


class RedisState:
    """libs.matching.matcher.StateStore on Redis. Raises RetryError while Redis is away."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._script = Script(state.SCRIPT)

    async def apply(self, plan: Plan, limits: Limits) -> Result:
        """One EVALSHA, atomic."""
        reply = await self._scripts.run(self._script, [state.key_prefix(plan.slot)], state.arguments(plan, limits))
        return state.result(reply)
