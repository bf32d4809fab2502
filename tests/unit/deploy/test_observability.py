"""Dashboards, alert rules, their pages and the metrics page agree with the declarations, both ways."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.grafana import build
from deploy.grafana.panels import DASHBOARDS
from libs.telemetry.document import declared, render, sections

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
_NAME = re.compile(r"\bclawback_[a-z0-9_]+")


def base(name: str) -> str:
    """The declared name behind a series of a histogram."""
    return re.sub(r"_(bucket|sum|count)$", "", name) if name not in declared() else name


def queries() -> list[str]:
    return [q for panels in DASHBOARDS.values() for panel in panels for q in panel.queries.values()]


def rules() -> list[dict]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_metric_on_a_panel_exists() -> None:
    used = {base(name) for query in queries() for name in _NAME.findall(query)}
    assert used - set(declared()) == set()


def test_every_metric_is_on_a_panel() -> None:
    used = {base(name) for query in queries() for name in _NAME.findall(query)}
    assert set(declared()) - used == set()


def test_every_label_in_a_query_is_declared() -> None:
    for query in [*queries(), *(r["expr"] for r in rules())]:
        for name, selector in re.findall(r"(clawback_[a-z0-9_]+)\{([^}]*)\}", query):
            labels = set(re.findall(r"(\w+)\s*=", selector))
            assert labels <= set(declared()[base(name)]._labelnames), query


def test_every_metric_in_a_rule_exists() -> None:
    used = {base(name) for rule in rules() for name in _NAME.findall(rule["expr"])}
    assert used - set(declared()) == set()


def test_the_dashboards_are_what_the_tables_say() -> None:
    for name, text in build.render().items():
        assert (build.DIRECTORY / name).read_text(encoding="utf-8") == text, "run `python -m deploy.grafana.build`"
    assert sorted(p.name for p in build.DIRECTORY.glob("*.json")) == sorted(build.render())


def test_signal_shows_match_rate_and_signal_rate_first() -> None:
    panels = json.loads((build.DIRECTORY / "signal.json").read_text())["panels"]
    assert [p["title"] for p in panels[:2]] == ["Match rate", "Signal rate"]
    assert {p["gridPos"]["y"] for p in panels[:2]} == {0}


def test_the_metrics_page_is_generated() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == render(), (
        "run `python -m libs.telemetry.document > docs/metrics.md`"
    )
    assert sum(map(len, sections().values())) == len(declared())


def test_every_alert_has_a_page_and_a_test_that_it_fires_and_is_silent() -> None:
    names = [rule["alert"] for rule in rules()]
    pages = {p.stem for p in (ROOT / "docs" / "runbooks").glob("Clawback*.md")}
    assert pages == set(names)
    tests = yaml.safe_load((RULES.parent / "tests.yaml").read_text())["tests"]
    for name in names:
        cases = [t["alert_rule_test"][0] for t in tests if t["alert_rule_test"][0]["alertname"] == name]
        assert [bool(c["exp_alerts"]) for c in cases] == [True, False], name
    for rule in rules():
        page = (ROOT / rule["annotations"]["runbook"]).read_text(encoding="utf-8")
        for heading in ("## What it means", "## Find the cause", "## Fix"):
            assert heading in page, f"{rule['alert']} lacks {heading}"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_accepts_the_rules_and_their_tests() -> None:
    for args in (["check", "rules", "rules.yaml"], ["test", "rules", "tests.yaml"]):
        done = subprocess.run(["promtool", *args], cwd=RULES.parent, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


# What docs/operations.md leads an operator to look for -> where it is, and by which labels.
PROMISED = {
    "exchanges by class": ("clawback_exchanges_total", {"scenario", "class"}),
    "exchanges by dialect": ("clawback_window_dialect_exchanges", {"scenario", "dialect"}),
    "matches by rule": ("clawback_matched_turns_total", {"scenario", "rule"}),
    "unmatched by reason": ("clawback_window_unmatched_exchanges", {"scenario", "reason"}),
    "match rate": ("clawback_match_rate_ratio", {"scenario"}),
    "signal rate": ("clawback_signal_rate_ratio", {"scenario"}),
    "tagged share": ("clawback_window_share_ratio", {"scenario", "kind"}),
    "gap between reply and answer": ("clawback_answer_gap_seconds", {"scenario"}),
    "the TTL": ("clawback_session_ttl_seconds", set()),
    "evictions": ("clawback_sessions_closed_total", {"scenario", "cause"}),
    "verdicts": ("clawback_judged_turns_total", {"scenario", "verdict", "reason"}),
    "abstentions by reason": ("clawback_judge_abstentions_total", {"scenario", "reason"}),
    "hints": ("clawback_judge_hints_total", {"scenario"}),
    "batch age": ("clawback_batch_age_seconds", {"scenario"}),
    "staleness drops": ("clawback_batcher_dropped_total", {"scenario", "reason"}),
    "step losses, KL, drift": ("clawback_trainer_step_metric", {"scenario", "name"}),
    "serving release": ("clawback_serving_release_number", {"scenario"}),
    "stage latency": ("clawback_stage_seconds", {"scenario", "stage"}),
    "consumer lag": ("clawback_group_lag_records", {"group", "topic"}),
    "dead letters": ("clawback_dead_letters_seen_total", {"service", "reason"}),
    "spool depth": ("clawback_gateway_spool_records", set()),
}


@pytest.mark.parametrize("what", PROMISED)
def test_what_an_operator_is_promised_is_there(what: str) -> None:
    name, labels = PROMISED[what]
    assert labels <= set(declared()[base(name)]._labelnames)
