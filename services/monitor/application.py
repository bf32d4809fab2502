"""The Faust application: one agent over all topics.

Faust loses events whose agent raises, acknowledges before a decoder error surfaces and hard-codes a fetch wait of 1.5 s
(docs/decisions/monitor-faust.md). So values stay raw bytes, everything is handled inside our own try, a bad record is
sent to dead.letters and awaited, and any other failure ends the process before Faust can commit past it.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import os
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiokafka
import faust
from faust.transport.drivers import aiokafka as driver

from libs.contracts import TOPICS, DeadLetter, claims, dead_letters, encode
from libs.errors import ContractError, RetryError
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger
from services.monitor.config import MonitorSettings
from services.monitor.conversations import Conversations
from services.monitor.handler import Recorder
from services.monitor.rewind import Positions

log = get_logger("monitor")

_RAW = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
CLAIM_ATTEMPTS = 4
EXIT_FAULT = 70  # EX_SOFTWARE: a supervisor starts the service again, which reads the topics back


def patch_fetch_wait(fetch_max_wait_ms: int) -> None:
    """Give Faust's consumer our fetch wait: its driver passes a constant (1500 ms)."""

    class Consumer(aiokafka.AIOKafkaConsumer):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "fetch_max_wait_ms": fetch_max_wait_ms})

    class Patched:
        AIOKafkaConsumer = Consumer

        def __getattr__(self, name: str) -> Any:
            return getattr(aiokafka, name)

    driver.aiokafka = Patched()


def build(settings: MonitorSettings, group: str, positions: Positions, scratch: Path) -> tuple[faust.App, Recorder]:
    """The application and the recorder that its agent feeds. Faust makes directories in `scratch`."""
    patch_fetch_wait(settings.kafka_fetch_max_wait_ms)
    app = faust.App(group, datadir=scratch / "data", **_faust_settings(settings))
    app._on_agent_error = _exit  # before the agent is made: it takes the handler when it is defined
    recorder = Recorder(
        Conversations(settings.monitor_max_conversation_bytes),
        max_exchanges=settings.monitor_max_exchanges,
        live_since=time.time(),
    )
    letters = app.topic(
        dead_letters.TOPIC + settings.stream_output_suffix, key_serializer="raw", value_serializer="raw"
    )
    source = app.topic(
        *map(settings.input_topic, TOPICS),
        value_type=bytes,
        value_serializer="raw",
        key_type=bytes,
        key_serializer="raw",
    )

    @app.agent(source, name="observe")  # type: ignore[untyped-decorator]
    async def observe(stream: Any) -> None:
        await _observe(stream.events(), recorder, letters, positions, settings)

    @app.timer(interval=1.0)  # type: ignore[untyped-decorator]
    async def set_aside() -> None:
        """Letters of what was read back wait until it is known which of them were written before."""
        for letter in recorder.letters_due() if positions.caught_up() else ():
            await _send(letters, letter)

    @app.timer(interval=30.0)  # type: ignore[untyped-decorator]
    async def expire() -> None:
        gone = recorder.expire(before=time.time() - settings.monitor_retention_seconds)
        if gone:
            log.info("expired", exchanges=gone)

    return app, recorder


async def _observe(
    events: AsyncIterator[Any], recorder: Recorder, letters: Any, positions: Positions, settings: MonitorSettings
) -> None:
    async for event in events:
        message = event.message
        topic = message.topic.removesuffix(settings.stream_input_suffix)
        try:
            value = await _whole(message.value, settings.claims_url)
            recorder.take(topic, value, timestamp=message.timestamp)
            metrics.RECORDS.labels("monitor", topic, "done").inc()
        except ContractError as error:
            metrics.RECORDS.labels("monitor", topic, "dead_letter").inc()
            log.warning("bad record", topic=message.topic, offset=message.offset, error=str(error))
            if topic == dead_letters.TOPIC:  # a letter about a letter would never end
                pass
            elif positions.caught_up():
                await _send(letters, _letter(message, error))
            else:
                recorder.hold_letter(_letter(message, error))
        except Exception as fault:
            _die(fault)
        positions.reached(message.topic, message.partition, message.offset)


async def _whole(value: bytes | None, claims_url: str) -> bytes | None:
    """The record itself where the topic holds a ticket for it. Raises ContractError when it cannot be had."""
    if value is None or not claims.is_ticket(value):
        return value
    for attempt in range(CLAIM_ATTEMPTS):
        try:
            return await asyncio.to_thread(claims.redeem, value, claims_url)
        except RetryError as error:
            log.warning("claim not readable", error=str(error), attempt=attempt + 1)
            last = str(error)
            await asyncio.sleep(2.0**attempt)
    raise ContractError(last, reason="claim_read")


async def _send(letters: Any, letter: DeadLetter) -> None:
    """Produce a dead letter and wait for the acknowledgement."""
    try:
        await (await letters.send(key=letter.service.encode(), value=encode(letter)))
    except BaseException as fault:
        _die(fault)
    metrics.DEAD_LETTERS.labels("monitor", letter.reason).inc()


def _letter(message: Any, error: ContractError) -> DeadLetter:
    return DeadLetter(
        dead_letter_id=f"{message.topic}-{message.partition}-{message.offset}",
        service="monitor",
        source_topic=message.topic,
        source_partition=message.partition,
        source_offset=message.offset,
        reason=error.reason,
        error=str(error)[:2000],
        attempts=1,
        failed_at=time.time(),
        key=base64.b64encode(message.key).decode() if message.key is not None else None,
        value=base64.b64encode(message.value or b"").decode(),
    )


async def _exit(agent: Any, fault: BaseException) -> None:
    _die(fault)


def _die(fault: BaseException) -> None:
    """End now: leaving the agent's loop would acknowledge the record that failed."""
    log.critical("stopping", error=repr(fault))
    os._exit(EXIT_FAULT)


def _faust_settings(settings: MonitorSettings) -> dict[str, Any]:
    servers = settings.kafka_bootstrap_servers.split(",")
    seconds = functools.partial(max, 0.1)
    return {
        "broker": [f"kafka://{server}" for server in servers],
        "broker_credentials": _credentials(settings),
        "broker_session_timeout": settings.kafka_session_timeout_ms / 1000,
        "broker_heartbeat_interval": seconds(settings.kafka_heartbeat_interval_ms / 1000),
        "broker_request_timeout": max(40.0, settings.kafka_session_timeout_ms / 1000 + 1),
        "broker_commit_interval": settings.stream_commit_interval_seconds,
        "broker_max_poll_records": 500,
        "consumer_auto_offset_reset": "earliest",
        "consumer_max_fetch_size": settings.kafka_max_request_size,
        "producer_max_request_size": settings.kafka_max_request_size,
        "producer_linger": 0.005,
        "producer_max_batch_size": 131_072,
        "topic_disable_leader": True,
        "web_enabled": False,
        "stream_wait_empty": False,
    }


def _credentials(settings: MonitorSettings) -> Any:
    context = ssl.create_default_context(cafile=settings.kafka_ssl_cafile)
    if settings.kafka_security_protocol.startswith("SASL"):
        return faust.SASLCredentials(
            mechanism=settings.kafka_sasl_mechanism,
            username=settings.kafka_sasl_username,
            password=settings.kafka_sasl_password,
            ssl_context=context if settings.kafka_security_protocol == "SASL_SSL" else None,
        )
    return faust.SSLCredentials(context) if settings.kafka_security_protocol == "SSL" else None
