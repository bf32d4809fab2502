"""The release chains of all scenarios, read from policy.releases, and commands sent to it."""

from __future__ import annotations

import asyncio

from libs.cli.connect import settings
from libs.cli.produce import produce
from libs.contracts import PolicyRelease, encode
from libs.contracts.policy_releases import TOPIC
from libs.contracts.release_chain import Chain, folded
from libs.errors import ConfigError
from libs.streams.tap import tap
from libs.streams.types import Output


async def events() -> list[PolicyRelease]:
    """Every event, in the order of the log."""
    used = settings()
    found = [t.record async for t in tap(used, [used.input_topic(TOPIC)])]
    return [r for r in found if isinstance(r, PolicyRelease)]


def chain_of(scenario: str, log: list[PolicyRelease]) -> Chain:
    """The chain of one scenario. Raises ConfigError that names the scenarios there are."""
    own = [event for event in log if event.scenario == scenario]
    if not own:
        known = ", ".join(sorted({event.scenario for event in log})) or "none yet"
        raise ConfigError(f"no releases of scenario {scenario!r}; there are: {known}")
    return folded(scenario, own)


def send(event: PolicyRelease) -> None:
    """Append a command to the log; trainer and policy follow it."""
    used = settings()
    asyncio.run(produce(used, [Output(used.input_topic(TOPIC), event.scenario, encode(event))]))
