"""Settings: the README lists all of them, and a variable that nothing reads is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.errors import ConfigError
from services.trainer.build import objective_of
from services.trainer.config import TrainerSettings, load_settings

README = Path(__file__).parents[3] / "services/trainer/README.md"


def test_the_readme_names_every_setting_with_its_default() -> None:
    text = README.read_text(encoding="utf-8")
    for name, field in TrainerSettings.model_fields.items():
        if name.startswith("trainer_"):
            default = "" if field.default is None else field.default
            assert f"| `CLAWBACK_{name.upper()}` | {default} |" in text, name


def test_an_unread_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWBACK_TRAINER_ANCHOR", "1")
    with pytest.raises(ConfigError, match="CLAWBACK_TRAINER_ANCHOR: no such setting"):
        load_settings()


def test_a_coefficient_that_cannot_reach_the_loss_ends_the_start() -> None:
    with pytest.raises(ConfigError, match="anchor_coef"):
        objective_of(TrainerSettings(trainer_anchor_coef=1.0, trainer_w_opd=0.0))
    assert objective_of(TrainerSettings(trainer_w_rl=0.3)).w_rl == 0.3


def test_wrong_values_name_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWBACK_TRAINER_CLIP_LOW", "2")
    with pytest.raises(ConfigError, match="CLAWBACK_TRAINER_CLIP_LOW"):
        load_settings()
