"""The gateway's settings: environment variables named CLAWBACK_<FIELD>."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

import msgspec
from pydantic import Field, field_validator

from libs.errors import ConfigError
from libs.streams.config import ServiceSettings, check_port

CaptureMode = Literal["builtin", "vllm", "sglang", "none"]
AuthStyle = Literal["auto", "bearer", "x-api-key"]


class Route(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one scenario's requests go. Fields left out take the gateway's own setting."""

    url: str
    api_key: str | None = None
    api_key_env: str | None = None  # name of the environment variable that holds the key
    capture: CaptureMode | None = None
    auth: AuthStyle | None = None
    timeout_seconds: float | None = None


class GatewaySettings(ServiceSettings):
    """Everything that one gateway process needs."""

    gateway_upstream_url: str = Field(default="http://127.0.0.1:8000", description="root or /v1 of the upstream API")
    gateway_upstream_api_key: str | None = Field(default=None, repr=False)
    gateway_upstream_auth: AuthStyle = "auto"
    gateway_upstream_ca_file: str | None = None
    gateway_routes: str = Field(default="", repr=False, description="JSON object or its file: scenario -> route")
    gateway_capture: CaptureMode = "builtin"
    gateway_capture_top_k: int = Field(default=4, ge=1, le=20)
    gateway_default_scenario: str = "default"

    gateway_receive_timeout_seconds: float = Field(
        default=30.0, gt=0, description="for a request's head from its first byte; longest silence within its body"
    )
    gateway_connect_timeout_seconds: float = Field(default=10.0, gt=0)
    gateway_read_timeout_seconds: float = Field(default=600.0, gt=0, description="longest silence of an upstream")
    gateway_retries: int = Field(default=1, ge=0, le=5, description="further tries when no byte of an answer came")
    gateway_retry_statuses: str = Field(default="", description="comma-separated upstream statuses to retry as well")
    gateway_max_body_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    gateway_record_max_bytes: int = Field(
        default=64 * 1024 * 1024, ge=1024, description="largest request or answer, uncompressed, that is recorded"
    )
    gateway_drain_seconds: float = Field(default=30.0, ge=0, description="time for open requests after SIGTERM")
    gateway_record_wait_seconds: float = Field(
        default=0.25, ge=0, description="longest wait of a client for its record"
    )

    gateway_tokens: str = Field(default="", repr=False, description="JSON object or its file: sha256 -> tenant")
    gateway_limit_requests_per_minute: float = Field(default=0, ge=0, description="per tenant; 0 means no limit")
    gateway_limit_concurrent_requests: int = Field(default=0, ge=0, description="per tenant; 0 means no limit")
    gateway_redaction: bool = True
    gateway_redaction_rules: str = Field(default="", description="comma-separated files with further rules")
    gateway_redaction_phone_regions: str = Field(default="US,GB", description="for numbers written without +")
    gateway_redaction_key: str = Field(default="", repr=False, description="keys the marks; made and kept if empty")
    gateway_redaction_cache_dir: str = Field(default="", description="compiled rules; the system's cache if empty")
    gateway_forward_credentials: bool = Field(default=False, description="pass the client's own key upstream")
    gateway_tls_cert_file: str | None = None
    gateway_tls_key_file: str | None = None

    gateway_spool_dir: str = ""
    gateway_spool_max_bytes: int = Field(default=1024**3, ge=1024 * 1024)
    gateway_spool_segment_bytes: int = Field(default=64 * 1024 * 1024, ge=64 * 1024)
    gateway_spool_fsync_seconds: float = Field(default=1.0, ge=0, description="0 leaves flushing to the kernel")

    @field_validator("gateway_upstream_url")
    @classmethod
    def _http(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        check_port(value)
        return value.rstrip("/")

    @field_validator("gateway_retry_statuses")
    @classmethod
    def _statuses(cls, value: str) -> str:
        if any(not s.strip().isdecimal() for s in value.split(",") if s.strip()):
            raise ValueError("must be HTTP statuses with commas between them, such as 429,503")
        return value

    @property
    def spool_dir(self) -> Path:
        """Where records wait for the broker; one directory per process."""
        return Path(self.gateway_spool_dir) if self.gateway_spool_dir else home() / "spool" / "gateway"

    @property
    def retry_statuses(self) -> frozenset[int]:
        return frozenset(int(s) for s in self.gateway_retry_statuses.split(",") if s.strip())

    @property
    def key_file(self) -> Path:
        """Where the redaction key is kept when none is given."""
        return self.spool_dir / "redaction.key"

    def routes(self) -> dict[str, Route]:
        """Scenario to route. Raises ConfigError that names the scenario and the field."""
        try:
            return msgspec.convert(json_or_file(self.gateway_routes, "CLAWBACK_GATEWAY_ROUTES"), dict[str, Route])
        except msgspec.ValidationError as error:
            raise ConfigError(f"CLAWBACK_GATEWAY_ROUTES: {error}") from error


def home() -> Path:
    """Local state: CLAWBACK_HOME, `.clawback` under the working directory by default."""
    return Path(os.environ.get("CLAWBACK_HOME", ".clawback"))


def json_or_file(value: str, name: str) -> object:
    """A setting that is a JSON object or the path of a file with one. Raises ConfigError naming the setting."""
    text = value.strip()
    if not text:
        return {}
    try:
        if not text.startswith("{"):
            text = Path(text).read_text(encoding="utf-8")
        return json.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name} must be a JSON object or the path of a file with one: {error}") from error
