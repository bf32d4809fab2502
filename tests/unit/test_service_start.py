"""Every service refuses wrong settings alike: one line that names the variable, exit status 2."""

from __future__ import annotations

import importlib

import pytest

SERVICES = ("gateway", "matcher", "judge", "batcher", "trainer", "policy", "monitor")


@pytest.mark.parametrize("service", SERVICES)
def test_a_wrong_setting_ends_the_service_with_status_2(
    service: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLAWBACK_HTTP_PORT", "many")
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"services.{service}.main").main()
    assert ended.value.code == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"{service}: ") and "CLAWBACK_HTTP_PORT" in said and "\n" not in said
