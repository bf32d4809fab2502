"""Settings that every service shares, read from environment variables named CLAWBACK_<FIELD>."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from libs.errors import ConfigError

S = TypeVar("S", bound="ServiceSettings")


class ServiceSettings(BaseSettings):
    """Subclass it in services/<name>/config.py; prefix own fields with the service's name (`judge_votes`)."""

    model_config = SettingsConfigDict(env_prefix="CLAWBACK_", extra="ignore", frozen=True)

    http_host: str = "127.0.0.1"
    http_port: int = Field(default=0, ge=0, le=65535, description="health and metrics; 0 takes a free port")
    log_level: str = "INFO"

    kafka_bootstrap_servers: str = "127.0.0.1:9092"
    kafka_idempotent_producer: bool = Field(default=True, description="off for the local broker, which has none")
    kafka_fetch_max_wait_ms: int = Field(default=500, ge=1, description="20 for the local broker, see docs/decisions")
    kafka_session_timeout_ms: int = Field(default=30_000, ge=1_000)
    kafka_heartbeat_interval_ms: int = Field(default=3_000, ge=100)
    kafka_rebalance_timeout_ms: int = Field(default=60_000, ge=1_000, description="longer than stream_drain_seconds")
    kafka_leave_group: bool = Field(default=True, description="off for the local broker, which loses its leader by it")
    kafka_max_request_size: int = Field(default=8 * 1024 * 1024, ge=64 * 1024)
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    kafka_ssl_cafile: str | None = None
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    kafka_sasl_username: str | None = None
    kafka_sasl_password: str | None = Field(default=None, repr=False)

    claims_url: str = Field(default="", description="fsspec URL for records over the topics' limit; see claims.py")

    redis_url: str = Field(
        default="redis://127.0.0.1:6379/0", repr=False, description="rediss:// is TLS; ?ssl_ca_certs=FILE is its CA"
    )

    stream_max_in_flight: int = Field(default=64, ge=1, description="records handled at once per process")
    stream_commit_interval_seconds: float = Field(default=0.5, gt=0)
    stream_handle_timeout_seconds: float = Field(default=120.0, gt=0)
    stream_max_attempts: int = Field(default=5, ge=1, description="tries of a faulty record before it is dead-lettered")
    stream_stall_seconds: float = Field(default=60.0, gt=0, description="no progress while there is lag: exit")
    stream_drain_seconds: float = Field(
        default=20.0, gt=0, description="on stop and revoke: wait for what is in flight"
    )
    stream_max_held: int = Field(default=4096, ge=1, description="records held back for a batch per process")
    stream_backoff_max_seconds: float = Field(default=10.0, gt=0)
    stream_dead_letters_in_a_row: int = Field(default=100, ge=1, description="more than these: the service stops")
    stream_dead_letter_share: float = Field(default=0.5, gt=0, le=1, description="of the last 1000 records")
    stream_group: str | None = Field(default=None, description="consumer group; clawback-<service> if not set")
    stream_input_suffix: str = Field(default="", description="appended to the names of topics that are read")
    stream_output_suffix: str = Field(default="", description="appended to the names of topics that are written")

    @field_validator("redis_url")
    @classmethod
    def _redis(cls, value: str) -> str:
        if not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must start with redis://, rediss:// or unix://")
        check_port(value)
        return value

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.stream_drain_seconds * 1000 >= self.kafka_rebalance_timeout_ms:
            raise ValueError("CLAWBACK_STREAM_DRAIN_SECONDS must be below CLAWBACK_KAFKA_REBALANCE_TIMEOUT_MS")
        if self.kafka_heartbeat_interval_ms * 3 > self.kafka_session_timeout_ms:
            raise ValueError("CLAWBACK_KAFKA_HEARTBEAT_INTERVAL_MS must be a third of the session timeout at most")
        return self

    def input_topic(self, topic: str) -> str:
        """The name under which `topic` is read (a replay and tests read side topics)."""
        return topic + self.stream_input_suffix


def check_port(url: str) -> None:
    """Raise ValueError, without the URL, which may hold a password, when its port is none."""
    try:
        _ = urlsplit(url).port
    except ValueError:
        raise ValueError("must end in host:port with a port from 0 to 65535") from None


def load(kind: type[S]) -> S:
    """Read settings from the environment. Raises ConfigError that names each wrong variable and the fix."""
    try:
        return kind()
    except ValidationError as error:
        lines = [_line([str(part) for part in e["loc"]], e["msg"]) for e in error.errors()]
        raise ConfigError("wrong settings: " + "; ".join(lines)) from error


def load_or_exit(service: str, read: Callable[[], S]) -> S:
    """The settings that `read` returns. Exits with status 2 and one line on stderr when they are wrong."""
    try:
        return read()
    except ConfigError as error:
        print(f"{service}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _line(where: list[str], message: str) -> str:
    name = f"CLAWBACK_{'_'.join(where).upper()}: " if where else ""  # a rule over several settings names them itself
    return name + message.removeprefix("Value error, ")
