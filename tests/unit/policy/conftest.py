"""One small model for the server's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_model import write_model


@pytest.fixture(scope="session")
def policy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("policy-model"))
