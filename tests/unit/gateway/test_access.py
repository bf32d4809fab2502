"""Tokens, scenarios and limits, decided before a body is read."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from libs.errors import ConfigError
from services.gateway import access as module
from services.gateway.access import Access, Caller
from services.gateway.config import GatewaySettings
from services.gateway.errors import RejectedError


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def access(clock: Clock | None = None, tokens: dict[str, Any] | None = None, **settings: Any) -> Access:
    given = json.dumps({digest(k): v for k, v in tokens.items()}) if tokens else ""
    return Access(GatewaySettings(gateway_tokens=given, **settings), clock or Clock())


def admitted(to: Access, token: str = "", **headers: str) -> Caller:
    with to.admit(request(token, **headers)) as caller:
        return caller


def request(token: str = "", **headers: str) -> Any:
    sent = {k.replace("_", "-"): v for k, v in headers.items()}
    if token:
        sent["Authorization"] = f"Bearer {token}"
    return make_mocked_request("POST", "/v1/chat/completions", headers=sent)


def rejected(to: Access, token: str = "", **headers: str) -> RejectedError:
    with pytest.raises(RejectedError) as raised, to.admit(request(token, **headers)):
        pass
    return raised.value


def test_without_tokens_each_credential_is_its_own_tenant() -> None:
    to = access()
    assert admitted(to, "a").tenant != admitted(to, "b").tenant
    assert admitted(to).tenant == "anonymous"


def test_only_known_tokens_come_in_and_share_their_tenant() -> None:
    to = access(tokens={"one": "acme", "two": {"tenant": "acme"}, "three": "other"})
    assert admitted(to, "one").tenant == admitted(to, "two").tenant != admitted(to, "three").tenant
    assert rejected(to, "four").status == 401
    assert rejected(to).status == 401
    assert rejected(to, digest("one")).status == 401  # the hash is no token


def test_every_known_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    compare = hmac.compare_digest

    def watched(known: str, given: str) -> bool:
        compared.append(known)
        return compare(known, given)

    to = access(tokens={"one": "a", "two": "b", "three": "c"})
    monkeypatch.setattr(module.hmac, "compare_digest", watched)
    admitted(to, "one")
    assert sorted(compared) == sorted(map(digest, ("one", "two", "three")))


def test_the_token_itself_is_no_key() -> None:
    with pytest.raises(ConfigError, match="SHA-256"):
        Access(GatewaySettings(gateway_tokens='{"my-token":"acme"}'))
    with pytest.raises(ConfigError, match="CLAWBACK_GATEWAY_TOKENS"):
        Access(GatewaySettings(gateway_tokens=json.dumps({digest("x"): {"tenant": "a", "typo": 1}})))


def test_the_rate_refills_by_the_minute() -> None:
    clock = Clock()
    to = access(clock, gateway_limit_requests_per_minute=20)
    admitted(to, "a")
    admitted(to, "a")
    error = rejected(to, "a")
    assert (error.status, error.reason) == (429, "rate_limited")
    assert int(error.headers["retry-after"]) >= 3
    admitted(to, "b")  # another tenant is not held up
    clock.now += 3.0
    admitted(to, "a")
    rejected(to, "a")


def test_a_tokens_own_rate_comes_before_the_general_one() -> None:
    to = access(tokens={"one": {"tenant": "a", "requests_per_minute": 0}}, gateway_limit_requests_per_minute=1)
    for _ in range(5):
        admitted(to, "one")


def test_open_requests_are_counted_in_and_out() -> None:
    to = access(gateway_limit_concurrent_requests=1)
    with to.admit(request("a")):
        assert rejected(to, "a").reason == "too_many_open"
        admitted(to, "b")
    admitted(to, "a")
    with pytest.raises(ZeroDivisionError), to.admit(request("a")):
        raise ZeroDivisionError
    admitted(to, "a")


def test_a_large_body_is_refused_by_its_length() -> None:
    to = access(tokens={"one": {"tenant": "a", "max_body_bytes": 10}}, gateway_max_body_bytes=2000)
    assert admitted(to, "one", content_length="10")
    assert rejected(to, "one", content_length="11").status == 413
    assert rejected(access(gateway_max_body_bytes=2000), "x", content_length="2001").status == 413


def test_scenarios() -> None:
    to = access(tokens={"one": {"tenant": "a", "scenarios": ["maths"]}, "two": "b"})
    one, two = admitted(to, "one"), admitted(to, "two")
    assert to.scenario(two, None) == "default"
    assert to.scenario(two, " Maths-1.b_ ") == "Maths-1.b_"
    assert to.scenario(one, "maths") == "maths"
    for caller, name, status in ((one, "art", 403), (two, "a b", 400), (two, "é", 400), (two, "x" * 65, 400)):
        with pytest.raises(RejectedError) as raised:
            to.scenario(caller, name)
        assert raised.value.status == status


def test_the_number_of_remembered_tenants_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_METERS", 3)
    to = access(gateway_limit_requests_per_minute=10)
    with to.admit(request("busy")):
        for number in range(9):
            admitted(to, f"t{number}")
        assert len(to._meters) == 3
        assert any(meter.open for meter in to._meters.values())


def test_a_caller_does_not_show_its_token() -> None:
    assert "sesame" not in repr(admitted(access(), "sesame"))
