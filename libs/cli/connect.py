"""How commands reach a running system: environment variables first, then the local stack's stack.json."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any

from libs.cli.home import home
from libs.errors import ConfigError, RetryError
from libs.streams.config import ServiceSettings, load

MONITOR_URL = "CLAWBACK_MONITOR_URL"


def settings() -> ServiceSettings:
    """Broker and Redis. CLAWBACK_* variables win; what they leave out comes from stack.json, then from defaults."""
    from deploy.local import state

    stack = state.read(home())
    found: dict[str, Any] = {}
    if stack is not None:
        found = {"kafka_bootstrap_servers": stack.kafka_bootstrap_servers, "redis_url": stack.redis_url}
        found["kafka_idempotent_producer"] = stack.kafka_idempotent_producer
        if not stack.kafka_idempotent_producer:  # the local broker: its fetch does not wake when data comes
            found |= {"kafka_fetch_max_wait_ms": 20}
    for name in list(found):
        if f"CLAWBACK_{name.upper()}" in os.environ or found[name] in ("", None):
            del found[name]
    return ServiceSettings(**(load(ServiceSettings).model_dump(exclude=set(found)) | found))


def service_url(service: str) -> str:
    """The base URL of a service: CLAWBACK_<SERVICE>_URL or the local stack's. Raises ConfigError with the fix."""
    from deploy.local import state

    given = os.environ.get(f"CLAWBACK_{service.upper()}_URL")
    if given:
        return given.rstrip("/")
    stack = state.read(home())
    if stack is None or service not in stack.services:
        raise ConfigError(
            f"no {service} is known: `clawback up` starts one, or set CLAWBACK_{service.upper()}_URL "
            f"(CLAWBACK_HOME is {home()})"
        )
    return stack.services[service].url.rstrip("/")


def get_json(url: str, *, timeout_seconds: float = 10.0) -> Any:
    """GET a JSON document. Raises RetryError when the service does not answer."""
    return json.loads(get_text(url, timeout_seconds=timeout_seconds))


def failing_checks(url: str) -> dict[str, str]:
    """What a service lacks to be ready, check -> why; empty when it is ready. Raises RetryError like get_text."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=7.0):
            return {}
    except urllib.error.HTTPError as error:
        try:
            checks: dict[str, str] = json.loads(error.read())["checks"]
        except (ValueError, LookupError, TypeError):
            return {"readyz": f"HTTP {error.code}"}
        return {check: why for check, why in checks.items() if why != "ok"}
    except (urllib.error.URLError, TimeoutError, OSError) as error:
        raise RetryError(f"{url} does not answer: {error}", reason="http") from error


def get_text(url: str, *, timeout_seconds: float = 10.0) -> str:
    """GET a text. Raises RetryError when the service does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_seconds) as answer:
            text: str = answer.read().decode("utf-8")
            return text
    except (urllib.error.URLError, TimeoutError, OSError) as error:
        raise RetryError(f"{url} does not answer: {error}", reason="http") from error
