"""A second broker to test on: librdkafka's mock cluster, served on 127.0.0.1 by a process of its own.

It keeps to Apache Kafka's protocol where the local broker is generous: it tells of no topic unasked, grants producer
ids to idempotent producers and assigns groups by itself. It cannot create topics by request: naming one makes it, with
four partitions. `python -m tests.strict_broker` prints the address and serves until it is stopped.
"""

from __future__ import annotations

from collections.abc import Collection

from aiokafka import AIOKafkaProducer

from libs.streams.client import client_options
from libs.streams.config import ServiceSettings

PARTITIONS = 4  # of every topic


async def create(settings: ServiceSettings, topics: Collection[str]) -> None:
    """Make topics by naming them."""
    producer = AIOKafkaProducer(**client_options(settings))
    await producer.start()
    try:
        for topic in topics:
            await producer.partitions_for(topic)
    finally:
        await producer.stop()


def main() -> None:
    from confluent_kafka import Producer

    cluster = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
    (broker,) = cluster.list_topics(timeout=30).brokers.values()
    print(f"{broker.host}:{broker.port}", flush=True)
    while True:
        cluster.poll(3600)


if __name__ == "__main__":
    main()
