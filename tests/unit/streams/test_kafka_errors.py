"""Which of Kafka's errors may pass, and which need a restart."""

from __future__ import annotations

import pytest
from aiokafka import errors

from libs.errors import RetryError, StopError
from libs.streams.client import as_ours
from libs.streams.config import ServiceSettings
from libs.streams.producer import KafkaProducer
from libs.streams.types import Output


@pytest.mark.parametrize(
    "error",
    [
        errors.KafkaConnectionError("closed"),
        errors.KafkaTimeoutError(),
        errors.NotLeaderForPartitionError(),
        errors.NotEnoughReplicasError(),
        errors.RequestTimedOutError(),
        errors.UnknownError(),
        ConnectionRefusedError(),
        TimeoutError(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_what_may_pass_is_tried_again(error: Exception) -> None:
    ours = as_ours(error, "produce")
    assert isinstance(ours, RetryError)
    assert ours.reason == "kafka_produce"
    assert type(error).__name__ in str(ours)


@pytest.mark.parametrize(
    "error",
    [
        errors.TopicAuthorizationFailedError("x"),
        errors.ProducerFenced(),
        errors.OutOfOrderSequenceNumber(),
        errors.KafkaError("Unexpected error during coordination"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_what_does_not_pass_stops_the_service(error: Exception) -> None:
    assert isinstance(as_ours(error, "fetch"), StopError)


async def test_an_unreachable_broker_leaves_the_outputs_to_be_sent_again() -> None:
    producer = KafkaProducer(ServiceSettings(kafka_bootstrap_servers="127.0.0.1:1", kafka_idempotent_producer=False))
    output = Output("turns.judged", "k", b"x")
    assert await producer.send_all([output]) == [output]
    with pytest.raises(RetryError, match="kafka connect"):
        await producer.send(output)
    with pytest.raises(RetryError):
        await producer.ping()
    await producer.stop()


async def test_a_broker_without_idempotent_producers_is_named(broker: str) -> None:
    import os

    if os.environ.get("KAFKA_BOOTSTRAP_SERVERS") or os.environ.get("KAFKA_HOME"):
        pytest.skip("Apache Kafka has them")
    producer = KafkaProducer(ServiceSettings(kafka_bootstrap_servers=broker))
    with pytest.raises(RetryError, match="CLAWBACK_KAFKA_IDEMPOTENT_PRODUCER=false"):
        await producer.send(Output("turns.judged", "k", b"x"))
    await producer.stop()
