"""The redactor that the settings ask for."""

from __future__ import annotations

import functools
import os
import secrets

from libs.errors import ConfigError
from services.gateway.config import GatewaySettings
from services.gateway.redaction import KingfisherScanner, Redactor
from services.gateway.redaction.verify import verifiers


def redactor(settings: GatewaySettings) -> Redactor | None:
    """None when redaction is off. Raises ConfigError when a rule file or the key file is unusable."""
    if not settings.gateway_redaction:
        return None
    scanner = _scanner(
        settings.gateway_redaction_rules,
        settings.gateway_redaction_phone_regions,
        settings.gateway_redaction_cache_dir or None,
    )
    return Redactor(scanner, _key(settings))


@functools.lru_cache(maxsize=4)
def _scanner(rules: str, regions: str, cache_dir: str | None) -> KingfisherScanner:
    # Compiling the catalogue takes seconds once, then comes from the cache directory.
    return KingfisherScanner(_listed(rules), verifiers(_listed(regions)), cache_dir)


def _listed(value: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in value.split(",") if item.strip())


def _key(settings: GatewaySettings) -> bytes:
    if settings.gateway_redaction_key:
        return settings.gateway_redaction_key.encode()
    path = settings.key_file
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_hex(32).encode())
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot keep the redaction key in {path}: {error}; set CLAWBACK_GATEWAY_REDACTION_KEY"
        ) from (error)
