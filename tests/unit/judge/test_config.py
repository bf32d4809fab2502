"""The judge's settings name what is wrong and the fix."""

from __future__ import annotations

import pytest

from libs.errors import ConfigError
from libs.streams.config import load
from services.judge.build import options
from services.judge.config import JudgeSettings


def test_defaults_need_nothing() -> None:
    assert load(JudgeSettings).judge_kind == "rules"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"CLAWBACK_JUDGE_KIND": "prm"}, "CLAWBACK_JUDGE_PRM_URL"),
        ({"CLAWBACK_JUDGE_KIND": "magic"}, "CLAWBACK_JUDGE_KIND"),
        ({"CLAWBACK_JUDGE_VOTES": "2", "CLAWBACK_JUDGE_VOTES_NEEDED": "3"}, "CLAWBACK_JUDGE_VOTES_NEEDED"),
        ({"CLAWBACK_JUDGE_VOTES": "0"}, "CLAWBACK_JUDGE_VOTES"),
        ({"CLAWBACK_JUDGE_TURN_TIMEOUT_SECONDS": "115"}, "CLAWBACK_STREAM_HANDLE_TIMEOUT_SECONDS must exceed"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], message: str) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        load(JudgeSettings)


def test_settings_reach_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWBACK_JUDGE_WINDOW", "3")
    monkeypatch.setenv("CLAWBACK_JUDGE_VOTES", "5")
    monkeypatch.setenv("CLAWBACK_JUDGE_WEIGHT_BRANCH", "0.75")
    made = options(load(JudgeSettings))
    assert (made.window, made.rules.votes, made.rules.needed, made.weights.branch) == (3, 5, 3, 0.75)


def test_the_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWBACK_JUDGE_PRM_API_KEY", "very-secret")
    assert "very-secret" not in repr(load(JudgeSettings))
