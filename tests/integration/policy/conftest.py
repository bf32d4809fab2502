"""A small model, adapters on it, and the environment of a policy process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.contracts import Adapter
from libs.streams.config import ServiceSettings
from tests.integration.policy.world import Publisher
from tests.tiny_model import write_model
from tests.unit.learning_engine.support import write_adapter


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def adapters(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    return [write_adapter(tiny, folder / str(i), seed=i) for i in range(6)]


@pytest.fixture
def topic(topic_suffix: str) -> str:
    return f"policy.releases{topic_suffix}"


@pytest.fixture
def env(kafka_env: dict[str, str], topic: str) -> dict[str, str]:
    return {**kafka_env, "CLAWBACK_POLICY_RELEASES_TOPIC": topic}


@pytest.fixture
async def publisher(kafka_settings: ServiceSettings, topic: str) -> AsyncIterator[Publisher]:
    async with Publisher(kafka_settings, topic) as it:
        yield it
