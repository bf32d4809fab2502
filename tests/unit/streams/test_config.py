"""Settings name the variable that is wrong and the fix."""

from __future__ import annotations

import pytest

from libs.errors import ConfigError
from libs.streams.client import client_options
from libs.streams.config import ServiceSettings, load


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("CLAWBACK_STREAM_MAX_IN_FLIGHT", "0", "CLAWBACK_STREAM_MAX_IN_FLIGHT: .*greater than or equal to 1"),
        ("CLAWBACK_HTTP_PORT", "70000", "CLAWBACK_HTTP_PORT"),
        ("CLAWBACK_STREAM_DRAIN_SECONDS", "600", "CLAWBACK_STREAM_DRAIN_SECONDS must be below CLAWBACK_KAFKA_REB"),
        ("CLAWBACK_KAFKA_HEARTBEAT_INTERVAL_MS", "20000", "CLAWBACK_KAFKA_HEARTBEAT_INTERVAL_MS must be a third"),
        ("CLAWBACK_REDIS_URL", "127.0.0.1:6379", "CLAWBACK_REDIS_URL: must start with redis://"),
        ("CLAWBACK_REDIS_URL", "redis://:hush@host:port/0", "CLAWBACK_REDIS_URL: .*port from 0 to 65535"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        load(ServiceSettings)


def test_side_topics_have_a_suffix() -> None:
    assert ServiceSettings().input_topic("traffic.raw") == "traffic.raw"
    assert ServiceSettings(stream_input_suffix=".x").input_topic("traffic.raw") == "traffic.raw.x"


def test_secrets_are_not_shown() -> None:
    settings = ServiceSettings(kafka_sasl_password="hush", redis_url="redis://:hush@host/0")
    assert "hush" not in repr(settings)


def test_credentials_reach_the_client_and_their_absence_is_named() -> None:
    options = client_options(
        ServiceSettings(
            kafka_security_protocol="SASL_SSL",
            kafka_sasl_mechanism="SCRAM-SHA-512",
            kafka_sasl_username="u",
            kafka_sasl_password="p",
        )
    )
    assert (options["sasl_mechanism"], options["sasl_plain_username"], options["sasl_plain_password"]) == (
        "SCRAM-SHA-512",
        "u",
        "p",
    )
    assert options["ssl_context"].verify_mode.name == "CERT_REQUIRED"
    with pytest.raises(ConfigError, match="SASL_PLAINTEXT needs CLAWBACK_KAFKA_SASL_MECHANISM"):
        client_options(ServiceSettings(kafka_security_protocol="SASL_PLAINTEXT"))
    with pytest.raises(ConfigError, match="CLAWBACK_KAFKA_SSL_CAFILE: cannot read no/such/file"):
        client_options(ServiceSettings(kafka_security_protocol="SSL", kafka_ssl_cafile="no/such/file"))
