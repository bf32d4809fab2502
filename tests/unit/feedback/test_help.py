"""The help of the offline forms names the command that people typed, not the module behind it."""

from __future__ import annotations

import pytest

from libs.feedback.offline import main


@pytest.mark.parametrize(("form", "command"), [("judge", "clawback judge"), ("eval", "clawback judge-eval")])
def test_usage_names_the_command(form: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main([form, "--help"])
    assert done.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {command} FILE...")
