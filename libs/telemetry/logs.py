"""Structured logs: one JSON object a line on stderr, so that a collector needs no parser.

Fields: timestamp (ISO 8601, UTC), level, event, service, and what the caller adds. Never a conversation's text.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def get_logger(name: str) -> Any:
    """A structlog logger; `name` becomes the field `module`."""
    return structlog.get_logger(module=name)


def configure(service: str, level: str = "INFO") -> None:
    """Send structlog and the standard library's logging (aiokafka, aiohttp) to stderr as JSON lines."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _service_field(service),
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(), structlog.processors.format_exc_info],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(default=str),
            ],
        )
    )
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)


def _service_field(service: str) -> Any:
    def add(_logger: object, _method: str, event: dict[str, Any]) -> dict[str, Any]:
        event.setdefault("service", service)
        return event

    return add
