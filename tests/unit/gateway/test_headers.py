"""Credentials of one side never reach the other; everything else that belongs to the message does."""

from __future__ import annotations

from multidict import CIMultiDict, CIMultiDictProxy

from services.gateway.headers import client_headers, credential, tenant_of, upstream_headers

CLIENT = [
    ("Host", "gateway"),
    ("Authorization", "Bearer client-token"),
    ("x-api-key", "client-key"),
    ("Cookie", "session=1"),
    ("Content-Length", "5"),
    ("Connection", "keep-alive, X-Hop"),
    ("X-Hop", "one link only"),
    ("x-reef-scenario", "maths"),
    ("x-clawback-record", "off"),
    ("anthropic-version", "2023-06-01"),
    ("anthropic-beta", "a"),
    ("anthropic-beta", "b"),
    ("User-Agent", "agent/1"),
]


def sent(path: str = "/v1/chat/completions", **changes: object) -> CIMultiDict[str]:
    given: dict[str, object] = {"path": path, "key": None, "auth": "auto", "forward_credentials": False, **changes}
    return upstream_headers(CLIENT, **given)  # type: ignore[arg-type]


def test_only_the_message_travels_upstream() -> None:
    assert list(sent().items()) == [
        ("x-reef-scenario", "maths"),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "a"),
        ("anthropic-beta", "b"),
        ("User-Agent", "agent/1"),
    ]


def test_the_upstreams_own_key_goes_the_providers_way() -> None:
    assert sent(key="k")["Authorization"] == "Bearer k"
    assert sent("/v1/messages", key="k")["x-api-key"] == "k"
    assert "Authorization" not in sent("/v1/messages", key="k")
    for path in ("/messages", "/v1/messages/count_tokens", "/messages/count_tokens"):  # clients leave out /v1
        assert sent(path, key="k")["x-api-key"] == "k"
    assert sent("/v1/messages", key="k", auth="bearer")["Authorization"] == "Bearer k"
    assert sent(key="k", auth="x-api-key")["x-api-key"] == "k"


def test_forwarding_the_clients_key_must_be_switched_on() -> None:
    forwarded = sent(forward_credentials=True)
    assert forwarded["Authorization"] == "Bearer client-token" and forwarded["x-api-key"] == "client-key"
    assert "client" not in str(sent(forward_credentials=True, key="k"))


def test_the_client_gets_all_but_cookies_and_hops() -> None:
    upstream = [
        ("Content-Type", "application/json"),
        ("Set-Cookie", "__cf=secret"),
        ("Transfer-Encoding", "chunked"),
        ("x-ratelimit-remaining-requests", "59"),
        ("retry-after", "3"),
        ("Content-Length", "10"),
    ]
    assert [k for k, _ in client_headers(upstream).items()] == [
        "Content-Type",
        "x-ratelimit-remaining-requests",
        "retry-after",
        "Content-Length",
    ]


def test_credential_from_either_header() -> None:
    def of(**headers: str) -> str:
        return credential(CIMultiDictProxy(CIMultiDict({k.replace("_", "-"): v for k, v in headers.items()})))

    assert of(Authorization="Bearer abc") == "abc"
    assert of(authorization="bearer  abc ") == "abc"
    assert of(X_Api_Key="abc") == "abc"
    assert of(Authorization="Basic abc") == ""
    assert of() == ""


def test_a_tenant_is_stable_and_tells_nothing() -> None:
    assert tenant_of("secret") == tenant_of("secret") != tenant_of("other")
    assert "secret" not in tenant_of("secret")
    assert tenant_of("") == "anonymous"
