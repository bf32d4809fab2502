"""Wrong settings are named; routes and keys go where they belong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from libs.errors import ConfigError
from services.gateway.config import GatewaySettings
from services.gateway.upstream import Upstreams


def upstreams(routes: dict[str, Any] | None = None, **given: Any) -> Upstreams:
    text = json.dumps(routes) if routes else ""
    return Upstreams(GatewaySettings(gateway_routes=text, gateway_upstream_url="http://main/v1/", **given))


def test_a_scenario_has_its_own_upstream() -> None:
    found = upstreams({"maths": {"url": "http://vllm:8000", "capture": "vllm", "api_key": "k", "auth": "bearer"}})
    assert found.target("maths").url == "http://vllm:8000"
    assert found.target("maths").capture == "vllm"
    assert found.target("other").url == "http://main/v1"


def test_the_general_key_stays_with_the_general_upstream() -> None:
    found = upstreams({"away": {"url": "http://elsewhere"}}, gateway_upstream_api_key="general-key")
    assert found.target("away").key is None
    assert found.target("x").key == "general-key"
    assert found.secrets == ("general-key",)


def test_a_star_replaces_the_general_upstream() -> None:
    assert upstreams({"*": {"url": "http://star"}}).target("x").url == "http://star"


def test_keys_can_stay_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"maths": {"url": "http://a", "api_key_env": "MATHS_KEY"}}
    with pytest.raises(ConfigError, match="MATHS_KEY"):
        upstreams(routes)
    monkeypatch.setenv("MATHS_KEY", "from-env")
    assert upstreams(routes).target("maths").key == "from-env"


@pytest.mark.parametrize(
    ("base", "target", "url"),
    [
        ("http://a", "/v1/x?y=%2F", "http://a/v1/x?y=%2F"),
        ("http://a/v1", "/v1/x", "http://a/v1/x"),
        ("http://a/api/v1", "/v1/x", "http://a/api/v1/x"),
        ("http://a/v1", "/health", "http://a/v1/health"),
    ],
)
def test_a_base_that_ends_in_v1_is_not_doubled(base: str, target: str, url: str) -> None:
    found = upstreams({"s": {"url": base}}).target("s")
    assert str(found.at(target)) == url


@pytest.mark.parametrize("text", ["{", "[]", '{"a":{}}', '{"a":{"url":"http://x","typo":1}}', "no/such/file.json"])
def test_wrong_routes_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="CLAWBACK_GATEWAY_ROUTES"):
        Upstreams(GatewaySettings(gateway_routes=text))


def test_routes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "routes.json").write_text('{"maths":{"url":"http://file"}}')
    settings = GatewaySettings(gateway_routes=str(tmp_path / "routes.json"))
    assert Upstreams(settings).target("maths").url == "http://file"


def test_an_address_without_scheme_is_refused() -> None:
    with pytest.raises(ValidationError, match="http://"):
        GatewaySettings(gateway_upstream_url="localhost:8000")
    with pytest.raises(ConfigError, match=r"s\.url"):
        upstreams({"s": {"url": "localhost"}})


@pytest.mark.parametrize(
    ("name", "value"), [("gateway_upstream_url", "http://host:99999"), ("gateway_retry_statuses", "429,many")]
)
def test_values_that_would_fail_later_are_refused_at_the_start(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=name):
        GatewaySettings.model_validate({name: value})


def test_settings_do_not_show_keys() -> None:
    shown = repr(
        GatewaySettings(
            gateway_upstream_api_key="hush-hush", gateway_tokens='{"a":1}', gateway_redaction_key="hush-hush"
        )
    )
    assert "hush" not in shown
