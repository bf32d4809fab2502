"""Send a few records from the command line and wait for the broker's acknowledgement."""

from __future__ import annotations

from collections.abc import Sequence

from libs.streams.config import ServiceSettings
from libs.streams.producer import KafkaProducer
from libs.streams.types import Output


async def produce(settings: ServiceSettings, outputs: Sequence[Output]) -> None:
    """Raises RetryError while the broker is away, DeadLetterError for a record that is too large."""
    producer = KafkaProducer(settings)
    try:
        for output in outputs:
            await producer.send(output)
    finally:
        await producer.stop()
