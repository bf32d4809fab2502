"""make bench: one flat map, no figure twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.__main__ import gather, main


def leave(root: Path, name: str, figures: dict[str, object]) -> None:
    (root / f"bench-{name}.json").write_text(json.dumps(figures))


def test_wanted_figures_keep_their_name_and_others_say_whose_they_are(tmp_path: Path) -> None:
    leave(tmp_path, "step", {"step_over_floor": 1.1, "samples": 4, "note": "text", "fast": True})
    leave(tmp_path, "serve", {"serve_over_generate": 1.3, "samples": 8})
    assert gather(tmp_path) == {
        "step_over_floor": 1.1,
        "step.samples": 4,
        "serve_over_generate": 1.3,
        "serve.samples": 8,
    }


def test_a_figure_measured_twice_is_refused(tmp_path: Path) -> None:
    leave(tmp_path, "a", {"step_over_floor": 1.1})
    leave(tmp_path, "b", {"step_over_floor": 1.2})
    with pytest.raises(ValueError, match=r"step_over_floor is measured twice.*bench-b\.json"):
        gather(tmp_path)


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such"])
    assert "no such benchmark: no-such" in capsys.readouterr().err
