"""One small model for the engine's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_model import write_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))
