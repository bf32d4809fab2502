"""What every Kafka client here shares: addresses, credentials, records and errors in our terms."""

from __future__ import annotations

import ssl
from collections.abc import Collection
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    BrokerNotAvailableError,
    KafkaTimeoutError,
    KafkaUnavailableError,
    ReplicaNotAvailableError,
    UnknownError,
)

from libs.errors import ConfigError, RetryError, StopError
from libs.streams.config import ServiceSettings
from libs.streams.types import StreamRecord

# Acknowledgements arrive late when the broker stalls: a short timeout reports sends as failed that were stored.
REQUEST_TIMEOUT_MS = 40_000
RECORD_OVERHEAD_BYTES = 16 * 1024  # key, headers and batch around a value, with room to spare
_MAY_PASS = (
    OSError,
    KafkaTimeoutError,
    KafkaUnavailableError,
    BrokerNotAvailableError,
    ReplicaNotAvailableError,
    UnknownError,
)


def client_options(settings: ServiceSettings) -> dict[str, Any]:
    """What consumers, producers and admin clients share: addresses and credentials. Raises ConfigError."""
    protocol = settings.kafka_security_protocol
    options: dict[str, Any] = {
        "bootstrap_servers": settings.kafka_bootstrap_servers,
        "security_protocol": protocol,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
    }
    if protocol in ("SSL", "SASL_SSL"):
        try:
            options["ssl_context"] = ssl.create_default_context(cafile=settings.kafka_ssl_cafile)
        except OSError as error:
            raise ConfigError(f"CLAWBACK_KAFKA_SSL_CAFILE: cannot read {settings.kafka_ssl_cafile}: {error}") from error
    if protocol.startswith("SASL"):
        if not (settings.kafka_sasl_mechanism and settings.kafka_sasl_username and settings.kafka_sasl_password):
            raise ConfigError(f"{protocol} needs CLAWBACK_KAFKA_SASL_MECHANISM, _USERNAME and _PASSWORD")
        options |= {
            "sasl_mechanism": settings.kafka_sasl_mechanism,
            "sasl_plain_username": settings.kafka_sasl_username,
            "sasl_plain_password": settings.kafka_sasl_password,
        }
    return options


def consumer_options(settings: ServiceSettings) -> dict[str, Any]:
    """Fetch settings for grouped and un-grouped readers alike."""
    return client_options(settings) | {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "fetch_max_wait_ms": settings.kafka_fetch_max_wait_ms,
        "max_partition_fetch_bytes": settings.kafka_max_request_size,
        "isolation_level": "read_committed",
    }


def to_record(message: Any) -> StreamRecord:
    """aiokafka's ConsumerRecord as ours."""
    return StreamRecord(
        message.topic, message.partition, message.offset, message.key, message.value or b"", message.timestamp
    )


async def partitions_of(client: AIOKafkaConsumer, topics: Collection[str]) -> list[TopicPartition]:
    """The partitions of those topics that exist, by topic and number. Raises KafkaError.

    A consumer that has subscribed to nothing knows the partitions of no topic: only a broker that tells more than it is
    asked at the start, as the local one does, makes `partitions_for_topic` work. Naming topics could create them, so
    all are asked for.
    """
    cluster = await client._client.fetch_all_metadata()
    return [TopicPartition(t, number) for t in topics for number in sorted(cluster.partitions_for_topic(t) or ())]


def as_ours(error: Exception, what: str) -> RetryError | StopError:
    """Kafka marks which errors may pass; a few more do. The others (authorisation, fencing, a dead coordinator task)
    need a restart."""
    if isinstance(error, _MAY_PASS) or getattr(error, "retriable", False):
        return RetryError(f"kafka {what}: {error!r}", reason=f"kafka_{what}")
    return StopError(f"kafka {what}: {error!r}", reason=f"kafka_{what}")
