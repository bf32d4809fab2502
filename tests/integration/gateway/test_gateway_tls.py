"""The way to the broker and to Redis through TLS: by configuration, and never without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from deploy.local.process import free_port
from deploy.topics.create import create
from libs.errors import ConfigError, RetryError
from libs.streams import client as client_module
from libs.streams import diagnose
from libs.streams.config import ServiceSettings
from libs.streams.producer import KafkaProducer
from libs.streams.sessions import Script, ScriptStore
from libs.streams.tap import tap
from libs.streams.types import Output
from services.gateway.publisher import Publisher
from tests.integration.gateway.harness import Upstream, gateway
from tests.integration.gateway.test_gateway_faults import answer, ask
from tests.integration.gateway.tls import HANDSHAKE, Authority, Tunnel, broker_behind

pytestmark = pytest.mark.integration


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "other")


@pytest.fixture
async def tls_broker(tmp_path: Path, ours: Authority) -> AsyncIterator[Tunnel]:
    async with broker_behind(tmp_path, ours) as tunnel:
        yield tunnel


def kafka(tunnel: Tunnel, **settings: Any) -> dict[str, Any]:
    return {
        "kafka_bootstrap_servers": f"127.0.0.1:{tunnel.port}",
        "kafka_idempotent_producer": False,
        "kafka_fetch_max_wait_ms": 20,
        **settings,
    }


def tls(tunnel: Tunnel, authority: Authority, **settings: Any) -> dict[str, Any]:
    return kafka(tunnel, kafka_security_protocol="SSL", kafka_ssl_cafile=str(authority.ca_file), **settings)


async def published(settings: dict[str, Any], tmp_path: Path) -> list[Any]:
    """What arrives of two exchanges, read back through the same settings."""
    await create(ServiceSettings(**settings), local=True)
    async with (
        Upstream(answer).running() as upstream,
        gateway(upstream.url, tmp_path / "spool", **settings) as served,
        aiohttp.ClientSession() as session,
    ):
        for number in range(2):
            await ask(session, served.url, number)
        assert await served.gateway.publisher.drained(30)
    return [t.record async for t in tap(ServiceSettings(**settings), ["traffic.raw"])]


async def refused(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, list[dict[str, Any]]]:
    """Serve one exchange: the publisher's complaint, and the log. The record must have stayed in the spool."""
    complained = asyncio.Event()

    async def report(self: Publisher, error: Exception) -> None:
        await original(self, error)
        complained.set()

    original = Publisher._report
    monkeypatch.setattr(Publisher, "_report", report)
    with capture_logs() as lines:
        async with (
            Upstream(answer).running() as upstream,
            gateway(upstream.url, tmp_path / "spool", **settings) as served,
            aiohttp.ClientSession() as session,
        ):
            await asyncio.wait_for(complained.wait(), 30)
            await ask(session, served.url, 0)
            assert len(await served.records()) == 1
    first = next(line for line in lines if line["event"] == "broker_unreachable")
    return first["error"], list(lines)


async def test_records_go_through_tls(tls_broker: Tunnel, ours: Authority, tmp_path: Path) -> None:
    records = await published(tls(tls_broker, ours), tmp_path)
    assert [r.request["n"] for r in records] == [0, 1]
    assert tls_broker.reached and set(tls_broker.openings) == {HANDSHAKE}


async def test_a_broker_of_another_ca_is_refused(
    tls_broker: Tunnel, other: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tls(tls_broker, other)
    error, _ = await refused(settings, tmp_path, monkeypatch)
    assert "certificate is refused" in error and "CLAWBACK_KAFKA_SSL_CAFILE" in error
    assert tls_broker.reached == 0 and set(tls_broker.openings) == {HANDSHAKE}
    producer = KafkaProducer(ServiceSettings(**settings))  # the other services' way to the broker
    with pytest.raises(RetryError, match="CLAWBACK_KAFKA_SSL_CAFILE"):
        await producer.send(Output("turns.matched", "k", b"{}"))
    assert tls_broker.reached == 0 and set(tls_broker.openings) == {HANDSHAKE}


async def test_without_a_ca_file_only_public_cas_are_trusted(
    tls_broker: Tunnel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, _ = await refused(kafka(tls_broker, kafka_security_protocol="SSL"), tmp_path, monkeypatch)
    assert "CLAWBACK_KAFKA_SSL_CAFILE" in error and tls_broker.reached == 0


async def test_a_certificate_for_another_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Authority(tmp_path / "elsewhere", "broker.example")
    async with broker_behind(tmp_path, elsewhere) as tunnel:
        error, _ = await refused(tls(tunnel, elsewhere), tmp_path, monkeypatch)
        assert "CLAWBACK_KAFKA_BOOTSTRAP_SERVERS must use a name that the certificate has" in error
        assert tunnel.reached == 0


async def test_tls_never_falls_back_to_plain_text(
    ours: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "REQUEST_TIMEOUT_MS", 500)  # a plain broker waits for more, and says nothing
    monkeypatch.setattr(diagnose, "_SECONDS", 0.5)
    async with broker_behind(tmp_path, None) as plain:
        error, _ = await refused(tls(plain, ours), tmp_path, monkeypatch)
        assert "CLAWBACK_KAFKA_SECURITY_PROTOCOL=SSL needs a TLS listener" in error
        assert set(plain.openings) == {HANDSHAKE}


async def test_plain_text_at_a_tls_listener_is_named(
    tls_broker: Tunnel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, _ = await refused(kafka(tls_broker), tmp_path, monkeypatch)
    assert "speaks TLS; set CLAWBACK_KAFKA_SECURITY_PROTOCOL=SSL" in error


LOGIN = ("gateway", "canary-Wq7Zr3Tm9Lx5")


def sasl(tunnel: Tunnel, authority: Authority, **settings: Any) -> dict[str, Any]:
    login = {"kafka_sasl_mechanism": "PLAIN", "kafka_sasl_username": LOGIN[0], "kafka_sasl_password": LOGIN[1]}
    return tls(tunnel, authority) | login | {"kafka_security_protocol": "SASL_SSL", **settings}


async def test_records_go_through_a_login(ours: Authority, tmp_path: Path) -> None:
    async with broker_behind(tmp_path, ours, login=LOGIN) as tunnel:
        records = await published(sasl(tunnel, ours), tmp_path)
    assert [r.request["n"] for r in records] == [0, 1]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (
            {"kafka_sasl_password": "wrong-Kd4Vn8Bp2Xs6"},
            "CLAWBACK_KAFKA_SASL_PASSWORD",
        ),
        ({"kafka_sasl_mechanism": "SCRAM-SHA-512"}, "CLAWBACK_KAFKA_SASL_MECHANISM"),
        ({"kafka_security_protocol": "SSL"}, "CLAWBACK_KAFKA_"),
    ],
    ids=["password", "mechanism", "no login"],
)
async def test_a_refused_login_is_named_without_the_password(
    wrong: dict[str, Any], named: str, ours: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_behind(tmp_path, ours, login=LOGIN) as tunnel:
        error, lines = await refused(sasl(tunnel, ours, **wrong), tmp_path, monkeypatch)
    assert named in error
    assert LOGIN[1] not in str(lines) and "wrong-" not in str(lines)


async def test_a_wrong_setting_stops_the_start(tmp_path: Path) -> None:
    for wrong, named in (
        ({"kafka_security_protocol": "SSL", "kafka_ssl_cafile": "no/such.pem"}, "CLAWBACK_KAFKA_SSL_CAFILE"),
        ({"kafka_security_protocol": "SASL_SSL"}, "CLAWBACK_KAFKA_SASL_MECHANISM"),
    ):
        with pytest.raises(ConfigError, match=named):
            async with gateway("http://127.0.0.1:9", tmp_path, **wrong):
                pass


# --- Redis ---

ECHO = Script("return {KEYS[1], ARGV[1]}")


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].split("/")[0])


@pytest.fixture
async def tls_redis(redis_url: str, ours: Authority) -> AsyncIterator[Tunnel]:
    async with Tunnel(free_port(), port_of(redis_url), ours).running() as tunnel:
        yield tunnel


async def run_script(url: str) -> Any:
    store = ScriptStore(ServiceSettings(redis_url=url).redis_url, timeout_seconds=2.0)
    try:
        return await store.run(ECHO, ["k"], ["v"])
    finally:
        await store.close()


async def test_redis_through_tls(tls_redis: Tunnel, ours: Authority) -> None:
    assert await run_script(f"rediss://127.0.0.1:{tls_redis.port}/0?ssl_ca_certs={ours.ca_file}") == [b"k", b"v"]
    assert tls_redis.reached and set(tls_redis.openings) == {HANDSHAKE}


@pytest.mark.parametrize("ca", [True, False], ids=["another CA", "no CA"])
async def test_a_redis_of_another_ca_is_refused(tls_redis: Tunnel, other: Authority, ca: bool) -> None:
    query = f"?ssl_ca_certs={other.ca_file}" if ca else ""
    with pytest.raises(RetryError, match=r"CLAWBACK_REDIS_URL.*ssl_ca_certs"):
        await run_script(f"rediss://127.0.0.1:{tls_redis.port}/0{query}")
    assert tls_redis.reached == 0 and set(tls_redis.openings) == {HANDSHAKE}


async def test_a_ca_file_of_redis_that_is_missing_is_named(tls_redis: Tunnel) -> None:
    with pytest.raises(RetryError, match="CLAWBACK_REDIS_URL"):
        await run_script(f"rediss://127.0.0.1:{tls_redis.port}/0?ssl_ca_certs=no/such.pem")


async def test_redis_tls_never_falls_back_to_plain_text(redis_url: str, ours: Authority) -> None:
    async with Tunnel(free_port(), port_of(redis_url)).running() as plain:
        with pytest.raises(RetryError, match="CLAWBACK_REDIS_URL"):
            await run_script(f"rediss://127.0.0.1:{plain.port}/0?ssl_ca_certs={ours.ca_file}")
        assert plain.openings and set(plain.openings) == {HANDSHAKE}


async def test_plain_text_at_a_redis_tls_port_is_refused(tls_redis: Tunnel) -> None:
    with pytest.raises(RetryError):
        await run_script(f"redis://127.0.0.1:{tls_redis.port}/0")
    assert tls_redis.reached == 0
