"""Write the dashboards' JSON from panels.py: `python -m deploy.grafana.build`. A test checks that it is up to date."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.grafana.panels import DASHBOARDS, Panel

DIRECTORY = Path(__file__).with_name("dashboards")
_SOURCE = {"type": "prometheus", "uid": "clawback"}
_COLUMNS, _HEIGHT = 24, 8


def dashboard(title: str, panels: list[Panel]) -> dict[str, Any]:
    """One dashboard in Grafana's format."""
    placed, x, y = [], 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > _COLUMNS:
            x, y = 0, y + _HEIGHT
        placed.append(_panel(number, panel, x, y))
        x += panel.width
    return {
        "uid": f"clawback-{title.lower()}",
        "title": f"Clawback / {title}",
        "tags": ["clawback"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_scenario(), _window()]},
        "links": [{"type": "dashboards", "tags": ["clawback"], "title": "Clawback", "asDropdown": False}],
        "panels": placed,
    }


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": {"h": _HEIGHT, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + i), "expr": query, "legendFormat": legend, "datasource": _SOURCE}
            for i, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def _scenario() -> dict[str, Any]:
    query = "label_values(clawback_window_turns, scenario)"
    return {
        "name": "scenario",
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "definition": query,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


def _window() -> dict[str, Any]:
    values = ["5m", "1h", "all"]
    return {
        "name": "window",
        "type": "custom",
        "query": ",".join(values),
        "options": [{"text": v, "value": v, "selected": v == "1h"} for v in values],
        "current": {"text": "1h", "value": "1h"},
    }


def render() -> dict[str, str]:
    """File name -> JSON text."""
    return {
        f"{title.lower()}.json": json.dumps(dashboard(title, panels), indent=2, ensure_ascii=False) + "\n"
        for title, panels in DASHBOARDS.items()
    }


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, text in render().items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
